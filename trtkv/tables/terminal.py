"""Tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from trtkv.tables.table import Mark, Table, definitions_of
from trtkv.tables.wording import cell_text

if TYPE_CHECKING:
    from rich.console import Console

    from trtkv.tables.result import Result

STYLES: Final = {"good": "green", "warning": "yellow", "bad": "red"}
LEAST_TEXT_WIDTH: Final = 16
"""Text columns with longer words are never made narrower."""
_FRAME: Final = 3
"""Characters beside each cell."""


def print_result(result: Result, console: Console | None = None, *, boxed: bool = True) -> None:
    """Print tables, definitions and notes to the console (default: standard output).

    Without boxes lines are not broken either, so that programs can read them.
    """
    from rich.console import Console

    console = console or Console()
    tables = result.tables()
    for table in tables:
        print_table(table, console, boxed=boxed)
    _print_lines((f"{name}: {text}" for name, text in definitions_of(tables).items()), console)
    _print_lines(result.notes(), console, whole=not boxed)


def print_table(table: Table, console: Console, *, boxed: bool = True) -> None:
    """Print a table and its notes. Headings are broken, then texts wrapped, to make it fit; no number is ever cut."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    texts = [[cell_text(cell) for cell in row] for row in table.rows]
    heads, widths = _lay_out(table, texts, console.width)
    shown = RichTable(
        title=Text(table.title) if table.title else None,
        title_justify="left",
        show_header=table.has_head,
        box=box.HEAVY_HEAD if boxed else None,
    )
    for column, head, width in zip(table.columns, heads, widths, strict=True):
        shown.add_column(Text(head), justify="left" if column.is_text else "right", width=width, overflow="fold")
    for rows in table.sections:
        for row in rows:
            cells = (Text(cell_text(cell), STYLES[cell.level] if isinstance(cell, Mark) else "") for cell in row)
            shown.add_row(*cells)
        shown.add_section()
    needed = sum(widths) + _FRAME * len(widths) + 1
    (console if needed <= console.width else Console(file=console.file, width=needed)).print(shown)
    _print_lines(table.notes, console)


def _print_lines(lines: Iterable[str], console: Console, *, whole: bool = False) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=whole)


def _lay_out(table: Table, texts: Sequence[Sequence[str]], room: int) -> tuple[list[str], list[int]]:
    """Headings and widths of the columns."""
    is_text = [column.is_text for column in table.columns]
    heads = [column.name if table.has_head else "" for column in table.columns]
    widths = _widths([heads, *texts], "\n")
    room -= _FRAME * len(heads) + 1
    if sum(widths) > room:
        heads = [head if text else head.replace(" ", "\n") for text, head in zip(is_text, heads, strict=True)]
        widths = _widths([heads, *texts], "\n")
    words = _widths([heads, *texts], None)
    least = [
        min(LEAST_TEXT_WIDTH, word) if text else width for text, word, width in zip(is_text, words, widths, strict=True)
    ]
    while sum(widths) > room and widths != least:
        _, widest = max((width, at) for at, width in enumerate(widths) if width > least[at])
        widths[widest] -= 1
    return heads, widths


def _widths(rows: Sequence[Sequence[str]], separator: str | None) -> list[int]:
    """The widest part of each column, of texts split at a separator; None: at spaces."""
    from rich.cells import cell_len

    return [
        max((cell_len(part) for text in column for part in text.split(separator)), default=1)
        for column in zip(*rows, strict=True)
    ]
