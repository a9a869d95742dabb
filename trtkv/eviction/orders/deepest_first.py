"""Deepest first: the block with most blocks before it goes first. Mooncake's "length aware" without the counts."""

from __future__ import annotations

from trtkv.eviction.orders.order import Item
from trtkv.eviction.orders.ranked_order import Rank, RecencyOrder


class DeepestFirstOrder(RecencyOrder):
    """Victim: the smallest (-depth, last use)."""

    def rank(self, item: Item) -> Rank:
        """Depth, then as LRU."""
        return (-item.depth, self.last[item])
