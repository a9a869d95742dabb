"""GDSF: greedy dual size frequency (Cherkasova, 1998): frequency times what it costs to compute the block again."""

from __future__ import annotations

from trtkv.errors import ConfigurationError
from trtkv.eviction.orders.aged_frequency import AgedFrequencyOrder
from trtkv.eviction.orders.order import Item


class GdsfOrder(AgedFrequencyOrder):
    """Victim: the smallest (L + uses x (1 + depth / ``depth_of_equal_cost``), last use, -depth).

    ``depth_of_equal_cost``: blocks before a block at which its attention costs as much as the rest of its layers:
    parameters / (2 x layers x width) tokens, about 30,500 for a model of 8 billion parameters, 60 blocks of 512.
    """

    def __init__(self, depth_of_equal_cost: float = 60.0) -> None:
        if not depth_of_equal_cost > 0:
            raise ConfigurationError(f"depth-of-equal-cost is {depth_of_equal_cost}; give a number above 0")
        super().__init__()
        self._depth_of_equal_cost = depth_of_equal_cost

    def cost(self, item: Item) -> float:
        """Deep blocks cost more to compute again."""
        return 1 + item.depth / self._depth_of_equal_cost
