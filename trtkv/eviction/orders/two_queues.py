"""2Q: new items pass a FIFO queue; what comes back from its ghosts enters an LRU (Johnson, Shasha 1994)."""

from __future__ import annotations

from trtkv.eviction.orders.fifo import FifoOrder
from trtkv.eviction.orders.ghost_keys import GhostKeys
from trtkv.eviction.orders.lru import LruOrder
from trtkv.eviction.orders.order import Incoming, Item


class TwoQueuesOrder:
    """A1in, a FIFO queue of a quarter of ``capacity``; Am, an LRU; ghosts of half of ``capacity``, fed by A1in only.

    Victim: A1in's oldest while A1in holds more than its share, else Am's; a part without evictable item gives way to
    the other. A use in A1in does not move an item.
    """

    def __init__(self, capacity: int) -> None:
        self._new, self._kept = FifoOrder(), LruOrder()
        self._ghosts = GhostKeys(max(1, capacity // 2))
        self._share = max(1, capacity // 4)
        self._parts: dict[Item, FifoOrder | LruOrder] = {}
        self._num_new = 0

    def stored(self, item: Item, now: int) -> None:
        """The item entered the cache."""
        part = self._kept if self._ghosts.discard(item.key) else self._new
        self._parts[item] = part
        self._num_new += part is self._new
        part.stored(item, now)

    def used(self, item: Item, now: int) -> None:
        """A request found the item."""
        self._parts[item].used(item, now)

    def released(self, item: Item, now: int) -> None:
        """The item is evictable from now on."""
        self._parts[item].released(item, now)

    def claimed(self, item: Item) -> None:
        """The item is not evictable any more."""
        self._parts[item].claimed(item)

    def removed(self, item: Item) -> None:
        """The item left the cache."""
        part = self._parts.pop(item)
        self._num_new -= part is self._new
        part.removed(item)

    def peek(self, incoming: Incoming | None = None) -> Item | None:
        """The item to go next. Changes nothing."""
        first, second = (self._new, self._kept) if self._num_new > self._share else (self._kept, self._new)
        return first.peek() or second.peek()

    def take(self, incoming: Incoming | None = None) -> Item | None:
        """Evict."""
        item = self.peek(incoming)
        if item is not None:
            part = self._parts.pop(item)
            part.take()
            if part is self._new:
                self._num_new -= 1
                self._ghosts.add(item.key)
        return item
