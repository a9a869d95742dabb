"""Tables as HTML, all text escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from trtkv.tables.table import Column, Mark, Row, Table
from trtkv.tables.wording import cell_text

if TYPE_CHECKING:
    from trtkv.tables.table import Cell


def html_tables(tables: Iterable[Table]) -> str:
    """Several tables, one below the other."""
    return "\n".join(map(html_table, tables))


def html_table(table: Table) -> str:
    """A table in a box that scrolls where it is too narrow, and its notes."""
    head = "".join(f'<th scope="col"{_class(column)}>{escape(column.name)}</th>' for column in table.columns)
    thead = f"<thead><tr>{head}</tr></thead>\n" if table.has_head else ""
    bodies = "\n".join(
        "<tbody>\n" + "\n".join(f"<tr>{_cells(table.columns, row)}</tr>" for row in rows) + "\n</tbody>"
        for rows in table.sections
        if rows
    )
    notes = "".join(f'\n<p class="note">{escape(note)}</p>' for note in table.notes)
    caption = f"<caption>{escape(table.title)}</caption>"
    return f'<div class="wide">\n<table>\n{caption}\n{thead}{bodies}\n</table>\n</div>{notes}'


def _cells(columns: Iterable[Column], row: Row) -> str:
    first, *rest = zip(columns, row, strict=True)
    cells = "".join(f"<td{_class(column, cell)}>{escape(cell_text(cell))}</td>" for column, cell in rest)
    return f'<th scope="row"{_class(first[0])}>{escape(cell_text(first[1]))}</th>{cells}'


def _class(column: Column, cell: Cell = None) -> str:
    if isinstance(cell, Mark):
        return f' class="{cell.level}"'
    if column.is_text:
        return ""
    return f' class="{"value" if isinstance(cell, str) else "number"}" align="right"'
