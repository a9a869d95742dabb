"""Shows a TraceInfo: tables for people, JSON for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from trtkv.traces.info.trace_info import Lengths, TraceInfo


def trace_info_json(info: TraceInfo) -> str:
    """The info as JSON text with keys in fixed order; equal traces give equal text."""
    return json.dumps(info.to_json(), indent=2) + "\n"


def print_trace_info(info: TraceInfo, console: Console | None = None) -> None:
    """Print tables to the console (default: standard output)."""
    from rich.console import Console

    console = console or Console()
    console.print(_overview(info))
    if info.sharing is None:
        console.print("Only lengths are known: nothing can be said about sharing or reuse.", highlight=False)
        return
    for table in (_sharing(info), _rates(info), _reuse(info), _working_sets(info)):
        console.print(table)


def _overview(info: TraceInfo) -> Table:
    table = _table(f"{info.name} ({info.format})", "", "total", "mean", "min", "p50", "p90", "p99", "max")
    table.add_row("prompt tokens", *_cells(info.prompt_tokens))
    table.add_row("output tokens", *_cells(info.output_tokens))
    caption = f"{info.requests:,} requests"
    if info.span_seconds is not None:
        caption += f" over {info.span_seconds:,.1f} s"
    if info.malformed_rows:
        caption += f"; {info.malformed_rows:,} malformed rows skipped"
    table.caption = caption
    return table


def _sharing(info: TraceInfo) -> Table:
    sharing = info.sharing
    table = _table(f"Sharing, in blocks of {info.tokens_per_block} tokens", "", "count")
    if sharing is None:
        return table
    table.add_row("blocks of all prompts", f"{sharing.blocks:,}")
    table.add_row("distinct blocks", f"{sharing.distinct_blocks:,}")
    for name, count in sharing.distinct_blocks_by_use.items():
        table.add_row(f"  in {name} prompts", f"{count:,}")
    table.add_row("distinct first blocks", f"{sharing.roots:,}")
    table.add_row("forks", f"{sharing.forks:,}")
    table.add_row("longest prompt", f"{sharing.deepest:,}")
    table.add_row("requests that share nothing before them", f"{sharing.zero_hit_requests:,}")
    table.add_row("requests seen before as a whole", f"{sharing.fully_seen_requests:,}")
    for run in sharing.runs:
        table.add_row(f"blocks {run.start:,} to {run.end - 1:,} shared by", f"{run.requests:,} requests")
    return table


def _rates(info: TraceInfo) -> Table:
    table = _table("Cache without limit", "rate", "value", "found", "of", "definition")
    for rate in info.rates:
        value = "-" if rate.value is None else f"{rate.value:.4%}"
        table.add_row(rate.name, value, f"{rate.numerator:,}", f"{rate.denominator:,}", rate.definition)
    return table


def _reuse(info: TraceInfo) -> Table:
    table = _table("Least-recently-used cache, one request at a time", "cache", "blocks", "tokens", "found", "rate")
    blocks = info.sharing.blocks if info.sharing else 0
    for size in info.lru:
        tokens = f"{size.blocks * (info.tokens_per_block or 0):,}"
        rate = f"{size.hits / blocks:.4%}" if blocks else "-"
        table.add_row(f"{size.share:.0%} of distinct blocks", f"{size.blocks:,}", tokens, f"{size.hits:,}", rate)
    quantiles = (info.reuse_distance_blocks or {}).items()
    shown = ", ".join(f"{name} {value:,}" for name, value in quantiles if value is not None)
    table.caption = f"reuse distance in blocks: {shown}" if shown else "no block is reused"
    return table


def _working_sets(info: TraceInfo) -> Table:
    table = _table("Working set: distinct blocks of consecutive requests", "requests", "mean", "largest", "in tokens")
    for window in info.working_sets:
        tokens = f"{window.largest * (info.tokens_per_block or 0):,}"
        table.add_row(f"{window.num_requests:,}", f"{window.mean:,.1f}", f"{window.largest:,}", tokens)
    return table


def _cells(lengths: Lengths) -> list[str]:
    return [f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" for value in lengths]


def _table(title: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", caption_justify="left")
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 or column == "definition" else "right")
    return table
