"""LRU-2: the item whose last use but one is the oldest goes first (O'Neil et al., 1993)."""

from __future__ import annotations

from trtkv.eviction.orders.order import Item
from trtkv.eviction.orders.ranked_order import Rank, RecencyOrder


class Lru2Order(RecencyOrder):
    """Victim: the smallest (last use but one, last use, -depth); items used once come before all others."""

    def __init__(self) -> None:
        super().__init__()
        self.last_but_one: dict[Item, int] = {}

    def used(self, item: Item, now: int) -> None:
        """A request found the item."""
        self.last_but_one[item] = self.last.get(item, -1)
        super().used(item, now)

    def rank(self, item: Item) -> Rank:
        """The last use but one, then as LRU."""
        return (self.last_but_one[item], self.last[item], -item.depth)

    def forget(self, item: Item) -> None:
        """Drop what is kept of an item that left the cache."""
        super().forget(item)
        del self.last_but_one[item]
