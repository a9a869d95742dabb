"""read_trace: reads a request trace of any format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from trtkv.checks import check_integer
from trtkv.errors import InvalidInputError, TraceFormatError
from trtkv.traces.formats.registry import FORMAT_NAMES, all_formats, find_format
from trtkv.traces.length_columns import refuse_hit_rates
from trtkv.traces.options import ReadOptions, Rows
from trtkv.traces.row_sources import FolderRows, folder_files, open_rows
from trtkv.traces.rows import Row, RowFaultError
from trtkv.traces.sessions.apply_protocol import apply_protocol
from trtkv.traces.sessions.protocol import Outputs, SessionProtocol, Sessions
from trtkv.traces.trace import RequestTrace, RowFault, TraceRequest
from trtkv.traces.trace_format import TraceFormat
from trtkv.traces.trace_stream import DEFAULT_MAX_LINE_BYTES, STDIN_NAME, open_stream

Record = TypeVar("Record")

_MAX_SHOWN_KEYS: Final = 160
"""Letters."""


class _Found(NamedTuple):
    """A format, and what told it."""

    name: str
    reason: str


def read_trace(
    path: str | os.PathLike[str],
    *,
    format_name: str | None = None,
    block_size: int | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    chat_template: str | None = None,
    output_length: int | None = None,
    lenient: bool = False,
    limit: int | None = None,
    max_line_bytes: int | None = None,
    allow_lengths_only: bool = False,
    sessions: Sessions | str = Sessions.TRACE,
    outputs: Outputs | str = Outputs.TRACE,
) -> RequestTrace:
    """Read a trace: a file, plain, gzip, zstd or Parquet; a folder of files of one format; ``-`` is standard input.

    Without ``format_name`` the first row tells the format. ``block_size`` (tokens of a hash id), ``tokenizer`` and
    ``chat_template`` are for the formats that need them; ``output_length`` is for rows that do not say how much is
    generated. ``sessions`` and ``outputs`` say which requests wait for others and what they generate: docs/sessions.md.
    ``limit`` takes this many rows from the front, ``lenient`` skips faulty rows and counts them. Raises
    TraceFormatError with file, line and reason for what is not a trace, and for a row longer than ``max_line_bytes``;
    InvalidInputError for wrong options, and for a format without tokens unless ``allow_lengths_only``.
    """
    shown = os.fspath(path)
    named = find_format(format_name) if format_name else None
    if output_length is not None and check_integer("output length", output_length) < 0:
        raise InvalidInputError(f"output length is {output_length}; give 0 or more")
    options = ReadOptions(block_size, None if tokenizer is None else Path(tokenizer), chat_template, output_length)
    protocol = SessionProtocol(Sessions(sessions), Outputs(outputs))
    with _open(path, named, lenient, limit, max_line_bytes) as rows:
        return apply_protocol(_load(rows, shown, options, named, allow_lengths_only, limit), protocol)


def detect_format(path: str | os.PathLike[str]) -> TraceFormat:
    """The format of a trace, by its first row. Raises TraceFormatError if it is not known."""
    with _open(path, None, False, None, None) as rows:
        return find_format(_detected(rows, os.fspath(path), None).name)


@contextmanager
def _open(
    path: str | os.PathLike[str], named: TraceFormat | None, lenient: bool, limit: int | None, max_bytes: int | None
) -> Iterator[Rows]:
    """Rows of a file, a folder or standard input."""
    shown = os.fspath(path)
    check_header = partial(_check_header, named=named)
    limits: dict[str, Any] = {
        "lenient": lenient,
        "limit": limit,
        "max_line_bytes": DEFAULT_MAX_LINE_BYTES if max_bytes is None else max_bytes,
    }
    if shown != STDIN_NAME and os.path.isdir(shown):
        yield FolderRows(shown, folder_files(Path(shown)), check_header, **limits)
        return
    with open_stream(path) as stream:
        yield open_rows(stream, shown, check_header, **limits)


def _detected(rows: Rows, shown: str, limit: int | None) -> _Found:
    found = rows.first(_recognised)
    if found is None:
        raise TraceFormatError(f"{shown}: {_why_no_request([], limit)}")
    return found


def _load(
    rows: Rows, shown: str, options: ReadOptions, named: TraceFormat | None, lengths_only: bool, limit: int | None
) -> RequestTrace:
    if named is None:
        found = _detected(rows, shown, limit)
        trace_format, reason = find_format(found.name), found.reason
    else:
        trace_format, reason = named, "named by the user"
        if _lacks_an_option(named, options, lengths_only) and rows.first(partial(_check_named, named=named)) is None:
            raise TraceFormatError(f"{shown}: {_why_no_request([], limit)}")
        rows = _NamedRows(rows, named)
    _check_options(trace_format, f"{shown} ({trace_format.name})", options, lengths_only)
    requests = trace_format.read(rows, options)
    if not requests:
        raise TraceFormatError(f"{shown}: {_why_no_request(rows.faults, limit)}")
    return RequestTrace(
        name=os.path.basename(os.path.normpath(shown)),
        format=trace_format.name,
        block_size=_block_size(requests),
        requests=requests,
        faults=rows.faults,
        row_limit=limit,
        detected=f"{trace_format.name} ({reason})",
        seconds_per_unit=trace_format.seconds_per_unit if any(request.is_timed for request in requests) else None,
        has_tokens=trace_format.has_tokens,
        warnings=trace_format.find_warnings(requests) if trace_format.find_warnings else (),
    )


def _check_options(trace_format: TraceFormat, shown: str, options: ReadOptions, lengths_only: bool) -> None:
    """Raise InvalidInputError for options that the format needs, or has no use for."""
    if not trace_format.has_tokens and not lengths_only:
        refuse_hit_rates(shown)
    if not trace_format.has_text:
        for name_of_option, value in (("--tokenizer", options.tokenizer), ("--chat-template", options.chat_template)):
            if value is not None:
                raise InvalidInputError(f"{shown} is not a text format; {name_of_option} {value} does not apply")


class _NamedRows:
    """Rows of a format that the user named; a complaint about one that looks like another format says so."""

    def __init__(self, rows: Rows, named: TraceFormat) -> None:
        self.name = rows.name
        self.faults = rows.faults
        self._rows = rows
        self._named = named

    def records(self, convert: Callable[[Row], Record]) -> Iterator[Record]:
        """Each row through ``convert``."""

        def convert_named(row: Row) -> Record:
            try:
                return convert(row)
            except (RowFaultError, InvalidInputError) as fault:
                raise type(fault)(f"{fault}{_other_format(row, self._named)}") from None

        return self._rows.records(convert_named)

    def first(self, usable: Callable[[Row], Record]) -> Record | None:
        """``usable`` of the first row that it does not refuse."""
        return self._rows.first(usable)


def _recognised(row: Row) -> _Found:
    """The format of a row. RowFaultError if there is none."""
    formats = tuple(all_formats())
    for trace_format in formats:
        reason = trace_format.match(row)
        if reason is not None:
            return _Found(trace_format.name, reason)
    nearest = max(formats, key=lambda trace_format: sum(key in row for key in trace_format.keys))
    hint = f"; nearest is {nearest.name}, which has {', '.join(nearest.keys)}" if set(nearest.keys) & set(row) else ""
    raise RowFaultError(
        f"the row's keys ({_shown_keys(row)}) belong to no known format ({', '.join(FORMAT_NAMES)}){hint}"
    )


def _lacks_an_option(named: TraceFormat, options: ReadOptions, lengths_only: bool) -> bool:
    """Whether the format is refused before a row of it is read, which must not hide that the format is a wrong one."""
    return (named.needs_block_size and options.block_size is None) or not (named.has_tokens or lengths_only)


def _check_named(row: Row, named: TraceFormat) -> bool:
    """Raise RowFaultError for a row that is not of the format that the user named."""
    if named.match(row) is None:
        raise RowFaultError(
            f"the row's keys ({_shown_keys(row)}) are not those of {named.name}{_other_format(row, named)}"
        )
    return True


def _check_header(header: list[str], named: TraceFormat | None) -> None:
    """Raise RowFaultError for columns that are not those of the format: the one that was named, or any."""
    row: Row = dict.fromkeys(header, "")
    if any(trace_format.match(row) for trace_format in ([named] if named else all_formats())):
        return
    columns = f"the columns ({_shown_keys(header)})"
    if named is not None and not named.is_csv:
        raise RowFaultError(f"{columns} are not {named.name}, whose rows are JSON objects{_other_format(row, named)}")
    commas = "; columns are separated by commas" if len(header) == 1 and set(";\t") & set(header[0]) else ""
    if named is not None:
        needed = ", ".join(named.keys)
        raise RowFaultError(f"{columns} are not {named.name}, which has {needed}{commas}{_other_format(row, named)}")
    known = "; ".join(f"{found.name} has {', '.join(found.keys)}" for found in all_formats() if found.is_csv)
    raise RowFaultError(f"{columns} belong to no known format, and the line is not a JSON object: {known}{commas}")


def _other_format(row: Row, named: TraceFormat) -> str:
    """What to add to a complaint about a row if it looks like a format other than the named one; or nothing."""
    if named.match(row) is not None:
        return ""
    other = next((trace_format.name for trace_format in all_formats() if trace_format.match(row)), None)
    return "" if other is None else f"; it looks like {other}: leave --format {named.name} out, or give {other}"


def _block_size(requests: list[TraceRequest]) -> int | None:
    """Tokens of a hash id, from the tokens that were made; None for formats without hash ids."""
    size = getattr(requests[0].source, "block_size", None)
    return size if isinstance(size, int) else None


def _why_no_request(faults: list[RowFault], limit: int | None) -> str:
    """Why a file that can be read gave no request."""
    if faults:
        return (
            f"none of its {len(faults)} rows can be used; the first is line {faults[0].line_number}: {faults[0].reason}"
        )
    if limit == 0:
        return "the limit is 0, so no row was read; give at least 1"
    return "holds no request: the file is empty, or no row of it is one"


def _shown_keys(row: Iterable[str]) -> str:
    """Keys of a row for a complaint, which stays one readable line."""
    text = ", ".join(row) or "none"
    return text if len(text) <= _MAX_SHOWN_KEYS else f"{text[:_MAX_SHOWN_KEYS]}..."
