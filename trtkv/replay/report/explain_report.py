"""Tables of causes, evictions, bounds and the capacity curve for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trtkv.replay.causes.causes import CAUSES, Cause
from trtkv.replay.causes.explanation import needed_for, tier_name
from trtkv.replay.report.wording import count, rate_value, share

if TYPE_CHECKING:
    from rich.table import Table

    from trtkv.replay.bounds.bounds import Bounds
    from trtkv.replay.bounds.capacity_curve import CapacityCurve
    from trtkv.replay.causes.explanation import Explanation
    from trtkv.replay.result import ReplayResult

AGES = {
    "idle_requests": "unused before it was lost, requests",
    "idle_tokens": "unused before it was lost, tokens allocated",
    "late_requests": "lost before it was wanted, requests",
    "late_tokens": "lost before it was wanted, tokens allocated",
}


def extra_tables(result: ReplayResult) -> list[Table]:
    """What a result has beyond its counts, as tables."""
    tables = []
    if result.bounds is not None:
        tables.append(_bounds_table(result, result.bounds))
    if result.explanation is not None:
        tables.append(_causes_table(result.explanation))
        if result.explanation.losses.num_tokens:
            tables += [_losses_table(result.explanation), _ages_table(result.explanation)]
    if result.curve is not None and result.curve.measured:
        tables.append(_curve_table(result.curve))
    return tables


def extra_definitions(result: ReplayResult) -> list[str]:
    """Definitions of what the tables show."""
    lines = []
    if result.bounds is not None:
        lines += [f"{rate.name}: {rate.definition}" for rate in result.bounds.rates]
    if result.explanation is not None:
        found = result.explanation.tokens
        lines += [f"{cause.label}: {cause.definition}" for cause in CAUSES if cause is not Cause.HIT and found[cause]]
    return lines


def _table(title: str, first: str, *numbers: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _bounds_table(result: ReplayResult, bounds: Bounds) -> Table:
    table = _table("Bounds of the token hit rate", "rate", "value", "numerator", "denominator")
    measured = next(rate for rate in result.rates if rate.name == "token_hit_rate")
    for rate in (measured, *reversed(bounds.rates)):
        table.add_row(rate.name, rate_value(rate), count(rate.numerator), count(rate.denominator))
    return table


def _causes_table(explanation: Explanation) -> Table:
    table = _table("Every prompt token of the trace by cause", "cause", "tokens", "share")
    total = explanation.prompt_tokens
    for cause, number in explanation.tokens.items():
        table.add_row(cause.label, count(number), share(number, total))
    table.add_section()
    table.add_row("all", count(total), share(total, total))
    return table


def loss_rows(explanation: Explanation) -> list[tuple[str, int]]:
    """How evicted tokens were lost, the most first."""
    kinds = sorted(explanation.losses.by_kind.items(), key=lambda item: (-item[1], item[0]))
    return [
        (f"{kind.reason.value}, {tier_name(kind.level)} tier, for {needed_for(kind.in_decode)} blocks", number)
        for kind, number in kinds
    ]


def evictor_rows(explanation: Explanation) -> list[tuple[str, int]]:
    """Requests that cost the most."""
    return [(f"by request {request_id}", number) for request_id, number in explanation.top_evictors()]


def age_rows(explanation: Explanation) -> list[tuple[str, Sequence[int]]]:
    """Quantiles of ages, over evicted tokens."""
    return [(AGES[name], list(values.values())) for name, values in explanation.losses.quantiles().items()]


def _losses_table(explanation: Explanation) -> Table:
    table = _table("Evicted tokens: how, and by whose allocation", "how", "tokens", "share")
    total = explanation.losses.num_tokens
    for name, number in loss_rows(explanation):
        table.add_row(name, count(number), share(number, total))
    table.add_section()
    for name, number in evictor_rows(explanation):
        table.add_row(name, count(number), share(number, total))
    return table


def _ages_table(explanation: Explanation) -> Table:
    table = _table("Evicted tokens: after how long", "age", "p10", "p50", "p90", "max")
    for name, values in age_rows(explanation):
        table.add_row(name, *map(count, values))
    return table


def _curve_table(curve: CapacityCurve) -> Table:
    table = _table("Token hit rate by capacity", "capacity, tokens", "measured", "clairvoyant", "never run")
    for point in curve.measured:
        best = point.clairvoyant_tokens
        table.add_row(
            count(point.capacity_tokens),
            share(point.found_tokens, point.prompt_tokens),
            "-" if best is None else share(best, point.prompt_tokens),
            count(point.skipped_requests),
        )
    return table
