"""Mooncake rows: hash ids of blocks, whose size the user gives."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, cast

import numpy as np

from trtkv.common import ceil_div
from trtkv.errors import InvalidInputError
from trtkv.traces import fields
from trtkv.traces.arrivals import Arrival, CycleGuard, Link, numbered
from trtkv.traces.block_names import checked_block_size
from trtkv.traces.hash_id_numbers import HashIdNumbers
from trtkv.traces.options import ReadOptions, Rows
from trtkv.traces.rows import Row, RowFaultError
from trtkv.traces.trace import HashIdTokens, KnownOutput, TraceRequest
from trtkv.traces.trace_format import TraceFormat

if TYPE_CHECKING:
    from numpy.typing import NDArray


class PositionTokens:
    """Tokens of which each is named by the block it lies in: that of block h at position p is h * size + p % size."""

    __slots__ = ("block_size", "ids", "start")

    has_consecutive_tokens = True

    def __init__(self, ids: array[int], block_size: int, start: int) -> None:
        self.ids = ids
        self.block_size = block_size
        self.start = start

    def expand(self, num_tokens: int) -> NDArray[np.int32]:
        """The first ``num_tokens`` tokens."""
        ids = np.frombuffer(self.ids, dtype=np.int64)[:num_tokens]
        places = np.arange(self.start, self.start + len(ids)) % self.block_size
        return cast("NDArray[np.int32]", (ids * self.block_size + places).astype(np.int32))


def read_mooncake(rows: Rows, options: ReadOptions) -> list[TraceRequest]:
    """Requests in file order, from ``timestamp`` (ms), ``input_length``, ``output_length`` and ``hash_ids``."""
    return read_hash_rows(rows, options, is_delta=False)


def read_hash_rows(rows: Rows, options: ReadOptions, *, is_delta: bool) -> list[TraceRequest]:
    """Rows of Mooncake; ``is_delta``: later turns of a session hold only what they add."""
    if options.block_size is None:
        raise InvalidInputError(
            "Mooncake rows do not say how many tokens a hash id stands for; give it with --block-size "
            "(512 for the traces published with Mooncake)"
        )
    block_size = checked_block_size(options.block_size)
    numbers = HashIdNumbers(block_size)
    links = _Links(is_delta)

    def convert(row: Row) -> Arrival:
        link = links.read(row)
        timestamp = _timestamp(row, may_be_absent=link is not None and links.has_predecessor(link))
        input_length, output_length = fields.lengths(
            row, _key(row, "input_length"), _key(row, "output_length"), options.output_length
        )
        ids = fields.items(row, "hash_ids")
        needed = ceil_div(input_length, block_size)
        if len(ids) != needed:
            raise RowFaultError(
                f"hash_ids holds {len(ids)} ids, but input_length {input_length} at block size {block_size} "
                f"needs {needed}; check the row and --block-size"
            )
        named = fields.hash_ids(row, "output_token_ids")[:output_length] if row.get("output_token_ids") else []
        constraints = fields.key_constraints(row)
        source = HashIdTokens(numbers.add(ids, "hash_ids"), block_size)
        links.add(link)
        known = None
        if named:
            output = PositionTokens(
                numbers.add(cast("list[object]", named), "output_token_ids"), block_size, input_length
            )
            known = KnownOutput(output, len(named))
        return Arrival(timestamp, input_length, output_length, source, constraints, link, known)

    arrivals = list(rows.records(convert))
    return numbered(arrivals if not links.name_others else map(_waits_only_as_named, arrivals))


class _Links:
    """Sessions and waits of the rows of a file."""

    def __init__(self, is_delta: bool) -> None:
        self.name_others = False
        """Whether a row says for which others it waits; then all say it."""
        self._is_delta = is_delta
        self._guard = CycleGuard()
        self._sessions: set[str] = set()

    def read(self, row: Row) -> Link | None:
        """How a row belongs to others; keeps nothing."""
        session, key = fields.name(row, "session_id"), fields.name(row, "request_id")
        wait_for = None if row.get("wait_for") is None else _names(row, "wait_for")
        if session is None and key is None and wait_for is None:
            return None
        if key is not None:
            self._guard.check(key, wait_for or (), "request_id")
        delays = (_key(row, "delay"), "tool_wait_ms")
        delay = sum(fields.number(row, name) for name in delays if row.get(name) is not None)
        return Link(session, key, wait_for, delay / 1000, is_delta=self._is_delta and session in self._sessions)

    def has_predecessor(self, link: Link) -> bool:
        """Whether a row may do without a time of its own."""
        return bool(link.wait_for) or link.session in self._sessions

    def add(self, link: Link | None) -> None:
        """Keep a row that is used."""
        if link is None:
            return
        self.name_others = self.name_others or link.wait_for is not None
        if link.key is not None:
            self._guard.add(link.key, link.wait_for or ())
        if link.session is not None:
            self._sessions.add(link.session)


def _waits_only_as_named(arrival: Arrival) -> Arrival:
    link = arrival.link
    if link is None or link.wait_for is not None:
        return arrival
    return arrival._replace(link=link._replace(wait_for=()))


_OTHER_SPELLINGS = {
    "input_length": "input_tokens",
    "output_length": "output_tokens",
    "timestamp": "created_time",
    "delay": "delay_ms",
}
"""Those of Dynamo."""


def _key(row: Row, key: str) -> str:
    other = _OTHER_SPELLINGS[key]
    return other if other in row and key not in row else key


def _timestamp(row: Row, *, may_be_absent: bool) -> float | None:
    key = _key(row, "timestamp")
    return None if may_be_absent and row.get(key) is None else fields.number(row, key)


def _names(row: Row, key: str) -> tuple[str, ...]:
    found = fields.items(row, key)
    names = [fields.name({key: entry}, key) for entry in found]
    if None in names:
        raise RowFaultError(f"{key}[{names.index(None)}] is None, neither a string nor an integer")
    return tuple(dict.fromkeys(name for name in names if name is not None))


def _recognise(row: Row) -> str | None:
    key = _key(row, "input_length")
    return f"the first row has {key}, hash_ids" if key in row and "hash_ids" in row else None


def find_warnings(requests: list[TraceRequest]) -> list[str]:
    """A line if sessions look as if their later rows held only what is new."""
    seconds = [request for request in requests if request.turn == 1 and request.predecessors]
    for request in seconds:
        first = requests[request.predecessors[0]]
        num_full = first.input_length // cast("HashIdTokens", first.source).block_size
        if not num_full or _ids(request)[:num_full] == _ids(first)[:num_full]:
            return []
    if not seconds:
        return []
    return [
        "no second turn of a session begins with the blocks of the first: if the rows hold only what a turn adds, "
        "give --format mooncake-delta"
    ]


def _ids(request: TraceRequest) -> array[int]:
    return cast("HashIdTokens", request.source).ids


FORMAT = TraceFormat(
    "mooncake",
    "hash ids of blocks",
    read_mooncake,
    keys=("input_length", "hash_ids"),
    recognise=_recognise,
    seconds_per_unit=1e-3,
    needs_block_size=True,
    find_warnings=find_warnings,
)
