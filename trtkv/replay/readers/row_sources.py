"""Rows from whatever a file is: JSON lines, one JSON document, CSV, or a folder of such files."""

from __future__ import annotations

import csv
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import IO, Final, TypeVar, cast

from trtkv.errors import InvalidInputError, TraceFormatError
from trtkv.replay.readers.options import Rows
from trtkv.replay.rows import JsonRows, Row, RowFaultError, open_stream
from trtkv.replay.trace import RowFault

Record = TypeVar("Record")
NumberedRow = tuple[int, Row | str]
"""Line number, and the row or why it is none."""

TRACE_SUFFIXES: Final = (".json", ".jsonl", ".csv", ".gz")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class ListedRows:
    """Rows that lie ready, with the rules of JsonRows: a faulty row raises, or is kept in ``faults`` when lenient."""

    def __init__(self, rows: Iterator[NumberedRow], name: str, *, lenient: bool, limit: int | None) -> None:
        self.name = name
        self.faults: list[RowFault] = []
        self._rows = _limited(rows, limit)
        self._lenient = lenient

    def records(self, convert: Callable[[Row], Record]) -> Iterator[Record]:
        """Each remaining row through ``convert``."""
        for line_number, row in self._rows:
            try:
                record = convert(_usable(row))
            except RowFaultError as fault:
                self._refuse(line_number, str(fault))
                self.faults.append(RowFault(line_number, str(fault)))
            else:
                yield record

    def first(self, usable: Callable[[Row], Record]) -> Record | None:
        """``usable`` of the first row that it does not refuse; no row is used up."""
        tried: list[NumberedRow] = []
        try:
            for line_number, row in self._rows:
                tried.append((line_number, row))
                try:
                    return usable(_usable(row))
                except RowFaultError as fault:
                    self._refuse(line_number, str(fault))
            return None
        finally:
            self._rows = chain(tried, self._rows)

    def _refuse(self, line_number: int, reason: str) -> None:
        if not self._lenient:
            raise TraceFormatError(f"{self.name}:{line_number}: {reason}") from None


class FolderRows:
    """Rows of several files one after the other, each opened when it is its turn."""

    def __init__(self, folder: str, paths: list[Path], *, lenient: bool, limit: int | None) -> None:
        if not paths:
            raise InvalidInputError(f"{folder}: no trace file was found in the folder")
        self.name = str(paths[0].parent)
        self.faults: list[RowFault] = []
        self._paths = paths
        self._lenient = lenient
        self._limit = limit

    def records(self, convert: Callable[[Row], Record]) -> Iterator[Record]:
        """Each row of each file through ``convert``; faults carry the name of their file."""
        left = self._limit
        for path in self._paths:
            if left == 0:
                return
            with open_stream(path) as stream:
                rows = open_rows(stream, str(path), lenient=self._lenient, limit=left)
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
        for path in self._paths:
            with open_stream(path) as stream:
                record = open_rows(stream, str(path), lenient=self._lenient, limit=None).first(usable)
            if record is not None:
                found.append((path, record))
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


def open_rows(stream: IO[bytes], name: str, *, lenient: bool, limit: int | None) -> Rows:
    """Rows of a stream; its first line that is not blank tells what it is."""
    if limit is not None and limit < 0:
        raise InvalidInputError(f"limit is {limit}; give the number of rows to read, 0 or more")
    ahead, line = _first_line(stream, name)
    rest = cast("IO[bytes]", _AheadStream(ahead, stream))
    if line.startswith(b"{"):
        if not _is_cut(line):
            return JsonRows(rest, name, lenient=lenient, limit=limit)
        data = b"".join(rest)
        if not _is_object(data):
            return JsonRows(BytesIO(data), name, lenient=lenient, limit=limit)
        return ListedRows(_document_rows(data, name), name, lenient=lenient, limit=limit)
    if line.startswith(b"["):
        return ListedRows(_document_rows(b"".join(rest), name), name, lenient=lenient, limit=limit)
    return ListedRows(_csv_rows(rest, name), name, lenient=lenient, limit=limit)


class _AheadStream:
    """A stream of which some lines have been read already."""

    def __init__(self, ahead: list[bytes], stream: IO[bytes]) -> None:
        self._lines = chain(ahead, stream)

    def readline(self) -> bytes:
        return next(self._lines, b"")

    def __iter__(self) -> Iterator[bytes]:
        return self._lines


def _first_line(stream: IO[bytes], name: str) -> tuple[list[bytes], bytes]:
    ahead: list[bytes] = []
    try:
        for raw in stream:
            ahead.append(raw)
            line = (raw.removeprefix(_BYTE_ORDER_MARK) if len(ahead) == 1 else raw).strip()
            if line:
                return ahead, line
    except (EOFError, OSError, zlib.error) as error:
        raise TraceFormatError(f"{name}:{len(ahead) + 1}: cannot read on: {error}") from error
    return ahead, b""


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


def _is_object(data: bytes) -> bool:
    """Whether the whole file is one JSON object."""
    try:
        return isinstance(json.loads(data), dict)
    except (ValueError, RecursionError):
        return False


def _document_rows(data: bytes, name: str) -> Iterator[NumberedRow]:
    """Elements of a file that is one JSON array, or the object that it is."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceFormatError(f"{name}: byte {error.start + 1} is not UTF-8") from None
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
        raise TraceFormatError(f"{name}:{lines.number(end)}: bad JSON: something follows the document")


def _decode(text: str, position: int, name: str, lines: _LineCounter) -> tuple[object, int]:
    try:
        element, end = _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise TraceFormatError(f"{name}:{error.lineno}: bad JSON: {error.msg} at column {error.colno}") from None
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


def _csv_rows(stream: IO[bytes], name: str) -> Iterator[NumberedRow]:
    reader = csv.reader(_decoded(stream, name), strict=True)
    try:
        header = [column.strip() for column in _next_filled(reader) or ()]
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                yield reader.line_num, f"the row has {len(cells)} cells, the header {len(header)}"
            else:
                yield reader.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise TraceFormatError(f"{name}:{reader.line_num}: bad CSV: {error}") from None


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


def _limited(rows: Iterator[NumberedRow], limit: int | None) -> Iterator[NumberedRow]:
    if limit is None:
        return rows
    return (row for _, row in zip(range(limit), rows, strict=False))


def _usable(row: Row | str) -> Row:
    if isinstance(row, str):
        raise RowFaultError(row)
    return row
