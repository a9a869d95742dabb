"""Shows comparisons, checks and the list of references: tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trtkv.compare.checks import DIFFERS, Check
from trtkv.compare.comparison import Comparison, Line
from trtkv.compare.facts import Fact

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from trtkv.compare.reference import ReferenceNumber

STYLES = {"equal": "green", "within tolerance": "yellow", "differs": "red"}


def to_json_text(entries: Iterable[Comparison | Check]) -> str:
    """JSON text of a list, keys in fixed order."""
    return json.dumps([entry.to_json() for entry in entries], indent=2) + "\n"


def print_comparisons(comparisons: Sequence[Comparison], console: Console | None = None) -> None:
    """One table for each reference."""
    console = _console(console)
    for comparison in comparisons:
        table = _table(f"{comparison.result} beside {comparison.reference}")
        for column in ("number", "result", "reference", "difference", "tolerance", "verdict"):
            table.add_column(column, justify="left" if column in ("number", "verdict") else "right")
        for line in comparison.lines:
            table.add_row(*_cells(line), style=STYLES[line.verdict] if line.verdict == DIFFERS else None)
        table.caption = comparison.source
        console.print(table)
        if comparison.unchecked_settings:
            names = ", ".join(comparison.unchecked_settings)
            console.print(f"Known on one side only, not checked: {names}.", markup=False, highlight=False)


def print_checks(checks: Sequence[Check], console: Console | None = None) -> None:
    """Expected beside got, and how many agree."""
    console = _console(console)
    table = _table("Reference numbers found again")
    for column in ("number", "expected", "got", "difference", "tolerance", "verdict"):
        left = column in ("number", "verdict")
        table.add_column(column, justify="left" if left else "right", overflow="fold", no_wrap=not left)
    for check in checks:
        number = check.number
        as_rate = number.numerator is None
        expected = _shown(number.value or 0.0, as_rate) if as_rate else _of(number.numerator or 0, number.denominator)
        got = _shown(check.got.value or 0.0, as_rate) if as_rate else _of(check.got.numerator, check.got.denominator)
        difference = f"{check.difference:+.4f}" if as_rate else f"{check.difference:+,.0f}"
        style = STYLES[check.verdict]
        table.add_row(number.id, expected, got, difference, f"{number.tolerance:g}", f"[{style}]{check.verdict}[/]")
    console.print(table)
    counts = {verdict: sum(check.verdict == verdict for check in checks) for verdict in STYLES}
    console.print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()), highlight=False)


def print_references(numbers: Sequence[ReferenceNumber], runs: Sequence[str], console: Console | None = None) -> None:
    """Ids, values and sources of what is bundled; no table, as ids are long and have to be copied."""
    from rich.padding import Padding
    from rich.text import Text

    console = _console(console)
    console.print("Bundled reference numbers", style="italic")
    for number in numbers:
        value = _of(number.numerator, number.denominator) if number.numerator is not None else f"{number.value:.4f}"
        console.print(Text(f"{number.id}  {value}"), soft_wrap=True)
        console.print(Padding(Text(f"{number.what}; {number.source} ({number.mark})"), (0, 0, 0, 4), expand=False))
    console.print(f"and {len(runs)} recorded runs of the original manager (ids: --runs)", highlight=False)


def _cells(line: Line) -> tuple[str, ...]:
    tolerance = f"{line.tolerance:g}"
    if line.reference.is_rate:
        difference = f"{line.difference:+.4%}"
    else:
        difference = f"{line.difference:+,.0f}"
    return line.name, _fact(line.result), _fact(line.reference), difference, tolerance, line.verdict


def _fact(fact: Fact) -> str:
    if fact.denominator is None:
        return f"{fact.numerator:,.0f}"
    return f"{_of(fact.numerator, fact.denominator)} = {fact.value:.4%}"


def _of(numerator: float, denominator: int | None) -> str:
    shown = f"{numerator:,.0f}" if float(numerator).is_integer() else f"{numerator:,.2f}"
    return shown if denominator is None else f"{shown} / {denominator:,}"


def _shown(value: float, as_rate: bool) -> str:
    return f"{value:.5f}" if as_rate else f"{value:,.0f}"


def _console(console: Console | None) -> Console:
    from rich.console import Console

    return console or Console()


def _table(title: str) -> Table:
    from rich.table import Table

    return Table(title=title, title_justify="left", caption_justify="left")
