"""Priority LRU: the lowest retention priority goes first, then the least recently used. TensorRT-LLM's order."""

from __future__ import annotations

from trtkv.eviction.orders.order import Item
from trtkv.eviction.orders.ranked_order import Rank, RecencyOrder


class PriorityLruOrder(RecencyOrder):
    """Victim: the smallest (priority, last use, -depth)."""

    def rank(self, item: Item) -> Rank:
        """Priority, then as LRU."""
        return (item.priority, self.last[item], -item.depth)
