"""MRU: the most recently used goes first. SGLang offers it; a baseline for what a prefix cache should not do."""

from __future__ import annotations

from trtkv.eviction.orders.order import Item
from trtkv.eviction.orders.ranked_order import Rank, RecencyOrder


class MruOrder(RecencyOrder):
    """Victim: the smallest (-last use, -depth)."""

    def rank(self, item: Item) -> Rank:
        """Last use, newest first."""
        return (-self.last[item], -item.depth)
