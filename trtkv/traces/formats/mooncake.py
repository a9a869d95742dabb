"""Trace formats: one reading function each, and the registry. To add a format, write both here."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Final, NamedTuple, TypeAlias, cast

from trtkv.checks import check_integer
from trtkv.common import MAX_INT32, ceil_div
from trtkv.errors import InvalidInputError, TraceFormatError
from trtkv.traces.rows import JsonRows, Row, RowFaultError, open_stream
from trtkv.traces.trace import HashIdTokens, KeyConstraints, RequestTrace, RowFault, TokenIds, TokenSource, TraceRequest

HashId = int | str
Arrival: TypeAlias = "tuple[float, int, int, TokenSource, KeyConstraints | None]"
"""Timestamp, prompt and output length, tokens, constraints: a request that has no number yet."""

_MIN_HASH_ID: Final = -(2**63)
_MAX_HASH_ID: Final = 2**64 - 1
_MAX_SHOWN_KEYS: Final = 160
"""Letters."""


class TraceFormat(NamedTuple):
    """How files of one format are recognised and read."""

    name: str
    keys: tuple[str, ...]
    """Keys that a row of this format has; they tell it from the others."""
    read: Callable[[JsonRows, int | None], list[TraceRequest]]
    """Requests in replay order, from rows and the block size in tokens (None: not given)."""
    uses_block_size: bool


def read_mooncake(rows: JsonRows, block_size: int | None) -> list[TraceRequest]:
    """Mooncake rows: ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``; file order is kept."""
    if block_size is None:
        raise InvalidInputError(
            "Mooncake rows do not say how many tokens a hash id stands for; give it with --block-size "
            "(512 for the traces published with Mooncake)"
        )
    if not 1 <= check_integer("block size", block_size) <= MAX_INT32:
        raise InvalidInputError(f"block size is {block_size}; give the tokens per hash id, at least 1")
    hash_ids = _HashIds(block_size)

    def convert(row: Row) -> Arrival:
        timestamp = _number(row, "timestamp")
        input_length, output_length = _lengths(row, "input_length", "output_length")
        ids = _list(row, "hash_ids")
        needed = ceil_div(input_length, block_size)
        if len(ids) != needed:
            raise RowFaultError(
                f"hash_ids holds {len(ids)} ids, but input_length {input_length} at block size {block_size} "
                f"needs {needed}; check the row and --block-size"
            )
        return timestamp, input_length, output_length, HashIdTokens(hash_ids.add(ids), block_size), None

    return _numbered(rows.records(convert))


def read_tokens(rows: JsonRows, block_size: int | None = None) -> list[TraceRequest]:
    """Token-id rows: ``input_toks``, ``output_toks``, ``arrival_time_ns``, ``input_tok_ids``, ``output_tok_ids``.

    Sorted by arrival time, rows of equal times in file order. Output ids are checked, not used. ``cache_salt`` and
    ``lora_task_id`` may be there.
    """

    def convert(row: Row) -> Arrival:
        timestamp = _number(row, "arrival_time_ns")
        input_length, output_length = _lengths(row, "input_toks", "output_toks")
        tokens = _token_ids(row, "input_tok_ids", input_length, "input_toks")
        if "output_tok_ids" in row:
            _token_ids(row, "output_tok_ids", output_length, "output_toks")
        return timestamp, input_length, output_length, TokenIds(tokens), _constraints(row)

    return _numbered(sorted(rows.records(convert), key=lambda arrival: arrival[0]))


FORMATS: Final[dict[str, TraceFormat]] = {
    trace_format.name: trace_format
    for trace_format in (
        TraceFormat("mooncake", ("input_length", "hash_ids"), read_mooncake, uses_block_size=True),
        TraceFormat("tokens", ("input_toks", "input_tok_ids"), read_tokens, uses_block_size=False),
    )
}


def read_trace(
    path: str | os.PathLike[str],
    *,
    format_name: str | None = None,
    block_size: int | None = None,
    lenient: bool = False,
    limit: int | None = None,
) -> RequestTrace:
    """Read a trace file, plain or gzip; ``-`` is standard input.

    ``format_name`` None: told by the keys of the first row. ``limit``: only so many rows from the
    front of the file. Raises TraceFormatError with file, line number and reason for a faulty row;
    ``lenient`` skips and counts such rows instead.
    """
    shown = os.fspath(path)
    with open_stream(path) as stream:
        rows = JsonRows(stream, shown, lenient=lenient, limit=limit)
        trace_format = _named_format(format_name) if format_name else _detected_format(rows, limit)
        requests = trace_format.read(rows, block_size)
    if not requests:
        raise TraceFormatError(f"{shown}: {why_no_request(rows.faults, limit)}")
    return RequestTrace(
        name=os.path.basename(shown),
        format=trace_format.name,
        block_size=block_size if trace_format.uses_block_size else None,
        requests=requests,
        faults=rows.faults,
    )


def why_no_request(faults: list[RowFault], limit: int | None) -> str:
    """Why a file that can be read gave no request."""
    if faults:
        return (
            f"none of its {len(faults)} rows can be used; the first is line {faults[0].line_number}: {faults[0].reason}"
        )
    if limit == 0:
        return "the limit is 0, so no row was read; give at least 1"
    return "holds no request: the file is empty, or no row of it is one"


def shown_keys(row: Iterable[str]) -> str:
    """Keys of a row for a complaint, which stays one readable line."""
    text = ", ".join(row) or "none"
    return text if len(text) <= _MAX_SHOWN_KEYS else f"{text[:_MAX_SHOWN_KEYS]}..."


class _HashIds:
    """Gives the ids of rows as int64 arrays whose tokens fit int32.

    As long as every id does so by the plain rule (token j of id h is block_size * h + j), ids stay as
    they are. At the first one that does not (negative, too large, a string) all ids, those of earlier
    rows too, become 0, 1, 2, ... in order of first appearance.
    """

    def __init__(self, block_size: int) -> None:
        self._num_plain_ids = (MAX_INT32 + 1) // block_size
        self._arrays: list[array[int]] = []
        self._dense: dict[HashId, int] | None = None

    def add(self, ids: list[object]) -> array[int]:
        """The array of a row; it may change in place when a later row makes ids dense."""
        result = self._plain_array(ids)
        if result is None:
            _check_hash_ids(ids)
            result = self._densify(cast("list[HashId]", ids))
        self._arrays.append(result)
        return result

    def _plain_array(self, ids: list[object]) -> array[int] | None:
        if self._dense is not None or set(map(type, ids)) != {int}:
            return None
        numbers = cast("list[int]", ids)
        return array("q", numbers) if min(numbers) >= 0 and max(numbers) < self._num_plain_ids else None

    def _densify(self, ids: list[HashId]) -> array[int]:
        if self._dense is None:
            self._dense = {}
            for earlier in self._arrays:
                earlier[:] = self._dense_array(self._dense, earlier)
        return self._dense_array(self._dense, ids)

    def _dense_array(self, dense: dict[HashId, int], ids: Iterable[HashId]) -> array[int]:
        result = array("q", [dense.setdefault(value, len(dense)) for value in ids])
        if len(dense) > self._num_plain_ids:
            raise TraceFormatError(
                f"the trace has more than {self._num_plain_ids} different hash ids, whose tokens do not fit "
                "32 bits at this block size; replay fewer rows (--limit)"
            )
        return result


def _named_format(name: str) -> TraceFormat:
    try:
        return FORMATS[name]
    except KeyError:
        raise InvalidInputError(f"unknown trace format {name!r}; known are {', '.join(FORMATS)}") from None


def _detected_format(rows: JsonRows, limit: int | None) -> TraceFormat:
    def usable(row: Row) -> TraceFormat:
        for trace_format in FORMATS.values():
            if all(key in row for key in trace_format.keys):
                return trace_format
        raise RowFaultError(f"the row's keys ({shown_keys(row)}) belong to no known format ({', '.join(FORMATS)})")

    found = rows.first(usable)
    if found is None:
        raise TraceFormatError(f"{rows.name}: {why_no_request([], limit)}")
    return found


def _numbered(arrivals: Iterable[Arrival]) -> list[TraceRequest]:
    return [TraceRequest(index, *arrival) for index, arrival in enumerate(arrivals)]


def _lengths(row: Row, input_key: str, output_key: str) -> tuple[int, int]:
    input_length = _integer(row, input_key, minimum=1)
    output_length = _integer(row, output_key, minimum=0)
    if input_length + output_length >= MAX_INT32:
        raise RowFaultError(f"{input_key} {input_length} plus {output_key} {output_length} does not fit 32 bits")
    return input_length, output_length


def _constraints(row: Row) -> KeyConstraints | None:
    """Salt and LoRA id of a row; null is as good as absent."""
    salt, lora_task_id = row.get("cache_salt"), row.get("lora_task_id")
    if salt is not None and not isinstance(salt, str):
        raise RowFaultError(f"cache_salt is {salt!r:.80}, not a string")
    if lora_task_id is not None:
        lora_task_id = _integer(row, "lora_task_id", minimum=0)
    return None if salt is None and lora_task_id is None else KeyConstraints(salt, lora_task_id)


def _value(row: Row, key: str) -> object:
    try:
        return row[key]
    except KeyError:
        raise RowFaultError(f"{key} is missing") from None


def _integer(row: Row, key: str, minimum: int) -> int:
    value = _value(row, key)
    if type(value) is not int:
        raise RowFaultError(f"{key} is {value!r:.80}, not an integer")
    if value < minimum:
        raise RowFaultError(f"{key} is {value}, less than {minimum}")
    return value


def _number(row: Row, key: str) -> float:
    value = _value(row, key)
    if (type(value) is not int and type(value) is not float) or not isfinite(value):
        raise RowFaultError(f"{key} is {value!r:.80}, not a number")
    if value < 0:
        raise RowFaultError(f"{key} is {value}, less than 0")
    return value


def _list(row: Row, key: str) -> list[object]:
    value = _value(row, key)
    if not isinstance(value, list):
        raise RowFaultError(f"{key} is {value!r:.80}, not a list")
    return value


def _check_hash_ids(ids: list[object]) -> None:
    for position, value in enumerate(ids):
        if type(value) is int:
            if not _MIN_HASH_ID <= value <= _MAX_HASH_ID:
                raise RowFaultError(f"hash_ids[{position}] is {value}, which does not fit 64 bits")
        elif type(value) is not str:
            raise RowFaultError(f"hash_ids[{position}] is {value!r:.80}, neither an integer nor a string")


def _token_ids(row: Row, key: str, length: int, length_key: str) -> array[int]:
    tokens = _list(row, key)
    if len(tokens) != length:
        raise RowFaultError(f"{key} holds {len(tokens)} tokens, but {length_key} is {length}")
    try:
        if set(map(type, tokens)) <= {int}:
            result = array("i", cast("list[int]", tokens))
            if not result or min(result) >= 0:
                return result
    except OverflowError:
        pass
    position = next(i for i, value in enumerate(tokens) if type(value) is not int or not 0 <= value <= MAX_INT32)
    raise RowFaultError(f"{key}[{position}] is {tokens[position]!r:.80}, not an integer from 0 to {MAX_INT32}")
