"""SweepTable: a sweep as a result: what was varied, and the counts and rates that tell runs apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trtkv.replay.sweep.columns import Row, column_names
from trtkv.tables.result import Result
from trtkv.tables.table import Cell, Column, Share, Table, list_table

SHOWN: Final[Mapping[str, str]] = {
    "requests": "requests run",
    "skipped_requests": "never run",
    "prepopulated_tokens": "tokens found",
    "block_hit_rate": "block hit rate",
    "token_hit_rate": "token hit rate",
    "clairvoyant_token_hit_rate": "clair-\nvoyant",
    "infinite_token_hit_rate": "infinite cache",
}
"""Columns of the table and their headings; one that no row has is left out."""

WHEN_DIFFERENT: Final = ("requests", "skipped_requests")
"""Columns that are shown only if their cells differ."""


@dataclass(frozen=True, slots=True, repr=False)
class SweepTable(Result):
    """A row for each configuration."""

    rows: Sequence[Row]
    settings: Mapping[str, Sequence[str]]
    """Values of each option that was set, as they were written."""

    def to_json(self) -> list[Row]:
        """All columns of all rows."""
        return list(self.rows)

    def tables(self) -> list[Table]:
        """What differs from row to row."""
        varied = [name for name, values in self.settings.items() if len(values) > 1]
        shown = [name for name in SHOWN if self._is_shown(name)]
        columns = {name.replace("_", " "): _column(name) for name in varied}
        columns |= {SHOWN[name]: _column(name) for name in shown}
        return [list_table(f"Sweep of {len(self.rows)} configurations", columns, self.rows, texts=0)]

    def notes(self) -> list[str]:
        """What all rows have in common."""
        return [f"{name}: {values[0]}" for name, values in self.settings.items() if len(values) == 1]

    def all_columns(self) -> Table:
        """Every column of every row, for files."""
        names = column_names(self.rows)
        return Table(
            "Sweep", tuple(map(Column, names)), (tuple([row.get(name) for name in names] for row in self.rows),)
        )

    def _is_shown(self, name: str) -> bool:
        present = [cell for row in self.rows if (cell := row.get(name)) is not None]
        return bool(present) and (name not in WHEN_DIFFERENT or len(set(present)) > 1)


def _column(name: str) -> Callable[[Row], Cell]:
    def cell(row: Row) -> Cell:
        value = row.get(name)
        return Share(value, 1) if name.endswith("rate") and isinstance(value, int | float) else value

    return cell
