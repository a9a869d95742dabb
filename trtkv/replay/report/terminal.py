"""Shows a ReplayResult: a table for people, JSON for programs, a progress bar on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trtkv.replay.report.explain_report import extra_definitions, extra_tables

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from trtkv.records.rate import Rate
    from trtkv.replay.result import ReplayResult

_NUM_FAULTS_SHOWN = 5


def json_report(result: ReplayResult) -> str:
    """The result as JSON text: keys in fixed order, no times, byte for byte equal for equal runs."""
    return json.dumps(result.to_json(), indent=2) + "\n"


def print_report(result: ReplayResult, console: Console | None = None) -> None:
    """Print tables of counts and rates to the console (default: standard output)."""
    from rich.console import Console

    console = console or Console()
    console.print(_counts_table(result))
    console.print(_rates_table(result))
    for table in extra_tables(result):
        console.print(table)
    for line in [*_definitions(result), *extra_definitions(result), *notes(result)]:
        console.print(line, markup=False, highlight=False)


def notes(result: ReplayResult) -> list[str]:
    """What a reader of the counts should know: requests and rows left out, a host tier without blocks."""
    lines = []
    counts, config, faults = result.counts, result.config, result.trace.faults
    if counts.skipped_requests:
        lines.append(
            f"{counts.skipped_requests} requests need more blocks than the capacity holds and were never run; "
            "no count includes them."
        )
    if faults:
        lines.append(f"{len(faults)} malformed rows were skipped:")
        lines += [f"  {result.trace.name}:{fault.line_number}: {fault.reason}" for fault in faults[:_NUM_FAULTS_SHOWN]]
        if len(faults) > _NUM_FAULTS_SHOWN:
            lines.append(f"  and {len(faults) - _NUM_FAULTS_SHOWN} more")
    if config.host_tokens and not config.num_secondary_blocks:
        lines.append(
            f"The host tier of {config.host_tokens} tokens holds no block of {config.tokens_per_block} tokens: "
            "blocks are dropped, not offloaded."
        )
    return lines


@contextmanager
def progress_bar(total: int, *, what: str = "replay", quiet: bool = False) -> Iterator[Callable[[int], None] | None]:
    """A bar on standard error, fed with the number done; None when that is no terminal, or when quiet."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        step = max(1, total // 200)
        shown = 0

        def update(num_done: int) -> None:
            nonlocal shown
            if num_done >= shown + step or num_done == total:
                shown = num_done
                progress.update(task, completed=num_done)

        yield update


def _counts_table(result: ReplayResult) -> Table:
    from rich.table import Table
    from rich.text import Text

    config, counts = result.config, result.counts
    table = Table(title=Text(f"Replay of {result.trace.name}"), title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    capacity = "unlimited" if config.capacity_tokens is None else _count(config.capacity_tokens)
    settings = [
        ("tokens per block", _count(config.tokens_per_block)),
        ("capacity, tokens", capacity),
        ("host tier, tokens", _count(config.host_tokens)),
        ("live requests, at most", _count(config.live)),
        ("partial reuse", _reuse_words(result)),
        ("attention windows, tokens", ", ".join("full" if w is None else _count(w) for w in config.windows)),
    ]
    numbers = [
        ("requests run", counts.requests),
        ("requests never run", counts.skipped_requests),
        ("malformed rows skipped", len(result.trace.faults)),
        ("prompt tokens", counts.prompt_tokens),
        ("prompt tokens found in the cache", counts.prepopulated_tokens),
        ("prompt blocks", counts.prompt_blocks),
        ("blocks reused", result.reused),
        ("blocks missed", result.missed),
        ("blocks allocated", result.alloc_total),
        ("decoded tokens", counts.decode_calls),
        ("blocks offloaded", sum(window.offloaded for window in result.windows)),
        ("blocks onboarded", sum(window.onboarded for window in result.windows)),
    ]
    for row in settings:
        table.add_row(*row)
    table.add_section()
    for what, number in numbers:
        table.add_row(what, _count(number))
    return table


def _reuse_words(result: ReplayResult) -> str:
    if not result.config.partial_reuse:
        return "off"
    return "copied" if result.config.copy_on_partial_reuse else "in place where possible"


def _rates_table(result: ReplayResult) -> Table:
    from rich.table import Table

    table = Table(title="Rates", title_justify="left")
    table.add_column("rate", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("numerator", justify="right", no_wrap=True)
    table.add_column("denominator", justify="right", no_wrap=True)
    rows = [(rate.name, rate) for rate in result.rates]
    if len(result.windows) > 1:
        rows += [(f"{window.hit_rate.name}, {window.window_size}", window.hit_rate) for window in result.windows]
    for name, rate in rows:
        table.add_row(name, _percent(rate), _number(rate.numerator), _number(rate.denominator))
    return table


def _definitions(result: ReplayResult) -> list[str]:
    lines = [f"{rate.name}: {rate.definition}" for rate in result.rates]
    if len(result.windows) > 1:
        rate = result.windows[0].hit_rate
        lines.append(f"{rate.name}, N: {rate.definition}; N is the window in tokens")
    return lines


def _percent(rate: Rate) -> str:
    return "-" if rate.value is None else f"{100 * rate.value:.3f} %"


def _number(number: float) -> str:
    return f"{number:,.3f}" if isinstance(number, float) else _count(number)


def _count(number: int) -> str:
    return f"{number:,}"
