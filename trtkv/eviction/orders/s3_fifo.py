"""S3-FIFO: a small FIFO queue before the main one, and ghosts of the small one (Yang et al., SOSP 2023)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from sortedcontainers import SortedDict

from trtkv.errors import ConfigurationError
from trtkv.eviction.orders.ghost_keys import GhostKeys
from trtkv.eviction.orders.order import Incoming, Item

_MAX_USES: Final = 3
_USES_TO_MOVE: Final = 2


class _Queue:
    """Items in the order of their arrival; those that are evictable apart."""

    __slots__ = ("_evictable", "_serial", "places")

    def __init__(self) -> None:
        self.places: dict[Item, int] = {}
        self._evictable: SortedDict[int, Item] = SortedDict()
        self._serial = 0

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Item]:
        """Evictable items, oldest first."""
        return iter(self._evictable.values())

    @property
    def has_evictable(self) -> bool:
        return bool(self._evictable)

    def append(self, item: Item) -> None:
        self._serial += 1
        self.places[item] = self._serial

    def set_evictable(self, item: Item) -> None:
        self._evictable[self.places[item]] = item

    def unset_evictable(self, item: Item) -> None:
        self._evictable.pop(self.places[item], None)

    def remove(self, item: Item) -> None:
        self.unset_evictable(item)
        del self.places[item]


class _Choice(NamedTuple):
    victim: Item | None
    moved: list[Item]
    """From the small queue to the head of the main one."""
    rounds: int
    """Times that the whole main queue was passed, each costing every evictable item one use."""
    returned: list[Item]
    """Passed after that, back to the head of the main queue."""


class S3FifoOrder:
    """The small queue gives the victim while it holds its share of ``capacity``, else the main one.

    Small queue: an item with two uses or more moves to the main queue, the first other one goes, and its key is
    remembered. Main queue: a used item returns to its head for one use less. A key that is remembered enters the main
    queue. Items that are not evictable keep their place. Each step back or over is paid for by a use, so taking is
    O(log n) a use.
    """

    def __init__(self, capacity: int, small: float = 0.1) -> None:
        if not 0 < small < 1:
            raise ConfigurationError(f"small is {small}; give a share between 0 and 1")
        self._share = max(1, int(small * capacity))
        self._small, self._main = _Queue(), _Queue()
        self._ghosts = GhostKeys(max(0, capacity - self._share))
        self._uses: dict[Item, int] = {}

    def _queue_of(self, item: Item) -> _Queue:
        return self._small if item in self._small.places else self._main

    def stored(self, item: Item, now: int) -> None:
        """The item entered the cache."""
        self._uses[item] = 0
        (self._main if self._ghosts.discard(item.key) else self._small).append(item)

    def used(self, item: Item, now: int) -> None:
        """A request found the item."""
        self._uses[item] = min(_MAX_USES, self._uses[item] + 1)

    def released(self, item: Item, now: int) -> None:
        """The item is evictable from now on."""
        self._queue_of(item).set_evictable(item)

    def claimed(self, item: Item) -> None:
        """The item is not evictable any more."""
        self._queue_of(item).unset_evictable(item)

    def removed(self, item: Item) -> None:
        """The item left the cache."""
        self._queue_of(item).remove(item)
        del self._uses[item]

    def _choose(self) -> _Choice:
        moved: list[Item] = []
        if len(self._small) >= self._share:
            victim = self._choose_small(moved, keep_share=True)
            if victim is not None:
                return _Choice(victim, moved, 0, [])
        if not moved and not self._main.has_evictable:
            victim = self._choose_small(moved, keep_share=False)
            if victim is not None:
                return _Choice(victim, moved, 0, [])
        return self._choose_main(moved)

    def _choose_main(self, moved: list[Item]) -> _Choice:
        """The first item of the main queue without uses, those moved into it included."""
        passed: list[Item] = []
        for item in self._main:
            if not self._uses[item]:
                return _Choice(item, moved, 0, passed)
            passed.append(item)
        if moved:
            return _Choice(moved[0], moved, 0, passed)
        if not passed:
            return _Choice(None, moved, 0, [])
        rounds = min(self._uses[item] for item in passed)
        place = next(i for i, item in enumerate(passed) if self._uses[item] == rounds)
        return _Choice(passed[place], moved, rounds, passed[:place])

    def _choose_small(self, moved: list[Item], *, keep_share: bool) -> Item | None:
        """The first item of the small queue that goes; those before it are added to ``moved``."""
        for item in self._small:
            if keep_share and len(self._small) - len(moved) < self._share:
                return None
            if self._uses[item] < _USES_TO_MOVE:
                return item
            moved.append(item)
        return None

    def peek(self, incoming: Incoming | None = None) -> Item | None:
        """The item to go next. Changes nothing."""
        return self._choose().victim

    def take(self, incoming: Incoming | None = None) -> Item | None:
        """Evict; items passed on the way move."""
        victim, moved, rounds, returned = self._choose()
        for item in moved:
            self._small.remove(item)
            self._append_to_main(item, 0)
        if rounds:
            for item in self._main:
                self._uses[item] -= rounds
        for item in returned:
            self._main.remove(item)
            self._append_to_main(item, self._uses[item] - 1)
        if victim is not None:
            if victim in self._small.places:
                self._ghosts.add(victim.key)
            self.removed(victim)
        return victim

    def _append_to_main(self, item: Item, uses: int) -> None:
        self._uses[item] = uses
        self._main.append(item)
        self._main.set_evictable(item)
