"""SLRU: segmented LRU (Karedla et al., 1994), with SGLang's threshold of two uses and an optional limit."""

from __future__ import annotations

from sortedcontainers import SortedDict

from trtkv.errors import ConfigurationError
from trtkv.eviction.orders.order import Item
from trtkv.eviction.orders.ranked_order import CountingOrder, Rank

_PROTECTED_AT = 2


class SlruOrder(CountingOrder):
    """Victim: the smallest (protected, last use, -depth). An item is protected from its second use on.

    ``protected``: the share of ``capacity`` that may be protected; beyond it the least recently used protected item
    counts as used once again. None is SGLang's rule, without a limit: what was used twice stays for good while
    anything used once is left.
    """

    def __init__(self, capacity: int, protected: float | None = None) -> None:
        if protected is not None and not 0 <= protected <= 1:
            raise ConfigurationError(f"protected is {protected}; give a share between 0 and 1")
        super().__init__()
        self._limit = None if protected is None else int(protected * capacity)
        self._protected: SortedDict[Rank, Item] = SortedDict()  # by (last use, -depth), kept only with a limit

    def used(self, item: Item, now: int) -> None:
        """A request found the item."""
        if self._limit is None:
            super().used(item, now)
            return
        if self.uses.get(item, 0) >= _PROTECTED_AT:
            del self._protected[self._place(item)]
        super().used(item, now)
        if self.uses[item] >= _PROTECTED_AT:
            self._protected[self._place(item)] = item
            while len(self._protected) > self._limit:
                _, demoted = self._protected.popitem(0)
                self.uses[demoted] = 1
                if demoted in self._serials:
                    self.released(demoted, now)  # with its new rank

    def _place(self, item: Item) -> Rank:
        return (self.last[item], -item.depth, id(item))

    def rank(self, item: Item) -> Rank:
        """Whether protected, then as LRU."""
        return (self.uses[item] >= _PROTECTED_AT, self.last[item], -item.depth)

    def forget(self, item: Item) -> None:
        """Drop what is kept of an item that left the cache."""
        if self._limit is not None and self.uses[item] >= _PROTECTED_AT:
            del self._protected[self._place(item)]
        super().forget(item)
