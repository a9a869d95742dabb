"""Rows from whatever a file is: JSON lines, one JSON document, CSV, or a folder of such files."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Final, TypeAlias, TypeVar

from trtkv.errors import InvalidInputError, TraceFormatError
from trtkv.traces.document_rows import NumberedRow, document_rows
from trtkv.traces.options import Rows
from trtkv.traces.parquet_rows import PARQUET_MAGIC, parquet_rows
from trtkv.traces.rows import Row, RowFaultError, TraceRows, check_limit, json_rows
from trtkv.traces.trace import RowFault
from trtkv.traces.trace_stream import TraceLines, open_stream, starts_with

Record = TypeVar("Record")
CheckHeader: TypeAlias = "Callable[[list[str]], object]"

TRACE_SUFFIXES: Final = (".json", ".jsonl", ".csv", ".gz", ".zst", ".parquet")
_FIRST_BYTES: Final = 1 << 16
"""Of the first line, which may be a whole document."""
_NO_TRACES: Final = {
    b"\xfd7zXZ": "compressed with xz; unpack it, or pack it with gzip or zstd",
    b"BZh": "compressed with bzip2; unpack it, or pack it with gzip or zstd",
    b"PK\x03\x04": "a zip archive; unpack it, and give the trace in it",
    b"\xff\xfe": "UTF-16 text; convert it to UTF-8",
    b"\xfe\xff": "UTF-16 text; convert it to UTF-8",
    b"version https://git-lfs": "a Git LFS pointer, not the trace itself; fetch the trace with git lfs pull",
}
"""How files start that are often taken for a trace, and what they are."""


class FolderRows:
    """Rows of several files one after the other, each opened when it is its turn."""

    def __init__(
        self,
        folder: str,
        paths: list[Path],
        check_header: CheckHeader,
        *,
        lenient: bool,
        limit: int | None,
        max_line_bytes: int,
    ) -> None:
        check_limit(limit)
        if not paths:
            raise InvalidInputError(
                f"{folder}: no trace file was found in the folder; names end in {', '.join(TRACE_SUFFIXES)}"
            )
        self.name = str(paths[0].parent)
        self.faults: list[RowFault] = []
        self._paths = paths
        self._check_header = check_header
        self._lenient = lenient
        self._limit = limit
        self._max_line_bytes = max_line_bytes

    def records(self, convert: Callable[[Row], Record]) -> Iterator[Record]:
        """Each row of each file through ``convert``; faults carry the name of their file."""
        left = self._limit
        for path in self._paths:
            if left == 0:
                return
            with open_stream(path) as stream:
                rows = self._open(stream, path, left)
                num_records = 0
                for record in rows.records(convert):
                    num_records += 1
                    yield record
                self.faults += [RowFault(fault.line_number, f"{path.name}: {fault.reason}") for fault in rows.faults]
                if left is not None:
                    left -= num_records + len(rows.faults)

    def first(self, usable: Callable[[Row], Record]) -> Record | None:
        """``usable`` of the first usable row of each file, which must be the same for all of them."""
        found: list[tuple[Path, Record]] = []
        refused: TraceFormatError | None = None
        for path in self._paths:
            try:
                with open_stream(path) as stream:
                    rows = self._open(stream, path, None)
                    record = rows.first(usable)
            except TraceFormatError as error:
                if not self._lenient:
                    raise
                refused = refused or error
                continue
            if record is not None:
                found.append((path, record))
        if refused is not None and not found:
            raise refused
        for path, record in found[1:]:
            if record != found[0][1]:
                raise InvalidInputError(f"the folder mixes formats: {found[0][0].name} and {path.name} differ")
        return found[0][1] if found else None

    def _open(self, stream: IO[bytes], path: Path, limit: int | None) -> Rows:
        return open_rows(
            stream,
            str(path),
            self._check_header,
            lenient=self._lenient,
            limit=limit,
            max_line_bytes=self._max_line_bytes,
        )


def folder_files(folder: Path) -> list[Path]:
    """Trace files directly in a folder, by name; hidden files and other suffixes are left out."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and path.suffix in TRACE_SUFFIXES and not path.name.startswith(".")
    )


def open_rows(
    stream: IO[bytes], name: str, check_header: CheckHeader, *, lenient: bool, limit: int | None, max_line_bytes: int
) -> Rows:
    """Rows of a stream; its first bytes, or its first lines that are not blank, tell what it is.

    ``check_header`` is called with the columns of a CSV file and raises RowFaultError if they are of no use.
    """
    check_limit(limit)
    if starts_with(stream, PARQUET_MAGIC):
        return _listed_rows(parquet_rows(stream, name), name, lenient, limit)
    lines = TraceLines(stream, name, max_line_bytes)
    (line,) = lines.first_filled(1, _FIRST_BYTES) or (b"",)
    _check_text(line, name)
    if line.startswith(b"["):
        return _listed_rows(document_rows(lines), name, lenient, limit)
    lines.complete()
    (line,) = lines.first_filled(1) or (b"",)
    if line.startswith(b"{"):
        if _is_cut(line) and not _is_row_start(lines):
            return _listed_rows(document_rows(lines), name, lenient, limit)
        return json_rows(lines, lenient=lenient, limit=limit)
    if _is_broken_row(line) or _is_row_start(lines):
        return json_rows(lines, lenient=lenient, limit=limit)
    return _listed_rows(_csv_rows(lines, check_header), name, lenient, limit)


def _check_text(line: bytes, name: str) -> None:
    """Raise TraceFormatError if a file that starts with this line is not UTF-8 text."""
    for magic, what in _NO_TRACES.items():
        if line.startswith(magic):
            raise TraceFormatError(f"{name}: {what}")
    if b"\0" in line:
        raise TraceFormatError(f"{name}:1: a byte is 0: the file is binary or UTF-16; give UTF-8 text, plain or packed")


def _is_row_start(lines: TraceLines) -> bool:
    """Whether the second line that is not blank starts an object."""
    return b"".join(lines.first_filled(2)[1:]).startswith(b"{")


def _is_broken_row(line: bytes) -> bool:
    """Whether a first line that starts with no brace is meant as JSON, and not as the header of a CSV file."""
    return line.endswith((b"}", b"},")) or b'":' in line or _is_json(line)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _is_cut(line: bytes) -> bool:
    """Whether an object starts in this line and ends in a later one."""
    try:
        text = line.decode("utf-8")
        json.loads(text)
    except UnicodeDecodeError:
        return False
    except json.JSONDecodeError as error:
        return error.pos >= len(text) or text == "{"
    except (ValueError, RecursionError):
        return False
    return False


def _csv_rows(lines: TraceLines, check_header: CheckHeader) -> Iterator[NumberedRow]:
    name = lines.name
    reader = csv.reader(_decoded(lines), strict=True)
    start = 1
    try:
        header = [column.strip() for column in _next_filled(reader) or ()]
        _check_columns(header, f"{name}:{reader.line_num}", check_header)
        start = reader.line_num + 1
        for cells in reader:
            start = reader.line_num + 1  # of the row after this one
            if not cells:
                continue
            if len(cells) != len(header):
                yield reader.line_num, f"the row has {len(cells)} cells, the header {len(header)}"
            else:
                yield reader.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        text = str(error).replace("unexpected end of data", "a quotation mark is not closed")
        raise TraceFormatError(f"{name}:{start}: bad CSV: {text}") from None


def _check_columns(header: list[str], where: str, check_header: CheckHeader) -> None:
    if not header:
        return
    try:
        check_header(header)
    except RowFaultError as fault:
        raise TraceFormatError(f"{where}: {fault}") from None


def _next_filled(reader: Iterable[list[str]]) -> list[str] | None:
    return next((cells for cells in reader if any(cell.strip() for cell in cells)), None)


def _decoded(lines: TraceLines) -> Iterator[str]:
    for line_number, raw in lines:
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TraceFormatError(f"{lines.name}:{line_number}: byte {error.start + 1} is not UTF-8") from None


def _listed_rows(rows: Iterator[NumberedRow], name: str, lenient: bool, limit: int | None) -> Rows:
    return TraceRows(rows if limit is None else islice(rows, limit), name, _usable, lenient=lenient)


def _usable(row: Row | str) -> Row:
    if isinstance(row, str):
        raise RowFaultError(row)
    return row
