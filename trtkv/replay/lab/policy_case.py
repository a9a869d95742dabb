"""A small worked case of policies: a few prompts through a small cache, and what each rule finds, evicts and keeps."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final

from trtkv.common import Priority
from trtkv.eviction.orders.registry import OrderSpec
from trtkv.replay.lab.admission import make_admission
from trtkv.replay.lab.clairvoyant_cache import clairvoyant_found, infinite_found
from trtkv.replay.lab.prefix_cache import PrefixCache

_ADMISSIONS: Final[Mapping[str, str]] = {"": "all", "second": "second-use", "tinylfu": "tinylfu"}
_PRIORITIES: Final = re.compile(r"priority\(first block (\d+), others (\d+)\)")

BlockPath = list[tuple[str, ...]]


def run_policy_case(case: Mapping[str, Any]) -> Iterator[tuple[str, object, object]]:
    """(name, expected, found) of every outcome a case states: both bounds, then one a rule."""
    paths = [block_path(names) for names in case["requests"]]
    capacity = case["capacity_blocks"]
    yield "clairvoyant_found", case["clairvoyant_found"], sum(clairvoyant_found(paths, capacity))
    yield "infinite_found", case["infinite_found"], sum(infinite_found(paths))
    for rule, expected in case["policies"].items():
        found = _run(_build_cache(rule, capacity), paths)
        yield rule, expected, {name: found[name] for name in expected}


def block_path(names: Sequence[str]) -> BlockPath:
    """Names of blocks as keys: each is named together with those before it."""
    return [tuple(names[: end + 1]) for end in range(len(names))]


def _build_cache(rule: str, capacity: int) -> PrefixCache:
    match = _PRIORITIES.fullmatch(rule)
    order, _, admission = ("priority", "", "") if match else rule.partition("+")
    return PrefixCache(
        capacity,
        OrderSpec(order).make(capacity),
        make_admission(_ADMISSIONS.get(admission, admission), capacity),
        priority_of=_by_depth(*map(int, match.groups())) if match else lambda depth: 0,
    )


def _by_depth(first: Priority, others: Priority) -> Callable[[int], Priority]:
    return lambda depth: others if depth else first


def _run(cache: PrefixCache, paths: Sequence[BlockPath]) -> dict[str, object]:
    served = [cache.serve(path) for path in paths]
    found = [one.found for one in served]
    return {
        "found": found,
        "evicted": [[_text(key) for key in one.evicted] for one in served],
        "resident": sorted(_text(key) for key in cache.resident),
        "found_total": sum(found),
        "not_admitted": sum(one.not_admitted for one in served),
    }


def _text(key: Hashable) -> str:
    return "/".join(key) if isinstance(key, tuple) else str(key)
