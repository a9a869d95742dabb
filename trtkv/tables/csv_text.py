"""Tables as CSV."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from trtkv.tables.table import plain

if TYPE_CHECKING:
    from trtkv.tables.table import Table


def csv_text(table: Table) -> str:
    """A line of names, then one line per row; what is absent is empty."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([column.name for column in table.columns])
    writer.writerows([plain(cell) for cell in row] for row in table.rows)
    return stream.getvalue()
