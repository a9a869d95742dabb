"""Numbers as people read them. Every number of a table, a note or a plot is written here, so all of them agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trtkv.tables.table import Cell

ABSENT: Final = "-"
FULL: Final = "full"
_BINARY_UNITS: Final = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_DECIMAL_LETTERS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def cell_text(cell: Cell) -> str:
    """What a cell shows; ``-`` if it is empty."""
    from trtkv.tables.table import Mark, Share

    if cell is None:
        return ABSENT
    if isinstance(cell, Share):
        return share(cell.part, cell.whole)
    if isinstance(cell, Mark):
        return cell.text
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return cell if isinstance(cell, str) else count(cell)


def count(number: float) -> str:
    """Thousands apart; three decimals unless it is a whole number."""
    return f"{number:,.3f}" if isinstance(number, float) else f"{number:,}"


def share(part: float, whole: float) -> str:
    """A part in percent; ``-`` of nothing. What is not 0 is not shown as 0."""
    if not whole:
        return ABSENT
    percent = 100 * part / whole
    return "< 0.001 %" if 0 < percent < 0.0005 else f"{percent:.3f} %"


def rate(value: float) -> str:
    """A rate of which only the value is known."""
    return share(value, 1)


def signed(number: float) -> str:
    """A difference of counts."""
    return f"{number:+,.3f}" if isinstance(number, float) and not number.is_integer() else f"{number:+,.0f}"


def signed_share(difference: float) -> str:
    """A difference of two rates, in percentage points."""
    return f"{100 * difference:+.3f} %"


def ratio(numerator: float, denominator: float | None) -> str:
    """Both numbers of a rate, or a count alone."""
    shown = count(int(numerator) if float(numerator).is_integer() else numerator)
    return shown if denominator is None else f"{shown} / {count(denominator)}"


def limit(number: int | None) -> str:
    """A number that may be without a limit."""
    return "unlimited" if number is None else count(number)


def window(size: int | None, *, is_full: bool = False) -> str:
    """An attention window in tokens; ``full`` if it holds every sequence."""
    return FULL if size is None or is_full else count(size)


def memory_size(num_bytes: int) -> str:
    """Bytes with the largest binary unit that leaves at least 1, to three decimals; whole bytes below 1 KiB."""
    for unit, size in _BINARY_UNITS:
        if abs(num_bytes) >= size:
            return f"{num_bytes / size:,.3f} {unit}"
    return f"{num_bytes} B"


def short(number: float) -> str:
    """A number on an axis: 20k, 1.5M."""
    for factor, letter in _DECIMAL_LETTERS:
        if number >= factor:
            return f"{number / factor:.4g}{letter}"
    return f"{number:.4g}"


def shortened(lines: list[str], most: int = 5) -> list[str]:
    """The first lines of a list, indented, and how many more there are."""
    shown = [f"  {line}" for line in lines[:most]]
    return shown if len(lines) <= most else [*shown, f"  and {count(len(lines) - most)} more"]
