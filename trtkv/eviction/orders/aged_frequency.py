"""AgedFrequencyOrder: frequency that ages, the common part of LFU-DA and GDSF."""

from __future__ import annotations

from trtkv.eviction.orders.order import Item
from trtkv.eviction.orders.ranked_order import CountingOrder, Rank


class AgedFrequencyOrder(CountingOrder):
    """Victim: the smallest (key, last use, -depth), where key = L + uses x cost, set at each use.

    L is the largest key evicted so far, so an item that is not used again is overtaken in the end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[Item, float] = {}
        self.age = 0.0

    def cost(self, item: Item) -> float:
        """What one use of the item is worth."""
        return 1.0

    def used(self, item: Item, now: int) -> None:
        """A request found the item."""
        super().used(item, now)
        self.keys[item] = self.age + self.uses[item] * self.cost(item)

    def rank(self, item: Item) -> Rank:
        """Key, then as LRU."""
        return (self.keys[item], self.last[item], -item.depth)

    def evicted(self, item: Item, rank: Rank) -> None:
        """L grows with what is evicted."""
        self.age = max(self.age, rank[0])

    def forget(self, item: Item) -> None:
        """Drop what is kept of an item that left the cache."""
        super().forget(item)
        del self.keys[item]
