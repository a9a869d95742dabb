"""LFU: the least often used goes first. An eviction loses the count, and nothing ages."""

from __future__ import annotations

from trtkv.eviction.orders.order import Item
from trtkv.eviction.orders.ranked_order import CountingOrder, Rank


class LfuOrder(CountingOrder):
    """Victim: the smallest (uses, last use, -depth)."""

    def rank(self, item: Item) -> Rank:
        """Uses, then as LRU."""
        return (self.uses[item], self.last[item], -item.depth)
