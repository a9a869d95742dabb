"""Writes the rows of a sweep as Parquet."""

from __future__ import annotations

import os
from collections.abc import Sequence

from trtkv.errors import MissingExtraError
from trtkv.replay.sweep.columns import Row, column_names, column_values


def check_parquet() -> None:
    """Raise MissingExtraError unless Parquet files can be written."""
    try:
        import pyarrow.parquet  # noqa: F401 - only whether it can be
    except ImportError as error:
        raise MissingExtraError('Parquet files need pyarrow: pip install "trtkv[parquet]"') from error


def write_parquet(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """The same columns, each of one type; absent cells are null, an unlimited capacity is infinity."""
    check_parquet()
    import pyarrow as pa
    from pyarrow import parquet

    columns = {name: column_values(rows, name) for name in column_names(rows)}
    parquet.write_table(pa.table(columns), path)
