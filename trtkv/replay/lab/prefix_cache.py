"""PrefixCache: one request after the other through a cache of whole blocks, under any eviction order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from trtkv.common import Priority
from trtkv.errors import InvalidInputError, check
from trtkv.eviction.orders.order import EvictionOrder, Incoming, Item
from trtkv.replay.lab.admission import Admission, AdmitAll

Path = Sequence[Hashable]
"""One key a block of a prompt; a key names the block together with all before it."""


class _Node(Item):
    __slots__ = ("num_children", "num_holders", "parent")

    def __init__(self, incoming: Incoming, priority: Priority, parent: _Node | None) -> None:
        super().__init__(incoming.key, incoming.depth, priority)
        self.parent = parent
        self.num_children = 0
        self.num_holders = 1  # the request that inserts it


Held = list[_Node]
"""Blocks that a running request holds."""


class Served(NamedTuple):
    """What became of one request."""

    found: int
    """Leading blocks that were cached."""
    evicted: list[Hashable]
    """Keys in the order in which they went."""
    not_admitted: int
    """Blocks that the filter kept out."""


class PrefixCache:
    """A cache of ``capacity`` blocks. A request uses what it finds and inserts the rest, root first.

    A victim is not part of a running request and, with ``leaves_only``, has no cached child; where there is none,
    the rest of the prompt is not cached. No generated text, no parts of blocks: what is left is the
    policy. Time is the number of the request.
    """

    def __init__(
        self,
        capacity: int,
        order: EvictionOrder,
        admission: Admission | None = None,
        *,
        leaves_only: bool = True,
        priority_of: Callable[[int], Priority] = lambda depth: 0,
        on_evicted: Callable[[Item], None] | None = None,
    ) -> None:
        if capacity < 1:
            raise InvalidInputError(f"capacity is {capacity}; a cache needs room for a block at least")
        self._capacity = capacity
        self._order = order
        self._admission: Admission = AdmitAll() if admission is None else admission
        self._leaves_only = leaves_only
        self._priority_of = priority_of
        self._on_evicted = on_evicted
        self._nodes: dict[Hashable, _Node] = {}
        self._now = 0

    @property
    def resident(self) -> list[Hashable]:
        """Keys of the cached blocks, in the order of their insertion."""
        return list(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, key: object) -> bool:
        return key in self._nodes

    def count_found(self, path: Path) -> int:
        """Leading blocks that are cached. Changes nothing."""
        return next((i for i, key in enumerate(path) if key not in self._nodes), len(path))

    def serve(self, path: Path) -> Served:
        """Run one request from its start to its end."""
        served, held = self.admit(path)
        self.finish(held)
        self._admission.finished(path)
        return served

    def admit(self, path: Path) -> tuple[Served, Held]:
        """Start a request: its blocks are cached where there is room, and held until ``finish``."""
        nodes, order = self._nodes, self._order
        self._admission.asked(path)
        num_found = self.count_found(path)
        # Without the leaf rule blocks may be cached behind a gap: not found, but part of the request all the same.
        held = [nodes[key] for key in (path[:num_found] if self._leaves_only else path) if key in nodes]
        for node in held:
            if not node.num_holders:
                order.claimed(node)
            node.num_holders += 1
        for node in held:
            order.used(node, self._now)
        evicted: list[Hashable] = []
        not_admitted = self._insert(path, num_found, held, evicted)
        self._now += 1
        return Served(num_found, evicted, not_admitted), held

    def finish(self, held: Held) -> None:
        """End a request: its blocks may go from now on, as far as no other request holds them."""
        for node in reversed(held):
            node.num_holders -= 1
            if self._is_evictable(node):
                self._order.released(node, self._now)

    def _is_evictable(self, node: _Node) -> bool:
        return not node.num_holders and not (self._leaves_only and node.num_children)

    def _insert(self, path: Path, start: int, held: Held, evicted: list[Hashable]) -> int:
        """Insert the missing blocks; returns how many the filter kept out."""
        parent = self._nodes[path[start - 1]] if start else None
        for depth in range(start, len(path)):
            incoming = Incoming(path[depth], depth)
            node = self._nodes.get(incoming.key)
            if node is None:
                is_full = len(self._nodes) >= self._capacity
                victim = self._order.peek(incoming) if is_full else None
                if is_full and victim is None:
                    break
                if not self._admission.admits(incoming.key, None if victim is None else victim.key):
                    return len(path) - depth
                if is_full:
                    evicted.append(self._evict(incoming))
                node = self._nodes[incoming.key] = _Node(incoming, self._priority_of(depth), parent)
                self._order.stored(node, self._now)
                held.append(node)
                if parent is not None:
                    parent.num_children += 1
            parent = node
        return 0

    def _evict(self, incoming: Incoming) -> Hashable:
        victim = self._order.take(incoming)
        check(isinstance(victim, _Node), "an eviction order named a victim and took none")
        node = self._nodes.pop(victim.key)  # type: ignore[union-attr]  # checked above
        parent = node.parent
        if self._leaves_only and parent is not None:
            parent.num_children -= 1
            if self._is_evictable(parent):
                self._order.released(parent, self._now)
        if self._on_evicted is not None:
            self._on_evicted(node)
        return node.key
