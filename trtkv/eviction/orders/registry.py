"""Eviction orders by name. A new one is a module of its own and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from random import Random
from typing import Final, NamedTuple

from trtkv.errors import ConfigurationError
from trtkv.eviction.orders.arc import ArcOrder
from trtkv.eviction.orders.deepest_first import DeepestFirstOrder
from trtkv.eviction.orders.fifo import FifoOrder
from trtkv.eviction.orders.filo import FiloOrder
from trtkv.eviction.orders.gdsf import GdsfOrder
from trtkv.eviction.orders.lfu import LfuOrder
from trtkv.eviction.orders.lfu_da import LfuDaOrder
from trtkv.eviction.orders.lru import LruOrder
from trtkv.eviction.orders.lru_2 import Lru2Order
from trtkv.eviction.orders.mru import MruOrder
from trtkv.eviction.orders.order import EvictionOrder
from trtkv.eviction.orders.priority_lru import PriorityLruOrder
from trtkv.eviction.orders.random_order import RandomOrder
from trtkv.eviction.orders.s3_fifo import S3FifoOrder
from trtkv.eviction.orders.sieve import SieveOrder
from trtkv.eviction.orders.slru import SlruOrder
from trtkv.eviction.orders.two_queues import TwoQueuesOrder

ORDERS: Final[Mapping[str, Callable[..., EvictionOrder]]] = {
    "lru": LruOrder,
    "priority": PriorityLruOrder,
    "fifo": FifoOrder,
    "filo": FiloOrder,
    "mru": MruOrder,
    "lfu": LfuOrder,
    "lfu-da": LfuDaOrder,
    "gdsf": GdsfOrder,
    "slru": SlruOrder,
    "lru-2": Lru2Order,
    "2q": TwoQueuesOrder,
    "s3-fifo": S3FifoOrder,
    "sieve": SieveOrder,
    "arc": ArcOrder,
    "deepest-first": DeepestFirstOrder,
    "random": RandomOrder,
}


class OrderSpec(NamedTuple):
    """A named order with its options, as a user writes it."""

    name: str
    options: Mapping[str, float] = {}

    def make(self, capacity: int, seed: int = 0) -> EvictionOrder:
        """A new order for a cache of ``capacity`` blocks. ``seed`` is for the orders that draw."""
        make = ORDERS.get(self.name)
        if make is None:
            raise ConfigurationError(f"eviction order {self.name!r} is not known; choose from {', '.join(ORDERS)}")
        parameters = signature(make).parameters
        given: dict[str, object] = {}
        for name, value in self.options.items():
            parameter = name.replace("-", "_")
            if parameter not in parameters or parameter in ("capacity", "random"):
                known = [p.replace("_", "-") for p in parameters if p not in ("capacity", "random")]
                raise ConfigurationError(
                    f"eviction order {self.name} has no option {name!r}; it has {', '.join(known) or 'none'}"
                )
            given[parameter] = value
        if "capacity" in parameters:
            given["capacity"] = capacity
        if "random" in parameters:
            given["random"] = Random(seed)
        return make(**given)
