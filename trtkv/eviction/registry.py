"""Eviction policies by name. A new policy is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from trtkv.errors import ConfigurationError
from trtkv.eviction.fifo import FIFO
from trtkv.eviction.lru import LRU
from trtkv.eviction.protocol import PolicyFactory


class Eviction(NamedTuple):
    """How victims are chosen."""

    make_policy: PolicyFactory
    by_priority: bool = False
    """Whether blocks of lower priority go first, each priority in an order of its own. Otherwise retention priorities
    are kept and reported, but do not protect a block."""


DEFAULT_EVICTION: Final = "priority-lru"

EVICTIONS: Final[Mapping[str, Eviction]] = {
    DEFAULT_EVICTION: Eviction(LRU, by_priority=True),
    "lru": Eviction(LRU),
    "fifo": Eviction(FIFO),
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
