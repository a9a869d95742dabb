"""FIFO: the oldest insertion goes first; uses do not count. SGLang offers it."""

from __future__ import annotations

from trtkv.eviction.orders.order import Item
from trtkv.eviction.orders.ranked_order import Rank, RankedOrder


class FifoOrder(RankedOrder):
    """Victim: the smallest (insertion, -depth)."""

    def __init__(self) -> None:
        super().__init__()
        self.inserted: dict[Item, int] = {}

    def stored(self, item: Item, now: int) -> None:
        """The item entered the cache."""
        self.inserted[item] = now

    def rank(self, item: Item) -> Rank:
        """Insertion, oldest first."""
        return (self.inserted[item], -item.depth)

    def forget(self, item: Item) -> None:
        """Drop what is kept of an item that left the cache."""
        del self.inserted[item]
