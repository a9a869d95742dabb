"""Routers by name. A new one is a module of its own and a line here; ``module:Class`` names a router of one's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import signature
from random import Random
from typing import Final

from trtkv.errors import ConfigurationError
from trtkv.fleet.router import Router
from trtkv.fleet.routers.aibrix import AibrixRouter
from trtkv.fleet.routers.cache_aware import CacheAwareRouter
from trtkv.fleet.routers.dynamo_kv import DynamoKvRouter
from trtkv.fleet.routers.first_blocks import FirstBlocksRouter
from trtkv.fleet.routers.greedy import GreedyRouter
from trtkv.fleet.routers.kvaware import KvawareRouter
from trtkv.fleet.routers.least_requests import LeastRequestsRouter
from trtkv.fleet.routers.least_tokens import LeastTokensRouter
from trtkv.fleet.routers.llm_d import LlmDRouter
from trtkv.fleet.routers.lmetric import LmetricRouter
from trtkv.fleet.routers.load_aware import LoadAwareRouter
from trtkv.fleet.routers.power_of_two import PowerOfTwoRouter
from trtkv.fleet.routers.prefix_hash import PrefixHashRouter
from trtkv.fleet.routers.prefixaware import PrefixawareRouter
from trtkv.fleet.routers.random_router import RandomRouter
from trtkv.fleet.routers.round_robin import RoundRobinRouter
from trtkv.fleet.routers.session import SessionRouter
from trtkv.fleet.routers.session_bounded import SessionBoundedRouter
from trtkv.fleet.routers.trtllm_conversation import TrtllmConversationRouter
from trtkv.fleet.routers.trtllm_kv import TrtllmKvRouter
from trtkv.fleet.routers.vllm_dp import VllmDpRouter

ROUTERS: Final[Mapping[str, Callable[..., Router]]] = {
    "round-robin": RoundRobinRouter,
    "random": RandomRouter,
    "least-requests": LeastRequestsRouter,
    "least-tokens": LeastTokensRouter,
    "power-of-two": PowerOfTwoRouter,
    "session": SessionRouter,
    "session-bounded": SessionBoundedRouter,
    "first-blocks": FirstBlocksRouter,
    "prefix-hash": PrefixHashRouter,
    "cache-aware": CacheAwareRouter,
    "aibrix": AibrixRouter,
    "trtllm-kv": TrtllmKvRouter,
    "trtllm-conversation": TrtllmConversationRouter,
    "dynamo-kv": DynamoKvRouter,
    "lmetric": LmetricRouter,
    "llm-d": LlmDRouter,
    "kvaware": KvawareRouter,
    "prefixaware": PrefixawareRouter,
    "greedy": GreedyRouter,
    "load-aware": LoadAwareRouter,
    "vllm-dp": VllmDpRouter,
}


def make_router(name: str, options: Mapping[str, float] | None = None, seed: int = 0) -> Router:
    """A new router. ``options`` are its own, by the names of the command line; ``seed`` is for those that draw."""
    make = _find(name)
    parameters = signature(make).parameters
    given: dict[str, object] = {"random": Random(seed)} if "random" in parameters else {}
    for option, value in (options or {}).items():
        parameter = option.replace("-", "_")
        if parameter not in parameters or parameter == "random":
            known = ", ".join(p.replace("_", "-") for p in parameters if p != "random") or "none"
            raise ConfigurationError(f"router {name} has no option {option!r}; it has {known}")
        given[parameter] = value
    return make(**given)


def _find(name: str) -> Callable[..., Router]:
    if name in ROUTERS:
        return ROUTERS[name]
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ConfigurationError(
            f"router {name!r} is not known; choose from {', '.join(ROUTERS)}, or give module:Class"
        )
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"router {name!r} cannot be loaded: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Router)):
        raise ConfigurationError(f"router {name!r} is not a class derived from Router")
    return found
