"""All trace formats: how each is told from the others, and read_requests, which reads any of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar, cast

from trtkv.errors import InvalidInputError, TraceFormatError
from trtkv.traces.formats.agentic import read_agentic
from trtkv.traces.formats.bailian import BAILIAN_BLOCK_SIZE, read_bailian
from trtkv.traces.formats.chat_text import read_openai, read_sharegpt
from trtkv.traces.formats.dynamo import DYNAMO_SCHEMA, read_dynamo, unwrapped
from trtkv.traces.formats.kvcache_simulator import read_kvcache_simulator
from trtkv.traces.formats.lengths import (
    AZURE,
    BURSTGPT,
    VIDUR,
    LengthColumns,
    read_azure,
    read_burstgpt,
    read_vidur,
    refuse_hit_rates,
)
from trtkv.traces.formats.mooncake import FORMATS, shown_keys, why_no_request
from trtkv.traces.options import ReadOptions, Rows
from trtkv.traces.row_sources import FolderRows, folder_files, open_rows
from trtkv.traces.rows import STDIN_NAME, JsonRows, Row, RowFaultError, open_stream
from trtkv.traces.trace import HashIdTokens, RequestTrace, TraceRequest

Record = TypeVar("Record")


class TraceReader(NamedTuple):
    """One format."""

    name: str
    summary: str
    """What a row is, for help texts."""
    recognise: Callable[[Row], str | None]
    """Why a row is of this format, or None."""
    read: Callable[[Rows, ReadOptions], list[TraceRequest]]
    """Requests in replay order."""
    seconds_per_unit: float | None = None
    """Seconds of one unit of its timestamps; None if they are no times of one clock."""
    has_tokens: bool = True
    """False: only lengths are known."""
    has_text: bool = False
    """Whether rows are text, from which a tokenizer makes tokens."""
    keys: tuple[str, ...] = ()
    """Keys or columns of each row, for complaints; empty if other things tell the format."""

    @property
    def is_csv(self) -> bool:
        """Whether its files are CSV."""
        return not self.has_tokens


class LoadedTrace(NamedTuple):
    """A trace, and what told its format."""

    trace: RequestTrace
    detected: str
    """E.g. ``mooncake (the first row has input_length, hash_ids)``; says so if the user named the format."""


def _by_keys(
    name: str,
    summary: str,
    keys: tuple[str, ...],
    read: Callable[[Rows, ReadOptions], list[TraceRequest]],
    seconds_per_unit: float | None = None,
    *,
    has_text: bool = False,
) -> TraceReader:
    """A format of JSON objects that is told by their keys."""

    def recognise(row: Row) -> str | None:
        return f"the first row has {', '.join(keys)}" if all(key in row for key in keys) else None

    return TraceReader(name, summary, recognise, read, seconds_per_unit, has_text=has_text, keys=keys)


def _by_columns(
    name: str, columns: LengthColumns, read: Callable[[Rows, ReadOptions], list[TraceRequest]]
) -> TraceReader:
    """A CSV format with lengths only; times are in seconds."""

    def recognise(row: Row) -> str | None:
        return f"the columns include {', '.join(columns)}" if all(column in row for column in columns) else None

    return TraceReader(name, "lengths only", recognise, read, 1.0, has_tokens=False, keys=tuple(columns))


def _is_dynamo(row: Row) -> str | None:
    return f"the first row has schema {DYNAMO_SCHEMA}" if unwrapped(row).get("schema") == DYNAMO_SCHEMA else None


def _is_openai(row: Row) -> str | None:
    for path in ((), ("body",), ("request",), ("request", "body")):
        inner: object = row
        for key in path:
            inner = inner.get(key) if isinstance(inner, dict) else None
        for key in ("messages", "prompt"):
            if isinstance(inner, dict) and key in inner:
                return f"the first row has {'.'.join((*path, key))}"
    return None


def _basic(name: str) -> Callable[[Rows, ReadOptions], list[TraceRequest]]:
    """A format of trtkv.traces.formats.mooncake, which takes rows of any source."""

    def read(rows: Rows, options: ReadOptions) -> list[TraceRequest]:
        return FORMATS[name].read(cast("JsonRows", rows), options.block_size)

    return read


READERS: Final[dict[str, TraceReader]] = {
    reader.name: reader
    for reader in (
        # From the most special to the most general: the first one that recognises a row takes it.
        TraceReader("dynamo", f"{DYNAMO_SCHEMA} records", _is_dynamo, read_dynamo, 1e-3),
        _by_keys("agentic", "agent sessions (kv-cache-tester)", ("block_size", "requests"), read_agentic),
        _by_keys(
            "bailian",
            f"Qwen Bailian rows, {BAILIAN_BLOCK_SIZE} tokens per hash id",
            ("chat_id", "input_length", "hash_ids"),
            read_bailian,
            1.0,
        ),
        _by_keys(
            "kvcache-simulator",
            "hash ids with the block size in each row",
            ("block_size", "input_length", "hash_ids"),
            read_kvcache_simulator,
        ),
        _by_keys("mooncake", "hash ids of blocks", FORMATS["mooncake"].keys, _basic("mooncake"), 1e-3),
        _by_keys("tokens", "token ids", FORMATS["tokens"].keys, _basic("tokens"), 1e-9),
        _by_keys("sharegpt", "conversations as text", ("conversations",), read_sharegpt, has_text=True),
        TraceReader("openai", "chat or completion requests as text", _is_openai, read_openai, has_text=True),
        _by_columns("azure", AZURE, read_azure),
        _by_columns("burstgpt", BURSTGPT, read_burstgpt),
        _by_columns("vidur", VIDUR, read_vidur),
    )
}


def read_requests(
    path: str | os.PathLike[str],
    options: ReadOptions | None = None,
    *,
    format_name: str | None = None,
    lenient: bool = False,
    limit: int | None = None,
    allow_lengths_only: bool = False,
) -> LoadedTrace:
    """Read a trace: a file, plain or gzip; a folder of files of one format; ``-`` is standard input.

    Without ``format_name`` the first row tells the format. ``limit`` takes so many rows from the front, ``lenient``
    skips faulty rows and counts them. Raises TraceFormatError with file, line and reason; InvalidInputError for a
    format without tokens, unless ``allow_lengths_only``.
    """
    shown = os.fspath(path)
    named = _named(format_name) if format_name else None
    check_header = partial(_check_header, named=named)
    options = options or ReadOptions()
    if shown != STDIN_NAME and os.path.isdir(shown):
        rows: Rows = FolderRows(shown, folder_files(Path(shown)), check_header, lenient=lenient, limit=limit)
        return _load(rows, shown, options, named, allow_lengths_only, limit)
    with open_stream(path) as stream:
        rows = open_rows(stream, shown, check_header, lenient=lenient, limit=limit)
        return _load(rows, shown, options, named, allow_lengths_only, limit)


def _load(
    rows: Rows, shown: str, options: ReadOptions, named: TraceReader | None, lengths_only: bool, limit: int | None
) -> LoadedTrace:
    reader, reason = (named, "named by the user") if named else _detected(rows, shown, limit)
    name = reader.name
    if named is not None:
        if _lacks_an_option(named, options, lengths_only) and rows.first(partial(_check_named, reader=named)) is None:
            raise TraceFormatError(f"{shown}: {why_no_request([], limit)}")
        rows = _NamedRows(rows, named)
    if not reader.has_tokens and not lengths_only:
        refuse_hit_rates(f"{shown} ({name})")
    if reader.has_text and options.tokenizer is None:
        raise InvalidInputError(f"{shown} ({name}) holds text: name a local tokenizer file with --tokenizer")
    if not reader.has_text:
        for name_of_option, value in (("--tokenizer", options.tokenizer), ("--chat-template", options.chat_template)):
            if value is not None:
                raise InvalidInputError(
                    f"{shown} ({name}) is no text and {name_of_option} {value} of no use; leave it out"
                )
    requests = reader.read(rows, options)
    if not requests:
        raise TraceFormatError(f"{shown}: {why_no_request(rows.faults, limit)}")
    trace = RequestTrace(
        name=os.path.basename(os.path.normpath(shown)),
        format=name,
        block_size=_block_size(requests, options),
        requests=requests,
        faults=rows.faults,
    )
    return LoadedTrace(trace, f"{name} ({reason})")


class _NamedRows:
    """Rows of a format that the user named; a complaint about one that looks like another format says so."""

    def __init__(self, rows: Rows, reader: TraceReader) -> None:
        self.name = rows.name
        self.faults = rows.faults
        self._rows = rows
        self._reader = reader

    def records(self, convert: Callable[[Row], Record]) -> Iterator[Record]:
        """Each row through ``convert``."""

        def convert_named(row: Row) -> Record:
            try:
                return convert(row)
            except (RowFaultError, InvalidInputError) as fault:
                raise type(fault)(f"{fault}{_other_format(row, self._reader)}") from None

        return self._rows.records(convert_named)

    def first(self, usable: Callable[[Row], Record]) -> Record | None:
        """``usable`` of the first row that it does not refuse."""
        return self._rows.first(usable)


def _named(name: str) -> TraceReader:
    if name not in READERS:
        raise InvalidInputError(f"unknown trace format {name!r}; known are {', '.join(READERS)}")
    return READERS[name]


def _detected(rows: Rows, shown: str, limit: int | None) -> tuple[TraceReader, str]:
    found = rows.first(_recognised)
    if found is None:
        raise TraceFormatError(f"{shown}: {why_no_request([], limit)}")
    name, reason = found
    return READERS[name], reason


def _recognised(row: Row) -> tuple[str, str]:
    """Name of the format of a row, and why. RowFaultError if there is none."""
    for reader in READERS.values():
        reason = reader.recognise(row)
        if reason is not None:
            return reader.name, reason
    nearest = max(READERS.values(), key=lambda reader: sum(key in row for key in reader.keys))
    hint = f"; nearest is {nearest.name}, which has {', '.join(nearest.keys)}" if set(nearest.keys) & set(row) else ""
    raise RowFaultError(f"the row's keys ({shown_keys(row)}) belong to no known format ({', '.join(READERS)}){hint}")


def _lacks_an_option(reader: TraceReader, options: ReadOptions, lengths_only: bool) -> bool:
    """Whether the format is refused before a row of it is read, which must not hide that the format is a wrong one."""
    needs_block_size = reader.name in FORMATS and FORMATS[reader.name].uses_block_size
    return (
        (reader.has_text and options.tokenizer is None)
        or (needs_block_size and options.block_size is None)
        or not (reader.has_tokens or lengths_only)
    )


def _check_named(row: Row, reader: TraceReader) -> bool:
    """Raise RowFaultError for a row that is not of the format that the user named."""
    if reader.recognise(row) is None:
        raise RowFaultError(
            f"the row's keys ({shown_keys(row)}) are not those of {reader.name}{_other_format(row, reader)}"
        )
    return True


def _check_header(header: list[str], named: TraceReader | None) -> None:
    """Raise RowFaultError for columns that are not those of the format: the one that was named, or any."""
    row: Row = dict.fromkeys(header, "")
    if any(reader.recognise(row) for reader in ([named] if named else READERS.values())):
        return
    columns = f"the columns ({shown_keys(header)})"
    if named is not None and not named.is_csv:
        raise RowFaultError(f"{columns} are not {named.name}, whose rows are JSON objects{_other_format(row, named)}")
    commas = "; columns are separated by commas" if len(header) == 1 and set(";\t") & set(header[0]) else ""
    if named is not None:
        needed = ", ".join(named.keys)
        raise RowFaultError(f"{columns} are not {named.name}, which has {needed}{commas}{_other_format(row, named)}")
    known = "; ".join(f"{reader.name} has {', '.join(reader.keys)}" for reader in READERS.values() if reader.is_csv)
    raise RowFaultError(f"{columns} belong to no known format, and the line is no JSON object: {known}{commas}")


def _other_format(row: Row, named: TraceReader) -> str:
    """What to add to a complaint about a row if it looks like a format other than the named one; or nothing."""
    if named.recognise(row) is not None:
        return ""
    other = next((reader.name for reader in READERS.values() if reader.recognise(row)), None)
    return "" if other is None else f"; it looks like {other}: leave --format {named.name} out, or give {other}"


def _block_size(requests: list[TraceRequest], options: ReadOptions) -> int | None:
    """Tokens of a hash id, from the tokens that were made; None for formats without hash ids."""
    source = requests[0].source
    if isinstance(source, HashIdTokens):
        return source.block_size
    size = getattr(source, "block_size", None)
    return size if isinstance(size, int) else None
