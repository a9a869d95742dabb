"""Writes the rows of a sweep as CSV and as Parquet."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from typing import IO

from trtkv.errors import MissingExtraError
from trtkv.replay.sweep.columns import Row, column_names, column_values


def check_parquet() -> None:
    """Raise MissingExtraError unless Parquet files can be written."""
    try:
        import pyarrow.parquet  # noqa: F401 - only whether it can be
    except ImportError as error:
        raise MissingExtraError('Parquet files need pyarrow: pip install "trtkv[parquet]"') from error


def write_csv(rows: Sequence[Row], stream: IO[str]) -> None:
    """A line for each row, after a line of names; an absent cell is empty, an unlimited capacity is ``inf``."""
    writer = csv.DictWriter(stream, column_names(rows), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def write_parquet(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """The same columns, each of one type; absent cells are null, an unlimited capacity is infinity."""
    check_parquet()
    import pyarrow as pa
    from pyarrow import parquet

    columns = {name: column_values(rows, name) for name in column_names(rows)}
    parquet.write_table(pa.table(columns), path)
