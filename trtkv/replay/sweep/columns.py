"""Columns of a sweep: reports and configurations as flat rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final, TypeAlias, cast

from trtkv.replay.sweep.task import Report

Cell: TypeAlias = "str | int | float | bool | None"
Row: TypeAlias = "dict[str, Cell]"

WINDOW_SUMS: Final = ("onboarded", "offloaded", "copied")
"""Counts of windows that are added up over them."""

UNLIMITED: Final = "inf"


def make_row(configuration: Mapping[str, str], report: Report) -> Row:
    """One flat row: what was set, then single values of the report, rates by name, sums over windows, bounds.

    A setting of the same name as a value of the report gives way to it, but for the trace, whose path tells more.
    """
    row: Row = dict(configuration)
    for key, value in report.items():
        if key == "rates":
            row.update(_rates(value))
        elif key == "windows":
            row.update(_window_sums(value))
        elif key == "bounds":
            bounds = cast("Mapping[str, object]", value)
            row.update(_rates(bounds.get("rates")))
        elif isinstance(value, list):
            row[key] = "+".join(map(str, value))
        elif value is None or isinstance(value, str | int | float):
            row[key] = value
    return {**row, "trace": configuration.get("trace", row.get("trace"))}


def column_names(rows: Sequence[Row]) -> list[str]:
    """All columns, in the order in which they first appear."""
    return list(dict.fromkeys(name for row in rows for name in row))


def column_values(rows: Sequence[Row], name: str) -> list[Cell]:
    """One column of one type: text if any cell is text, else floats if any is one; an unlimited capacity is infinite.

    Rows without the column have None in it.
    """
    cells = [row.get(name) for row in rows]
    numbers: list[Cell] = [inf if cell == UNLIMITED else cell for cell in cells]
    if any(isinstance(cell, str) for cell in numbers):
        return [None if cell is None else str(cell) for cell in cells]
    if any(isinstance(cell, float) for cell in numbers):
        return [None if cell is None else float(cell) for cell in numbers]
    return numbers


def _rates(rates: object) -> Row:
    entries = cast("Sequence[Mapping[str, Any]]", rates or ())
    return {str(entry["name"]): entry["value"] for entry in entries}


def _window_sums(windows: object) -> Row:
    entries = cast("Sequence[Mapping[str, Any]]", windows)
    return {name: sum(int(entry.get(name, 0)) for entry in entries) for name in WINDOW_SUMS}
