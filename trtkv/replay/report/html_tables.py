"""Tables of a replay as HTML, all text escaped. They serve the report page and notebooks alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from trtkv.replay.causes.causes import CAUSES, Cause
from trtkv.replay.causes.explanation import tier_name
from trtkv.replay.report.explain_report import age_rows, evictor_rows, loss_rows
from trtkv.replay.report.wording import count, rate_value, reuse_of_parts, share, tokens

if TYPE_CHECKING:
    from trtkv.records.rate import Rate
    from trtkv.replay.bounds.bounds import Bounds
    from trtkv.replay.bounds.capacity_curve import CapacityCurve
    from trtkv.replay.causes.explanation import Explanation
    from trtkv.replay.result import ReplayResult


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1) -> str:
    """A table; the first ``texts`` columns are text, the others numbers. Everything is escaped."""
    head_cells = "".join(
        f'<th scope="col"{_number_class(column, texts)}>{escape(name)}</th>' for column, name in enumerate(head)
    )
    body = "\n".join(f"<tr>{_cells(row, texts)}</tr>" for row in rows)
    thead = f"<thead><tr>{head_cells}</tr></thead>\n" if head else ""
    return f"<table>\n<caption>{escape(caption)}</caption>\n{thead}<tbody>\n{body}\n</tbody>\n</table>"


def _cells(row: Sequence[str], texts: int) -> str:
    first, *rest = row
    cells = [f'<th scope="row">{escape(first)}</th>']
    cells += [f"<td{_number_class(column, texts)}>{escape(text)}</td>" for column, text in enumerate(rest, 1)]
    return "".join(cells)


def _number_class(column: int, texts: int) -> str:
    return ' class="number" align="right"' if column >= texts else ""


def result_tables(result: ReplayResult) -> str:
    """Settings, counts, rates, and causes if there are any: for a notebook."""
    parts = [settings_table(result), counts_table(result), rates_table(result)]
    if result.explanation is not None:
        parts.append(causes_table(result.explanation))
    return "<div>\n" + "\n".join(parts) + "\n</div>"


def settings_table(result: ReplayResult) -> str:
    """How the trace was replayed."""
    config, trace = result.config, result.trace
    return html_table(
        "Settings",
        (),
        [
            ("trace", trace.name),
            ("format", trace.format),
            ("tokens per block", count(config.tokens_per_block)),
            ("capacity, tokens", tokens(config.capacity_tokens)),
            ("host tier, tokens", count(config.host_tokens)),
            ("live requests, at most", count(config.live)),
            ("partial reuse", reuse_of_parts(result)),
            ("attention windows, tokens", ", ".join("full" if w is None else count(w) for w in config.windows)),
            ("behaviour", "as recorded, faults included" if config.compatibility else "default"),
        ],
    )


def counts_table(result: ReplayResult) -> str:
    """What was counted."""
    counts = result.counts
    rows = [
        ("requests run", counts.requests),
        ("requests never run", counts.skipped_requests),
        ("malformed rows skipped", len(result.trace.faults)),
        ("prompt tokens", counts.prompt_tokens),
        ("prompt tokens found", counts.prepopulated_tokens),
        ("prompt blocks", counts.prompt_blocks),
        ("blocks reused", result.reused),
        ("blocks missed", result.missed),
        ("blocks allocated", result.alloc_total),
        ("decoded tokens", counts.decode_calls),
    ]
    return html_table("Counts", (), [(name, count(number)) for name, number in rows])


def rates_table(result: ReplayResult) -> str:
    """All rates of the run, bounds included, each with both numbers."""
    rates: list[Rate] = [*result.rates]
    if result.bounds is not None:
        rates += result.bounds.rates
    return html_table("Rates", ("rate", "value", "numerator", "denominator"), map(_rate_row, rates))


def windows_table(result: ReplayResult) -> str:
    """Blocks by window."""
    head = ("window, tokens", "hit rate", "reused", "of it in part", "missed", "allocated", "offloaded", "onboarded")
    rows = []
    for window in result.windows:
        numbers = (
            window.reused,
            window.partial_reused,
            window.missed,
            window.alloc_total,
            window.offloaded,
            window.onboarded,
        )
        name = f"{count(window.window_size)}{' (full)' if window.full_attention else ''}"
        rows.append((name, rate_value(window.hit_rate), *map(count, numbers)))
    return html_table("Blocks by attention window", head, rows)


def causes_table(explanation: Explanation) -> str:
    """Every prompt token by cause."""
    total = explanation.prompt_tokens
    rows = [(cause.label, count(number), share(number, total)) for cause, number in explanation.tokens.items()]
    rows.append(("all", count(total), share(total, total)))
    return html_table("Every prompt token of the trace by cause", ("cause", "tokens", "share"), rows)


def loss_tables(explanation: Explanation) -> str:
    """Evicted tokens: how, by whom, after how long."""
    total = explanation.losses.num_tokens
    rows = [*loss_rows(explanation), *evictor_rows(explanation)]
    return "\n".join(
        [
            html_table(
                "Evicted tokens: how, and by whose allocation",
                ("how", "tokens", "share"),
                [(name, count(number), share(number, total)) for name, number in rows],
            ),
            html_table(
                "Evicted tokens: after how long",
                ("age", "p10", "p50", "p90", "max"),
                [(name, *map(count, values)) for name, values in age_rows(explanation)],
            ),
        ]
    )


def priorities_table(explanation: Explanation) -> str:
    """Blocks that left the tree, by why, tier and priority."""
    rows = [
        (count(window.window_size), kind.reason.value, tier_name(kind.level), count(kind.priority), count(number))
        for window in explanation.windows
        for kind, number in sorted(window.removed.items(), key=lambda item: (item[0].priority, item[0]))
    ]
    head = ("window, tokens", "why", "tier", "priority", "blocks")
    return html_table("Blocks that left the tree, by priority", head, rows, texts=3)


def events_table(explanation: Explanation) -> str:
    """What a listener of cache events would have heard of, in blocks."""
    head = ("window, tokens", "stored", "removed", "moved to host", "moved to primary")
    rows = [
        (
            count(window.window_size),
            *map(count, (window.stored, sum(window.removed.values()), window.offloaded, window.onboarded)),
        )
        for window in explanation.windows
    ]
    return html_table("Events of cached blocks", head, rows)


def curve_table(curve: CapacityCurve) -> str:
    """Runs at other capacities."""
    head = ("capacity, tokens", "measured", "clairvoyant", "requests never run")
    rows = [
        (
            count(point.capacity_tokens),
            share(point.found_tokens, point.prompt_tokens),
            "-" if point.clairvoyant_tokens is None else share(point.clairvoyant_tokens, point.prompt_tokens),
            count(point.skipped_requests),
        )
        for point in curve.measured
    ]
    return html_table("Token hit rate by capacity", head, rows)


def definitions(result: ReplayResult) -> list[tuple[str, str]]:
    """Names and definitions of everything shown."""
    pairs = [(rate.name, rate.definition) for rate in [*result.rates, *_bound_rates(result.bounds)]]
    if result.explanation is not None:
        found = result.explanation.tokens
        pairs += [(cause.label, cause.definition) for cause in CAUSES if cause is Cause.HIT or found[cause]]
    if result.curve is not None and result.curve.model:
        pairs.append(("LRU model", result.curve.model_rate(result.curve.model[-1]).definition))
    return pairs


def _bound_rates(bounds: Bounds | None) -> list[Rate]:
    return [] if bounds is None else bounds.rates


def _rate_row(rate: Rate) -> tuple[str, ...]:
    return rate.name, rate_value(rate), count(rate.numerator), count(rate.denominator)
