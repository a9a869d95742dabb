"""Shows a replay on nano-vllm: a table for people, JSON for programs, alike to those of the other system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rich.console import Console

    from trtkv.traces.trace import RequestTrace

COLUMNS = (
    "trace",
    "tokens_per_block",
    "capacity_tokens",
    "host_tokens",
    "live",
    "partial_reuse",
    "requests",
    "prompt_tokens",
    "prompt_blocks",
    "decode_calls",
    "alloc_total",
    "reused",
    "missed",
    "prepopulated_tokens",
    "system",
    "format",
    "block_size",
    "trace_requests",
    "skipped_requests",
    "malformed_rows",
    "zero_hit_requests",
    "attention_windows",
)
"""What reports of both systems have, in this order."""

_SETTINGS = ("loop", "tokens_per_block", "capacity_tokens", "live")
_COUNTS = {
    "requests": "requests run",
    "skipped_requests": "requests never run",
    "malformed_rows": "malformed rows skipped",
    "prompt_tokens": "prompt tokens",
    "prepopulated_tokens": "prompt tokens found in the cache",
    "prompt_blocks": "prompt blocks",
    "reused": "full blocks reused",
    "missed": "blocks missed",
    "alloc_total": "blocks allocated",
    "decode_calls": "decoded tokens",
    "preemptions": "preemptions",
    "recovered_tokens": "tokens found again after a preemption",
    "recomputed_tokens": "tokens computed again after a preemption",
}


def nano_report(trace: RequestTrace, counts: dict[str, object]) -> dict[str, object]:
    """What run_nano or run_nano_scheduler returned, in the columns of the other system, then its own, then rates.

    Settings that nano-vllm does not have stand at what it does: one tier, full attention, whole blocks.
    """
    about: dict[str, object] = {
        "trace": trace.name,
        "host_tokens": 0,
        "partial_reuse": False,
        "format": trace.format,
        "block_size": trace.block_size,
        "trace_requests": len(trace.requests),
        "malformed_rows": len(trace.faults),
        "attention_windows": ["full"],
    }
    known = {**about, **counts}
    order = [*(key for key in COLUMNS if key in known), *(key for key in known if key not in COLUMNS)]
    return {key: known[key] for key in order if key != "rates"} | {"rates": known["rates"]}


def print_nano_report(report: dict[str, object], console: Console | None = None) -> None:
    """Print counts and rates to the console (default: standard output)."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = console or Console()
    table = Table(title=Text(f"Replay of {report['trace']} on nano-vllm"), title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    for key in _SETTINGS:
        table.add_row(key.replace("_", " "), _shown(report[key]))
    table.add_section()
    for key, what in _COUNTS.items():
        table.add_row(what, _shown(report[key]))
    console.print(table)
    print_rates("Hit rates", cast("list[dict[str, Any]]", report["rates"]), console)


def print_rates(title: str, rates: list[dict[str, Any]], console: Console) -> None:
    """A table of rates, and the definition of each below it."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in ("rate", "value", "numerator", "denominator"):
        table.add_column(column, justify="left" if column == "rate" else "right")
    for rate in rates:
        value = "-" if rate["value"] is None else f"{rate['value']:.4%}"
        table.add_row(rate["name"], value, _shown(rate["numerator"]), _shown(rate["denominator"]))
    console.print(table)
    for rate in rates:
        console.print(f"{rate['name']}: {rate['definition']}", markup=False, highlight=False)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
