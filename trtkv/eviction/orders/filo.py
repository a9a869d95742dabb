"""FILO: the newest insertion goes first. SGLang offers it; a baseline."""

from __future__ import annotations

from trtkv.eviction.orders.fifo import FifoOrder
from trtkv.eviction.orders.order import Item
from trtkv.eviction.orders.ranked_order import Rank


class FiloOrder(FifoOrder):
    """Victim: the smallest (-insertion, -depth)."""

    def rank(self, item: Item) -> Rank:
        """Insertion, newest first."""
        return (-self.inserted[item], -item.depth)
