"""Shows a sweep as a table: what was varied, and the counts and rates that tell runs apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from trtkv.replay.sweep.columns import Cell, Row

if TYPE_CHECKING:
    from rich.console import Console

SHOWN: Final[Mapping[str, str]] = {
    "requests": "requests\nrun",
    "skipped_requests": "never\nrun",
    "prepopulated_tokens": "tokens\nfound",
    "block_hit_rate": "block\nhit rate",
    "token_hit_rate": "token\nhit rate",
    "clairvoyant_token_hit_rate": "clair-\nvoyant",
    "infinite_token_hit_rate": "infinite\ncache",
}
"""Columns of the table and their headings; one that no row has is left out."""

_WIDEST: Final = 10_000

WHEN_DIFFERENT: Final = ("requests", "skipped_requests")
"""Columns that are shown only if their cells differ."""


def print_sweep(rows: Sequence[Row], settings: Mapping[str, Sequence[str]], console: Console | None = None) -> None:
    """Print a table with a line per configuration, and the settings that all of them share below it."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    console = console or Console()
    varied = [name for name, values in settings.items() if len(values) > 1]
    shown = [name for name in SHOWN if _is_shown(name, [row.get(name) for row in rows])]
    table = Table(title=f"Sweep of {len(rows)} configurations", title_justify="left")
    for name in varied:
        table.add_column(name.replace("_", "\n"), no_wrap=True, justify="right")
    for name in shown:
        table.add_column(SHOWN[name], no_wrap=True, justify="right")
    for row in rows:
        table.add_row(*(str(row[name]) for name in varied), *(_shown(name, row.get(name)) for name in shown))
    # Cut numbers would be worth nothing: a table wider than the terminal keeps its width.
    width = Measurement.get(console, console.options.update(width=_WIDEST), table).maximum
    (console if width <= console.width else Console(file=console.file, width=width)).print(table)
    fixed = {name: values[0] for name, values in settings.items() if len(values) == 1}
    for name, value in fixed.items():
        console.print(f"{name}: {value}", markup=False, highlight=False)


def _is_shown(name: str, cells: Sequence[Cell]) -> bool:
    present = [cell for cell in cells if cell is not None]
    return bool(present) and (name not in WHEN_DIFFERENT or len(set(present)) > 1)


def _shown(name: str, cell: Cell) -> str:
    if cell is None:
        return "-"
    return f"{100 * float(cell):.3f} %" if name.endswith("rate") else f"{cell:,}"
