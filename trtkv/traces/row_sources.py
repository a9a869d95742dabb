"""Rows from whatever a file is: JSON lines, one JSON document, CSV, or a folder of such files."""

from __future__ import annotations

import csv
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import IO, Final, TypeAlias, TypeVar, cast

from trtkv.errors import InvalidInputError, TraceFormatError
from trtkv.traces.options import Rows
from trtkv.traces.rows import Row, RowFaultError, TraceRows, check_limit, json_fault, json_rows, open_stream
from trtkv.traces.trace import RowFault

Record = TypeVar("Record")
NumberedRow = tuple[int, Row | str]
"""Line number, and the row or why it is none."""
CheckHeader: TypeAlias = "Callable[[list[str]], object]"

TRACE_SUFFIXES: Final = (".json", ".jsonl", ".csv", ".gz")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_NO_TRACES: Final = {
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it, or pack it with gzip",
    b"\xfd7zXZ": "compressed with xz; unpack it, or pack it with gzip",
    b"BZh": "compressed with bzip2; unpack it, or pack it with gzip",
    b"PK\x03\x04": "a zip archive; unpack it, and give the trace in it",
    b"PAR1": "a Parquet file; write its rows as JSON lines",
    b"\xff\xfe": "UTF-16 text; convert it to UTF-8",
    b"\xfe\xff": "UTF-16 text; convert it to UTF-8",
    b"version https://git-lfs": "a Git LFS pointer, not the trace itself; fetch the trace with git lfs pull",
}
"""How files start that are often taken for a trace, and what they are."""


class FolderRows:
    """Rows of several files one after the other, each opened when it is its turn."""

    def __init__(
        self, folder: str, paths: list[Path], check_header: CheckHeader, *, lenient: bool, limit: int | None
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

    def records(self, convert: Callable[[Row], Record]) -> Iterator[Record]:
        """Each row of each file through ``convert``; faults carry the name of their file."""
        left = self._limit
        for path in self._paths:
            if left == 0:
                return
            with open_stream(path) as stream:
                rows = open_rows(stream, str(path), self._check_header, lenient=self._lenient, limit=left)
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
                    rows = open_rows(stream, str(path), self._check_header, lenient=self._lenient, limit=None)
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


def folder_files(folder: Path) -> list[Path]:
    """Trace files directly in a folder, by name; hidden files and other suffixes are left out."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and path.suffix in TRACE_SUFFIXES and not path.name.startswith(".")
    )


def open_rows(stream: IO[bytes], name: str, check_header: CheckHeader, *, lenient: bool, limit: int | None) -> Rows:
    """Rows of a stream; its first lines that are not blank tell what it is.

    ``check_header`` is called with the columns of a CSV file and raises RowFaultError if they are of no use.
    """
    check_limit(limit)
    lines = _FirstLines(stream, name)
    line = lines.next_filled()
    _check_text(line, name)
    if line.startswith(b"["):
        return _listed_rows(_document_rows(lines.all_bytes(), name), name, lenient, limit)
    if line.startswith(b"{"):
        if _is_cut(line) and not _is_row_start(lines.next_filled()):
            return _listed_rows(_document_rows(lines.all_bytes(), name), name, lenient, limit)
        return json_rows(lines.all_lines(), name, lenient=lenient, limit=limit)
    if _is_broken_row(line) or _is_row_start(lines.next_filled()):
        return json_rows(lines.all_lines(), name, lenient=lenient, limit=limit)
    return _listed_rows(_csv_rows(lines.all_lines(), name, check_header), name, lenient, limit)


class _AheadStream:
    """A stream of which some lines have been read already."""

    def __init__(self, ahead: list[bytes], stream: IO[bytes]) -> None:
        self._lines = chain(ahead, stream)

    def readline(self) -> bytes:
        return next(self._lines, b"")

    def __iter__(self) -> Iterator[bytes]:
        return self._lines


class _FirstLines:
    """The first lines of a stream, to be looked at before it is known who reads it."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._stream = stream
        self._name = name
        self._ahead: list[bytes] = []

    def next_filled(self) -> bytes:
        """The next line that is not blank, stripped; empty at the end."""
        ahead = self._ahead
        try:
            for raw in self._stream:
                ahead.append(raw)
                line = (raw.removeprefix(_BYTE_ORDER_MARK) if len(ahead) == 1 else raw).strip()
                if line:
                    return line
        except (EOFError, OSError, zlib.error) as error:
            raise TraceFormatError(f"{self._name}:{len(ahead) + 1}: cannot read on: {error}") from error
        return b""

    def all_lines(self) -> IO[bytes]:
        """The whole stream, the lines that were looked at included."""
        return cast("IO[bytes]", _AheadStream(self._ahead, self._stream))

    def all_bytes(self) -> bytes:
        """The whole content."""
        try:
            return b"".join(self.all_lines())
        except (EOFError, OSError, zlib.error) as error:
            raise TraceFormatError(f"{self._name}: cannot read on: {error}") from error


def _check_text(line: bytes, name: str) -> None:
    """Raise TraceFormatError if a file that starts with this line is no UTF-8 text."""
    for magic, what in _NO_TRACES.items():
        if line.startswith(magic):
            raise TraceFormatError(f"{name}: {what}")
    if b"\0" in line:
        raise TraceFormatError(f"{name}:1: a byte is 0: the file is binary or UTF-16; give UTF-8 text, plain or gzip")


def _is_row_start(line: bytes) -> bool:
    return line.startswith(b"{")


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


def _document_rows(data: bytes, name: str) -> Iterator[NumberedRow]:
    """Elements of a file that is one JSON array, or the object that it is."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line_number = data.count(b"\n", 0, error.start) + 1
        raise TraceFormatError(f"{name}:{line_number}: byte {error.start + 1} of the file is not UTF-8") from None
    lines = _LineCounter(text)
    position = _skip(text, 0)
    in_array = text[position] == "["
    if in_array:
        position = _skip(text, position + 1)
    while position < len(text) and text[position] != "]":
        start = position
        element, position = _decode(text, position, name, lines)
        yield lines.number(start), _as_row(element)
        position = _skip(text, position)
        if not in_array:
            break
        if text[position : position + 1] == ",":
            position = _skip(text, position + 1)
        elif text[position : position + 1] not in ("]", ""):
            raise TraceFormatError(f"{name}:{lines.number(position)}: bad JSON: no comma after an element")
    if in_array and position >= len(text):
        raise TraceFormatError(f"{name}:{lines.number(position)}: bad JSON: the array is not closed")
    end = _skip(text, position + 1) if in_array else position
    if end < len(text):
        raise TraceFormatError(
            f"{name}:{lines.number(end)}: bad JSON: something follows the document; "
            "write one object a line, or one array of objects"
        )


def _decode(text: str, position: int, name: str, lines: _LineCounter) -> tuple[object, int]:
    try:
        element, end = _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise TraceFormatError(f"{name}:{error.lineno}: bad JSON: {json_fault(error)}") from None
    except RecursionError:
        raise TraceFormatError(f"{name}:{lines.number(position)}: bad JSON: nested too deeply") from None
    except ValueError as error:
        raise TraceFormatError(f"{name}:{lines.number(position)}: bad JSON: {error}") from None
    return element, end


def _as_row(element: object) -> Row | str:
    return element if isinstance(element, dict) else f"the element is {element!r:.80}, not an object"


class _LineCounter:
    """Line numbers of growing positions in a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._number = 1

    def number(self, position: int) -> int:
        self._number += self._text.count("\n", self._position, position)
        self._position = max(self._position, position)
        return self._number


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _refuse_constant(constant: str) -> object:
    raise ValueError(f"{constant} is no number")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def _csv_rows(stream: IO[bytes], name: str, check_header: CheckHeader) -> Iterator[NumberedRow]:
    reader = csv.reader(_decoded(stream, name), strict=True)
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


def _decoded(stream: IO[bytes], name: str) -> Iterator[str]:
    line_number = 0
    try:
        for line_number, raw in enumerate(stream, 1):
            yield (raw.removeprefix(_BYTE_ORDER_MARK) if line_number == 1 else raw).decode("utf-8")
    except UnicodeDecodeError as error:
        raise TraceFormatError(f"{name}:{line_number}: byte {error.start + 1} is not UTF-8") from None
    except (EOFError, OSError, zlib.error) as error:
        raise TraceFormatError(f"{name}:{line_number + 1}: cannot read on: {error}") from error


def _listed_rows(rows: Iterator[NumberedRow], name: str, lenient: bool, limit: int | None) -> Rows:
    return TraceRows(rows if limit is None else islice(rows, limit), name, _usable, lenient=lenient)


def _usable(row: Row | str) -> Row:
    if isinstance(row, str):
        raise RowFaultError(row)
    return row
