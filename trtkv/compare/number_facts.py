"""Bundled reference numbers as facts: under which name, definition and settings a result may hold one."""

from __future__ import annotations

from typing import Any, NamedTuple

from trtkv.compare.comparison import NotComparableError
from trtkv.compare.facts import Facts
from trtkv.compare.reference import ReferenceNumber
from trtkv.replay.bounds import bounds
from trtkv.replay.closed_loop import result as replay_result
from trtkv.replay.nano import nano_result
from trtkv.traces.info import trace_info

SHORT_TRACES = {
    "mooncake-conversation": "conversation",
    "mooncake-synthetic": "synthetic",
    "sharegpt-llama": "sharegpt-llama",
}
"""Names of reference numbers -> names of results."""


class Place(NamedTuple):
    """A fact that means the number, and the settings it needs for that."""

    name: str
    definition: str
    settings: dict[str, Any]


def places_of(number: ReferenceNumber) -> list[Place]:
    """Facts that a number can be compared with; none for numbers that only ``trtkv reference check`` finds again."""
    block = number.args.get("tokens_per_block")
    unlimited = {"capacity_tokens": "inf", "host_tokens": 0, "live": 1}
    if number.method == "infinite_tokens" and number.args.get("keep_last", True):
        return _token_places(block, unlimited)
    if number.method == "infinite_blocks":
        return [Place("infinite_block_hit_rate", trace_info.BLOCK_RATE, {"tokens_per_block": block})]
    if number.method == "infinite_capped_blocks":
        return [
            Place("infinite_full_block_hit_rate", trace_info.ENGINE_RATE, {"tokens_per_block": block}),
            Place("block_hit_rate", nano_result.BLOCK_HIT_RATE, {"tokens_per_block": block, **unlimited}),
        ]
    if number.method == "mean_blocks":
        return [Place("infinite_mean_block_hit_rate", trace_info.MEAN_BLOCK_RATE, {"tokens_per_block": block})]
    return []


def _token_places(block: int | None, unlimited: dict[str, Any]) -> list[Place]:
    partial = block == 1
    unit = bounds.unit_text(block or 1, partial_reuse=partial)
    found = bounds.INFINITE_RATE.format(unit=unit)
    sizes = {} if partial else {"tokens_per_block": block}
    places = [
        Place("token_hit_rate", replay_result.TOKEN_HIT_RATE, {**sizes, **unlimited, "partial_reuse": partial}),
        Place("infinite_token_hit_rate", found, {**sizes, "partial_reuse": partial}),
    ]
    if partial:
        places.append(Place("infinite_token_hit_rate", trace_info.TOKEN_RATE, {}))
    return places


def number_facts(number: ReferenceNumber, result: Facts) -> Facts:
    """The number in the place that the result has. Raises NotComparableError if it has none."""
    places = places_of(number)
    for place in places:
        fact = result.facts.get(place.name)
        if fact is not None and fact.definition == place.definition:
            facts = Facts(number.id, "reference number", {**place.settings, "trace": _trace_name(number)})
            numerator, denominator = _parts(number, fact.denominator)
            facts.add(place.name, place.definition, numerator, denominator)
            return facts
    if not places:
        raise NotComparableError(f"{number.id} ({number.what}) is found again by trtkv reference check only")
    wanted = " or ".join(f'{place.name} ("{place.definition}")' for place in places)
    has = "; ".join(f'{fact.name} ("{fact.definition}")' for fact in result.facts.values() if fact.is_rate)
    raise NotComparableError(f"{number.id} is {wanted}; {result.label} has {has or 'no rate'}")


def fits(number: ReferenceNumber, result: Facts) -> bool:
    """Whether the number is about the trace, the definition and the settings of the result."""
    try:
        facts = number_facts(number, result)
    except NotComparableError:
        return False
    return all(result.settings.get(key) == wanted for key, wanted in facts.settings.items())


def _parts(number: ReferenceNumber, denominator: int | None) -> tuple[float, int | None]:
    if number.numerator is not None:
        return number.numerator, number.denominator
    return (number.value or 0.0) * (denominator or 1), denominator


def _trace_name(number: ReferenceNumber) -> str:
    return SHORT_TRACES.get(number.trace, number.trace)
