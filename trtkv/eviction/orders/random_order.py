"""Random eviction: a baseline. The generator comes in by argument, so equal seeds give equal runs."""

from __future__ import annotations

from random import Random

from trtkv.eviction.orders.order import Item
from trtkv.eviction.orders.ranked_order import Rank, RankedOrder


class RandomOrder(RankedOrder):
    """Victim: the smallest number, drawn each time an item becomes evictable."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random

    def rank(self, item: Item) -> Rank:
        """A new number."""
        return (self._random.random(), item.depth)
