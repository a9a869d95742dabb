"""Result: what everything has that a command shows or writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from trtkv.records.rate import Rate
    from trtkv.tables.table import Table


class Result(Protocol):
    """What was found out. Terminal, page and notebook show its tables and notes, programs read its JSON."""

    __slots__ = ()

    def to_json(self) -> object:
        """Everything, as values that JSON has, in a fixed order."""
        ...

    def tables(self) -> Sequence[Table]:
        """Everything that people read."""
        ...

    def notes(self) -> Sequence[str]:
        """What a reader of the tables should know."""
        return ()

    @property
    def rates(self) -> Sequence[Rate]:
        """Rates of the whole, each with its definition."""
        return ()

    def __repr__(self) -> str:
        from trtkv.tables.table import rate_cell
        from trtkv.tables.wording import cell_text

        title = next((table.title for table in self.tables()), "nothing")
        rates = "".join(f", {rate.name} {cell_text(rate_cell(rate))}" for rate in self.rates[:2])
        return f"<{type(self).__name__}: {title}{rates}>"

    def _repr_html_(self) -> str:
        """Tables for a notebook; needs nothing that is not installed."""
        from trtkv.tables.html import html_tables

        return f"<div>\n{html_tables(self.tables())}\n</div>"
