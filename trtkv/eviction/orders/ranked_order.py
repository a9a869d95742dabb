"""RankedOrder: the evictable item of the smallest rank goes next."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from trtkv.eviction.orders.order import Incoming, Item

Rank = tuple[float, ...]

_SLACK: Final = 64
"""Outdated heap entries that are not worth a clean-up."""


class RankedOrder:
    """Base of the orders that give each item a rank which does not change while the item is evictable.

    A subclass says what it keeps of an item in ``stored`` and ``used`` and computes ``rank`` from it. A heap with
    outdated entries: releasing and taking are O(log n), claiming is O(1).
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int, Item]] = []
        self._serials: dict[Item, int] = {}  # of evictable items: which of their heap entries counts
        self._next_serial = 0

    def __len__(self) -> int:
        """Evictable items."""
        return len(self._serials)

    def rank(self, item: Item) -> Rank:
        """The rank of an item as it is now; distinct for items that may be evictable at one time."""
        raise LookupError(f"{type(self).__name__} ranks nothing")

    def stored(self, item: Item, now: int) -> None:
        """The item entered the cache: its first use."""
        self.used(item, now)

    def used(self, item: Item, now: int) -> None:
        """A request found the item."""

    def released(self, item: Item, now: int) -> None:
        """The item is evictable from now on."""
        serial = self._serials[item] = self._next_serial
        self._next_serial += 1
        heappush(self._heap, (self.rank(item), serial, item))
        if len(self._heap) > 2 * len(self._serials) + _SLACK:
            self._heap = [entry for entry in self._heap if self._serials.get(entry[2]) == entry[1]]
            heapify(self._heap)

    def claimed(self, item: Item) -> None:
        """The item is not evictable any more."""
        self._serials.pop(item, None)

    def removed(self, item: Item) -> None:
        """The item left the cache."""
        self._serials.pop(item, None)
        self.forget(item)

    def forget(self, item: Item) -> None:
        """Drop what is kept of an item that left the cache."""

    def evicted(self, item: Item, rank: Rank) -> None:
        """Hook: the item was taken with this rank."""

    def peek(self, incoming: Incoming | None = None) -> Item | None:
        """The item to go next. Changes nothing that can be seen."""
        heap, serials = self._heap, self._serials
        while heap:
            _, serial, item = heap[0]
            if serials.get(item) == serial:
                return item
            heappop(heap)
        return None

    def take(self, incoming: Incoming | None = None) -> Item | None:
        """Evict the item of the smallest rank."""
        item = self.peek(incoming)
        if item is not None:
            rank, _, _ = heappop(self._heap)
            del self._serials[item]
            self.evicted(item, rank)
            self.forget(item)
        return item


class RecencyOrder(RankedOrder):
    """Base of the ranked orders that know when each item was last used."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[Item, int] = {}

    def used(self, item: Item, now: int) -> None:
        """A request found the item."""
        self.last[item] = now

    def forget(self, item: Item) -> None:
        """Drop what is kept of an item that left the cache."""
        del self.last[item]


class CountingOrder(RecencyOrder):
    """Base of the ranked orders that also count uses, the insertion included; an eviction loses the count."""

    def __init__(self) -> None:
        super().__init__()
        self.uses: dict[Item, int] = {}

    def used(self, item: Item, now: int) -> None:
        """A request found the item."""
        super().used(item, now)
        self.uses[item] = self.uses.get(item, 0) + 1

    def forget(self, item: Item) -> None:
        """Drop what is kept of an item that left the cache."""
        super().forget(item)
        del self.uses[item]
