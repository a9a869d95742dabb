"""SIEVE: a FIFO queue with one bit an item and a hand that clears bits (Zhang et al., NSDI 2024)."""

from __future__ import annotations

from sortedcontainers import SortedDict

from trtkv.eviction.orders.order import Incoming, Item

_Place = tuple[int, int, int]


class SieveOrder:
    """The hand goes from the tail (oldest) to the head: a used item loses its bit, the first item without a bit goes.

    Items that are not evictable are passed with their bit untouched. Items of one request enter with the deepest one
    nearest to the tail. After an eviction the hand stands on the next newer item, or at the tail if there is none.
    Evictable items with and without bit are kept sorted by place, so a step costs O(log n) however many are passed.
    """

    def __init__(self) -> None:
        self._places: dict[Item, _Place] = {}
        self._queue: SortedDict[_Place, Item] = SortedDict()
        self._used: set[Item] = set()
        self._plain: SortedDict[_Place, Item] = SortedDict()  # evictable, bit not set
        self._marked: SortedDict[_Place, Item] = SortedDict()  # evictable, bit set
        self._hand: _Place | None = None
        self._serial = 0

    def stored(self, item: Item, now: int) -> None:
        """The item enters the queue at its head."""
        self._serial += 1
        place = self._places[item] = (now, -item.depth, self._serial)
        self._queue[place] = item

    def used(self, item: Item, now: int) -> None:
        """Set the bit."""
        self._used.add(item)

    def released(self, item: Item, now: int) -> None:
        """The item is evictable from now on."""
        (self._marked if item in self._used else self._plain)[self._places[item]] = item

    def claimed(self, item: Item) -> None:
        """The item is not evictable any more."""
        place = self._places[item]
        self._plain.pop(place, None)
        self._marked.pop(place, None)

    def removed(self, item: Item) -> None:
        """The item leaves the queue; the hand moves on if it stood on it."""
        self.claimed(item)
        place = self._places.pop(item)
        self._used.discard(item)
        if self._hand == place:
            self._hand = self._next_newer(place)
        del self._queue[place]

    def _next_newer(self, place: _Place) -> _Place | None:
        index = self._queue.bisect_right(place)
        return self._queue.peekitem(index)[0] if index < len(self._queue) else None

    def _first_from_hand(self, items: SortedDict[_Place, Item]) -> Item | None:
        if not items:
            return None
        index = 0 if self._hand is None else items.bisect_left(self._hand)
        found: Item = items.peekitem(index if index < len(items) else 0)[1]
        return found

    def peek(self, incoming: Incoming | None = None) -> Item | None:
        """The item to go next. Changes nothing."""
        return self._first_from_hand(self._plain) or self._first_from_hand(self._marked)

    def take(self, incoming: Incoming | None = None) -> Item | None:
        """Evict; items that the hand passed on its way have lost their bit."""
        item = self.peek(incoming)
        if item is None:
            return None
        place = self._places[item]
        for passed in self._passed(place, all_of_them=item in self._used):
            passed_item = self._marked.pop(passed)
            self._used.discard(passed_item)
            self._plain[passed] = passed_item
        self._hand = self._next_newer(place)
        self.removed(item)
        return item

    def _passed(self, place: _Place, *, all_of_them: bool) -> list[_Place]:
        """Places of marked items between the hand and a place; all of them if the hand went round."""
        hand = self._hand
        if all_of_them:
            return list(self._marked)
        if hand is None or hand <= place:
            return list(self._marked.irange(hand, place))
        return [*self._marked.irange(hand, None), *self._marked.irange(None, place)]
