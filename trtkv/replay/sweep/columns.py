"""Columns of a sweep: reports and configurations as flat rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Final, TypeAlias, TypeGuard, cast

from trtkv.replay.sweep.task import Report

Cell: TypeAlias = "str | int | float | bool | None"
Row: TypeAlias = "dict[str, Cell]"

WINDOW_SUMS: Final = ("onboarded", "offloaded", "copied")
"""Counts of windows that are added up over them."""

UNLIMITED: Final = "inf"


def make_row(configuration: Mapping[str, Cell], report: Report) -> Row:
    """One flat row: typed values of what was set, single values of the report and of its parts, sums over windows.

    Rates and causes go by their names, other parts by the part's name and theirs. A setting of the same name as a value
    of the report gives way to it, but for the trace, whose path tells more.
    """
    row: Row = dict(configuration)
    for key, value in report.items():
        row.update(_PARTS.get(key, _other)(key, value))
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


def _other(key: str, value: object) -> Row:
    """A single value; the single values of an object, by both names; a list of single values as text."""
    if isinstance(value, Mapping):
        return {f"{key}_{name}": cell for name, cell in value.items() if _is_cell(cell)}
    if isinstance(value, list):
        return {key: "+".join(map(str, value))} if all(map(_is_cell, value)) else {}
    return {key: value} if _is_cell(value) else {}


def _rates(key: str, rates: object) -> Row:
    return {str(entry["name"]): entry["value"] for entry in _entries(rates)}


def _bounds(key: str, bounds: object) -> Row:
    return _rates(key, cast("Mapping[str, object]", bounds).get("rates"))


def _causes(key: str, explanation: object) -> Row:
    causes = _entries(cast("Mapping[str, object]", explanation).get("causes"))
    return {f"{str(entry['cause']).replace('-', '_')}_tokens": entry["tokens"] for entry in causes}


def _single_values(key: str, part: object) -> Row:
    return {str(name): cell for name, cell in cast("Mapping[str, Cell]", part).items() if _is_cell(cell)} | {
        str(name): "+".join(map(str, cell))
        for name, cell in cast("Mapping[str, object]", part).items()
        if isinstance(cell, list)
    }


def _distributions(key: str, distributions: object) -> Row:
    return {
        f"{entry['name']}_{what}": cell
        for entry in _entries(distributions)
        for what, cell in entry.items()
        if what not in ("name", "definition", "count")
    }


def _window_sums(key: str, windows: object) -> Row:
    return {name: sum(int(entry.get(name, 0)) for entry in _entries(windows)) for name in WINDOW_SUMS}


def _entries(part: object) -> Sequence[Mapping[str, Any]]:
    return cast("Sequence[Mapping[str, Any]]", part or ())


def _is_cell(value: object) -> TypeGuard[Cell]:
    return value is None or isinstance(value, str | int | float)


_PARTS: Final[Mapping[str, Callable[[str, object], Row]]] = {
    "rates": _rates,
    "windows": _window_sums,
    "bounds": _bounds,
    "explanation": _causes,
    "settings": _single_values,
    "counts": _single_values,
    "latencies": _distributions,
}
"""Parts of reports that are not read in the usual way."""
