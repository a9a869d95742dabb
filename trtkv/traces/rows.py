"""TraceRows: rows of a stream with their line numbers; a faulty row raises or is counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import chain, islice
from typing import Final, Generic, TypeVar

from trtkv.checks import check_integer
from trtkv.errors import InvalidInputError, TraceFormatError
from trtkv.traces.trace import RowFault
from trtkv.traces.trace_stream import TraceLines

Item = TypeVar("Item")
Record = TypeVar("Record")
Row = dict[str, object]


class RowFaultError(ValueError):
    """A row cannot be used; the text is the reason, without file and line."""


class TraceRows(Generic[Item]):
    """Rows of one stream, read once from front to back.

    A faulty row raises TraceFormatError with file, line number and reason, or, when ``lenient``, is kept in ``faults``.

    Items are what the file holds, with their line numbers; ``parse`` makes a row of one or raises RowFaultError.
    ``quick_parse`` may do the same faster. An item that is refused is parsed again by ``parse``, whose reading is the
    one that counts.
    """

    def __init__(
        self,
        items: Iterator[tuple[int, Item]],
        name: str,
        parse: Callable[[Item], Row],
        quick_parse: Callable[[Item], Row] | None = None,
        *,
        lenient: bool = False,
    ) -> None:
        self.name = name
        self.faults: list[RowFault] = []
        self._items = items
        self._parse = parse
        self._quick_parse = quick_parse or parse
        self._lenient = lenient

    def records(self, convert: Callable[[Row], Record]) -> Iterator[Record]:
        """Each remaining row through ``convert``, which raises RowFaultError for a row it cannot use.

        ``convert`` must leave no trace of a row that it refuses.
        """
        for line_number, item in self._items:
            try:
                record = convert(self._quick_parse(item))
            except ValueError:
                try:
                    record = convert(self._parse(item))
                except RowFaultError as fault:
                    if not self._lenient:
                        raise self._error(line_number, str(fault)) from None
                    self.faults.append(RowFault(line_number, str(fault)))
                    continue
                except InvalidInputError as error:  # of the options, not of the row: no row to skip
                    raise type(error)(f"{self.name}:{line_number}: {error}") from None
            yield record

    def first(self, usable: Callable[[Row], Record]) -> Record | None:
        """``usable`` of the first row that it does not refuse; no row is used up. None without rows.

        When not lenient, only the first row is tried. Raises TraceFormatError if there are rows and all are refused.
        """
        tried: list[tuple[int, Item]] = []
        refused: RowFault | None = None
        try:
            for line_number, item in self._items:
                tried.append((line_number, item))
                try:
                    return usable(self._parse(item))
                except RowFaultError as fault:
                    refused = refused or RowFault(line_number, str(fault))
                    if not self._lenient:
                        break
            if refused is not None:
                raise self._error(refused.line_number, refused.reason)
            return None
        finally:
            self._items = chain(tried, self._items)

    def _error(self, line_number: int, reason: str) -> TraceFormatError:
        return TraceFormatError(f"{self.name}:{line_number}: {reason}")


def json_rows(lines: TraceLines, *, lenient: bool = False, limit: int | None = None) -> TraceRows[bytes]:
    """Rows of JSON lines. Blank lines are passed over; ``limit`` counts rows, faulty ones included."""
    check_limit(limit)
    filled = (numbered for numbered in lines if numbered[1].strip())
    return TraceRows(islice(filled, limit), lines.name, parse_row, _quick_parse(), lenient=lenient)


def check_limit(limit: int | None) -> None:
    """Raise InvalidInputError unless it is a number of rows, or None."""
    if limit is not None and check_integer("limit", limit) < 0:
        raise InvalidInputError(f"limit is {limit}; give the number of rows to read, 0 or more")


def parse_row(line: bytes) -> Row:
    """A line as a JSON object; RowFaultError when it is none."""
    try:
        return _as_object(_DECODER.decode(line.decode(json.detect_encoding(line), "surrogatepass").rstrip("\r\n")))
    except RowFaultError:
        raise
    except json.JSONDecodeError as error:
        raise RowFaultError(f"bad JSON: {json_fault(error)}") from None
    except UnicodeDecodeError as error:
        raise RowFaultError(f"bad JSON: byte {error.start + 1} is not UTF-8") from None
    except RecursionError:
        raise RowFaultError("bad JSON: nested too deeply") from None
    except ValueError as error:
        raise RowFaultError(f"bad JSON: {error}") from None


def json_fault(error: json.JSONDecodeError) -> str:
    """What the parser did not like and at which column."""
    if not error.doc.lstrip().startswith(("{", "[")):
        return f"a row starts with {{, not with {error.doc.strip()!r:.40}"
    if error.msg == "Extra data":
        return f"something follows the object at column {error.colno}; write one object a line"
    return f"{error.msg.removesuffix(' at')} at column {error.colno}"


def _quick_parse() -> Callable[[bytes], Row]:
    """The quickest parser at hand; orjson is about three times as fast as the standard library's."""
    try:
        loads = import_module("orjson").loads
    except ImportError:
        return parse_row
    return lambda line: _as_object(loads(line))


def _as_object(value: object) -> Row:
    if not isinstance(value, dict):
        raise RowFaultError(f"the row is a JSON {_json_kind(value)}, not an object")
    return value


def _json_kind(value: object) -> str:
    if isinstance(value, list):
        return "array"
    if isinstance(value, str):
        return "string"
    return "null" if value is None else "true or false" if isinstance(value, bool) else "number"


def _refuse_constant(text: str) -> object:
    raise RowFaultError(f"bad JSON: {text} is not a number")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)
