"""All trace formats: how each is told from the others, and read_requests, which reads any of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, cast

from trtkv.errors import InvalidInputError, TraceFormatError
from trtkv.replay.formats import FORMATS
from trtkv.replay.readers.agentic import read_agentic
from trtkv.replay.readers.bailian import BAILIAN_BLOCK_SIZE, read_bailian
from trtkv.replay.readers.chat_text import read_openai, read_sharegpt
from trtkv.replay.readers.dynamo import DYNAMO_SCHEMA, read_dynamo, unwrapped
from trtkv.replay.readers.kvcache_simulator import read_kvcache_simulator
from trtkv.replay.readers.lengths import (
    AZURE,
    BURSTGPT,
    VIDUR,
    LengthColumns,
    read_azure,
    read_burstgpt,
    read_vidur,
    refuse_hit_rates,
)
from trtkv.replay.readers.options import ReadOptions, Rows
from trtkv.replay.readers.row_sources import FolderRows, folder_files, open_rows
from trtkv.replay.rows import STDIN_NAME, JsonRows, Row, RowFaultError, open_stream
from trtkv.replay.trace import HashIdTokens, RequestTrace, TraceRequest


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


class LoadedTrace(NamedTuple):
    """A trace, and what told its format."""

    trace: RequestTrace
    detected: str
    """E.g. ``mooncake (the first row has input_length, hash_ids)``; says so if the user named the format."""


def _with_keys(*keys: str) -> Callable[[Row], str | None]:
    def recognise(row: Row) -> str | None:
        return f"the first row has {', '.join(keys)}" if all(key in row for key in keys) else None

    return recognise


def _with_columns(columns: LengthColumns) -> Callable[[Row], str | None]:
    def recognise(row: Row) -> str | None:
        return f"the columns include {', '.join(columns)}" if all(column in row for column in columns) else None

    return recognise


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
    """A format of trtkv.replay.formats, which takes rows of any source."""

    def read(rows: Rows, options: ReadOptions) -> list[TraceRequest]:
        return FORMATS[name].read(cast("JsonRows", rows), options.block_size)

    return read


READERS: Final[dict[str, TraceReader]] = {
    reader.name: reader
    for reader in (
        # From the most special to the most general: the first one that recognises a row takes it.
        TraceReader("dynamo", f"{DYNAMO_SCHEMA} records", _is_dynamo, read_dynamo, 1e-3),
        TraceReader("agentic", "agent sessions (kv-cache-tester)", _with_keys("block_size", "requests"), read_agentic),
        TraceReader(
            "bailian",
            f"Qwen Bailian rows, {BAILIAN_BLOCK_SIZE} tokens per hash id",
            _with_keys("chat_id", "input_length", "hash_ids"),
            read_bailian,
            1.0,
        ),
        TraceReader(
            "kvcache-simulator",
            "hash ids with the block size in each row",
            _with_keys("block_size", "input_length", "hash_ids"),
            read_kvcache_simulator,
        ),
        TraceReader("mooncake", "hash ids of blocks", _with_keys(*FORMATS["mooncake"].keys), _basic("mooncake"), 1e-3),
        TraceReader("tokens", "token ids", _with_keys(*FORMATS["tokens"].keys), _basic("tokens"), 1e-9),
        TraceReader("sharegpt", "conversations as text", _with_keys("conversations"), read_sharegpt, has_text=True),
        TraceReader("openai", "chat or completion requests as text", _is_openai, read_openai, has_text=True),
        TraceReader("azure", "lengths only", _with_columns(AZURE), read_azure, 1.0, has_tokens=False),
        TraceReader("burstgpt", "lengths only", _with_columns(BURSTGPT), read_burstgpt, 1.0, has_tokens=False),
        TraceReader("vidur", "lengths only", _with_columns(VIDUR), read_vidur, 1.0, has_tokens=False),
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
    if shown != STDIN_NAME and os.path.isdir(shown):
        rows: Rows = FolderRows(shown, folder_files(Path(shown)), lenient=lenient, limit=limit)
        return _load(rows, shown, options or ReadOptions(), format_name, allow_lengths_only)
    with open_stream(path) as stream:
        rows = open_rows(stream, shown, lenient=lenient, limit=limit)
        return _load(rows, shown, options or ReadOptions(), format_name, allow_lengths_only)


def _load(rows: Rows, shown: str, options: ReadOptions, format_name: str | None, lengths_only: bool) -> LoadedTrace:
    name, reason = _named(format_name) if format_name else _detected(rows)
    reader = READERS[name]
    if not reader.has_tokens and not lengths_only:
        refuse_hit_rates(f"{shown} ({name})")
    if not reader.has_text:
        for name_of_option, value in (("--tokenizer", options.tokenizer), ("--chat-template", options.chat_template)):
            if value is not None:
                raise InvalidInputError(
                    f"{shown} ({name}) is no text and {name_of_option} {value} of no use; leave it out"
                )
    requests = reader.read(rows, options)
    if not requests:
        raise TraceFormatError(f"{shown}: no request can be replayed ({len(rows.faults)} rows skipped as faulty)")
    trace = RequestTrace(
        name=os.path.basename(os.path.normpath(shown)),
        format=name,
        block_size=_block_size(requests, options),
        requests=requests,
        faults=rows.faults,
    )
    return LoadedTrace(trace, f"{name} ({reason})")


def _named(name: str) -> tuple[str, str]:
    if name not in READERS:
        raise InvalidInputError(f"unknown trace format {name!r}; known are {', '.join(READERS)}")
    return name, "named by the user"


def _detected(rows: Rows) -> tuple[str, str]:
    def usable(row: Row) -> tuple[str, str]:
        for reader in READERS.values():
            reason = reader.recognise(row)
            if reason is not None:
                return reader.name, reason
        raise RowFaultError(
            f"the row's keys ({', '.join(row) or 'none'}) belong to no known format "
            f"({', '.join(READERS)}); name the format with --format"
        )

    found = rows.first(usable)
    if found is None:
        raise TraceFormatError(f"{rows.name}: no row tells the format; unless the trace is empty, give --format")
    return found


def _block_size(requests: list[TraceRequest], options: ReadOptions) -> int | None:
    """Tokens of a hash id, from the tokens that were made; None for formats without hash ids."""
    source = requests[0].source
    if isinstance(source, HashIdTokens):
        return source.block_size
    size = getattr(source, "block_size", None)
    return size if isinstance(size, int) else None
