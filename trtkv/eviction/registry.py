"""Eviction policies by name. A new one is a file in ``orders`` and a line in its registry, or a class named here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from trtkv.errors import ConfigurationError
from trtkv.eviction.lru import LRU
from trtkv.eviction.ordered_policy import OrderedPolicy
from trtkv.eviction.orders.order import EvictionOrder
from trtkv.eviction.orders.registry import ORDERS, OrderSpec
from trtkv.eviction.protocol import LevelOfBlocks, PolicyFactory


class Eviction(NamedTuple):
    """How victims are chosen."""

    make_policy: PolicyFactory
    by_priority: bool = False
    """Whether blocks of lower priority go first, each priority in an order of its own. Otherwise retention priorities
    are kept and reported, but do not protect a block."""


DEFAULT_EVICTION: Final = "priority-lru"
_BY_RELEASE: Final[Mapping[str, Eviction]] = {
    DEFAULT_EVICTION: Eviction(LRU, by_priority=True),
    "lru": Eviction(LRU),
}
"""Policies that take blocks in the order of their release: one behind another goes before it without further ado."""


def order_eviction(
    name: str, options: Mapping[str, float] | None = None, *, leaves_only: bool = True, seed: int = 0
) -> Eviction:
    """A policy made of an eviction order with its options; ``seed`` is for orders that draw.

    With ``leaves_only`` no block goes while a block behind it is cached. Raises ConfigurationError for a name or an
    option that is not known, and for options of a policy that has none.
    """
    if name in _BY_RELEASE:
        if options or not leaves_only:
            raise ConfigurationError(
                f"eviction {name} takes blocks in the order of their release and has no options; leave them out"
            )
        return _BY_RELEASE[name]
    spec = OrderSpec(name, {} if options is None else dict(options))
    spec.make(1, seed)  # tells what is wrong now
    return Eviction(partial(OrderedPolicy, make_order=partial(_make_order, spec, seed), leaves_only=leaves_only))


def _make_order(spec: OrderSpec, seed: int, level: LevelOfBlocks) -> EvictionOrder:
    return spec.make(max(1, level.num_blocks), seed)


EVICTIONS: Final[Mapping[str, Eviction]] = {
    **_BY_RELEASE,
    **{name: order_eviction(name) for name in ORDERS if name not in ("lru", "priority")},
}
"""Name -> policy; the first is that of the original."""


def find_eviction(eviction: object, compatibility: bool = False) -> Eviction:
    """The policy of a name; an Eviction is returned as it is, a factory as a policy without priorities.

    ConfigurationError for unknown names, and for any other policy than that of the original with ``compatibility``.
    """
    found = _find(eviction)
    if compatibility and found != EVICTIONS[DEFAULT_EVICTION]:
        raise ConfigurationError(
            f"eviction {eviction!r} is incompatible with compatibility=True, which reproduces {DEFAULT_EVICTION!r}"
        )
    return found


def _find(eviction: object) -> Eviction:
    if isinstance(eviction, Eviction):
        return eviction
    if isinstance(eviction, str):
        found = EVICTIONS.get(eviction)
        if found is None:
            raise ConfigurationError(f"unknown eviction policy {eviction!r}; choose one of {', '.join(EVICTIONS)}")
        return found
    if not callable(eviction):
        raise ConfigurationError(
            f"eviction is {eviction!r}; give the name of a policy ({', '.join(EVICTIONS)}) or a function that makes one"
        )
    return Eviction(eviction)
