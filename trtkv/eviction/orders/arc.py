"""ARC: adaptive replacement (Megiddo, Modha 2003). Ghosts of two LRU lists move the border between them.

vLLM offers it for its offloading tier.
"""

from __future__ import annotations

from trtkv.eviction.orders.ghost_keys import GhostKeys
from trtkv.eviction.orders.lru import LruOrder
from trtkv.eviction.orders.order import Incoming, Item


class ArcOrder:
    """T1, items used once; T2, items used again; ghosts of ``capacity`` keys for each; a target size p of T1.

    Victim: T1's if T1 holds more than p, or exactly p and the incoming key is among the ghosts of T2; else T2's; a part
    without evictable item gives way to the other. A ghost hit moves p by the ratio of the ghosts, at least by 1, when
    room is made for it.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._once, self._again = LruOrder(), LruOrder()
        self._once_ghosts, self._again_ghosts = GhostKeys(capacity), GhostKeys(capacity)
        self._parts: dict[Item, LruOrder] = {}
        self._num_once = 0
        self._target = 0.0

    def stored(self, item: Item, now: int) -> None:
        """The item entered the cache: into T2 if it comes back from a ghost."""
        is_back = self._once_ghosts.discard(item.key) or self._again_ghosts.discard(item.key)
        self._put(item, self._again if is_back else self._once, now)

    def _put(self, item: Item, part: LruOrder, now: int) -> None:
        self._parts[item] = part
        self._num_once += part is self._once
        part.stored(item, now)

    def used(self, item: Item, now: int) -> None:
        """A request found the item: it belongs to T2 from now on."""
        if self._parts[item] is self._once:
            self.removed(item)
            self._put(item, self._again, now)
        else:
            self._again.used(item, now)

    def released(self, item: Item, now: int) -> None:
        """The item is evictable from now on."""
        self._parts[item].released(item, now)

    def claimed(self, item: Item) -> None:
        """The item is not evictable any more."""
        self._parts[item].claimed(item)

    def removed(self, item: Item) -> None:
        """The item left the cache."""
        part = self._parts.pop(item)
        self._num_once -= part is self._once
        part.removed(item)

    def _adapted_target(self, incoming: Incoming | None) -> float:
        if incoming is None:
            return self._target
        num_once, num_again = len(self._once_ghosts), len(self._again_ghosts)
        if incoming.key in self._once_ghosts:
            return min(self._capacity, self._target + max(1.0, num_again / num_once))
        if incoming.key in self._again_ghosts:
            return max(0.0, self._target - max(1.0, num_once / num_again))
        return self._target

    def adapt(self, incoming: Incoming) -> None:
        """Move the border if the block comes back from a ghost."""
        self._target = self._adapted_target(incoming)

    def _choose(self, incoming: Incoming | None, target: float) -> Item | None:
        is_again_ghost = incoming is not None and incoming.key in self._again_ghosts
        prefers_once = self._num_once > target or (self._num_once == target and is_again_ghost)
        first, second = (self._once, self._again) if prefers_once else (self._again, self._once)
        return first.peek() or second.peek()

    def peek(self, incoming: Incoming | None = None) -> Item | None:
        """The item to go next. Changes nothing."""
        return self._choose(incoming, self._adapted_target(incoming))

    def take(self, incoming: Incoming | None = None) -> Item | None:
        """Evict, and remember the key."""
        self._target = self._adapted_target(incoming)
        item = self._choose(incoming, self._target)
        if item is not None:
            part = self._parts.pop(item)
            part.take()
            if part is self._once:
                self._num_once -= 1
                self._once_ghosts.add(item.key)
            else:
                self._again_ghosts.add(item.key)
        return item
