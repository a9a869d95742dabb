"""Table: rows of typed values with headings. What it is shown on decides how it looks, not what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from trtkv.records.rate import Rate


class Share(NamedTuple):
    """A part of a whole; shown in percent."""

    part: float
    whole: float

    @property
    def value(self) -> float | None:
        """The ratio; None if there is nothing to divide by."""
        return self.part / self.whole if self.whole else None


class Mark(NamedTuple):
    """A word that is good or bad news."""

    text: str
    level: Literal["good", "warning", "bad"]


Cell: TypeAlias = "str | bool | int | float | Share | Mark | None"
Row: TypeAlias = "Sequence[Cell]"
PlainCell: TypeAlias = "str | bool | int | float | None"
Item = TypeVar("Item")


class Column(NamedTuple):
    """A column. Text is aligned left and wrapped where there is no room; numbers are aligned right and never cut."""

    name: str
    is_text: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """What a part of a report shows."""

    title: str
    columns: tuple[Column, ...]
    sections: tuple[tuple[Row, ...], ...]
    """Rows, with a line between sections."""
    topic: str = ""
    """Heading under which a page shows it."""
    notes: tuple[str, ...] = ()
    """Sentences right below it."""
    definitions: tuple[tuple[str, str], ...] = ()
    """Names in it that need a definition, each with it."""
    has_head: bool = True

    @property
    def rows(self) -> list[Row]:
        """The rows of all sections."""
        return list(chain.from_iterable(self.sections))

    def to_json(self) -> dict[str, object]:
        """Names of columns, and rows of plain values."""
        return {
            "columns": [column.name for column in self.columns],
            "rows": [[plain(cell) for cell in row] for row in self.rows],
        }


def plain(cell: Cell) -> PlainCell:
    """The value of a cell for programs."""
    if isinstance(cell, Share):
        return cell.value
    return cell.text if isinstance(cell, Mark) else cell


def list_table(
    title: str,
    columns: Mapping[str, Callable[[Item], Cell]],
    *sections: Iterable[Item],
    texts: int = 1,
    topic: str = "",
    notes: Iterable[str] = (),
    definitions: Iterable[tuple[str, str]] = (),
) -> Table:
    """A row for each item, and an entry for each column: its heading and what it shows of an item.

    The first ``texts`` columns are text, the others numbers.
    """
    heads = [Column(name, at < texts) for at, name in enumerate(columns)]
    return Table(
        title,
        tuple(heads),
        tuple(tuple([show(item) for show in columns.values()] for item in items) for items in sections),
        topic,
        tuple(notes),
        tuple(definitions),
    )


def fact_table(
    title: str, *sections: Mapping[str, Cell] | Sequence[tuple[str, Cell]], topic: str = "", notes: Iterable[str] = ()
) -> Table:
    """Names and values, without headings."""
    rows = tuple(tuple(facts.items() if isinstance(facts, Mapping) else facts) for facts in sections)
    return Table(title, (Column("what", True), Column("value")), rows, topic, tuple(notes), has_head=False)


def rates_table(title: str, rates: Iterable[Rate], *, topic: str = "") -> Table:
    """Rates with both numbers, and their definitions."""
    rates = list(rates)
    return list_table(
        title,
        {
            "rate": lambda rate: rate.name,
            "value": rate_cell,
            "numerator": lambda rate: rate.numerator,
            "denominator": lambda rate: rate.denominator,
        },
        rates,
        topic=topic,
        definitions=[(rate.name, rate.definition) for rate in rates],
    )


def rate_cell(rate: Rate) -> Cell:
    """The value of a rate: a share, unless its name says that it is one of something per second."""
    return rate.value if rate.name.endswith("_per_second") else Share(rate.numerator, rate.denominator)


def definitions_of(tables: Iterable[Table]) -> dict[str, str]:
    """Definitions of several tables, each once."""
    return dict(pair for table in tables for pair in table.definitions)
