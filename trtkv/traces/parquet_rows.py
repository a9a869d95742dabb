"""parquet_rows: rows of a Parquet file, which needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any, Final

from trtkv.errors import MissingExtraError, TraceFormatError
from trtkv.traces.rows import Row

PARQUET_MAGIC: Final = b"PAR1"
_ROWS_AT_A_TIME: Final = 256


def parquet_rows(stream: IO[bytes], name: str) -> Iterator[tuple[int, Row]]:
    """Number of the row and its columns, of which those without a value are left out."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise MissingExtraError(f'{name} is a Parquet file: pip install "trtkv[parquet]"') from error
    if not stream.seekable():
        raise TraceFormatError(f"{name}: a Parquet file is not read from a pipe; give its name")
    number = 0
    try:
        for batch in parquet.ParquetFile(stream).iter_batches(batch_size=_ROWS_AT_A_TIME):
            for columns in batch.to_pylist():
                number += 1
                yield number, _without_nulls(columns)
    except (ArrowException, OSError) as error:
        raise TraceFormatError(f"{name}:{number + 1}: cannot read on: {error}") from error


def _without_nulls(columns: dict[str, Any]) -> Row:
    return {name: value for name, value in columns.items() if value is not None}
