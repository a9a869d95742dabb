"""LRU: the least recently used goes first. What SGLang, vLLM and LMCache do by default."""

from __future__ import annotations

from trtkv.eviction.orders.order import Item
from trtkv.eviction.orders.ranked_order import Rank, RecencyOrder


class LruOrder(RecencyOrder):
    """Victim: the smallest (last use, -depth)."""

    def rank(self, item: Item) -> Rank:
        """Last use, deepest first among those of one request."""
        return (self.last[item], -item.depth)
