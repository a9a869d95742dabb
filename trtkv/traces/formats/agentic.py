"""Agent sessions (kv-cache-tester): one JSON object a session, with nested requests of sub-agents."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final, NamedTuple

from trtkv.errors import InvalidInputError
from trtkv.traces import fields
from trtkv.traces.arrivals import Arrival, numbered
from trtkv.traces.block_names import BlockNames
from trtkv.traces.options import ReadOptions, Rows
from trtkv.traces.rows import Row, RowFaultError
from trtkv.traces.trace import TraceRequest
from trtkv.traces.trace_format import TraceFormat

SUBAGENT: Final = "subagent"
SCOPES: Final = ("local", "global", "per_context")


class _Call(NamedTuple):
    """One model call of a session."""

    time: float
    """Seconds since the start of the session."""
    context: int
    """0 for the main agent, then one number for each sub-agent."""
    input_length: int
    output_length: int
    hash_ids: list[int | str]


def read_agentic(rows: Rows, options: ReadOptions) -> list[TraceRequest]:
    """Requests session after session, in each by time. Ids name the full blocks of a prompt; its rest has no identity.

    ``hash_id_scope`` says where an id means the same: ``local`` in its session, ``global`` everywhere, ``per_context``
    (or absent) in its agent. Times of a sub-agent count from its start.
    """
    names = BlockNames()
    num_sessions = 0

    def convert(row: Row) -> list[Arrival]:
        nonlocal num_sessions
        block_size = fields.integer(row, "block_size", 1)
        names.check_block_size(block_size)
        if options.block_size not in (None, block_size):
            raise InvalidInputError(f"block_size is {block_size}, but --block-size says {options.block_size}")
        scope = _scope(row)
        calls = sorted(_calls(row, block_size), key=lambda call: call.time)
        num_sessions += 1
        return [
            Arrival(
                call.time,
                call.input_length,
                call.output_length,
                names.tokens(_names(scope, num_sessions, call), call.input_length, block_size),
            )
            for call in calls
        ]

    return numbered(arrival for session in rows.records(convert) for arrival in session)


def _scope(row: Row) -> str:
    scope = row.get("hash_id_scope", "per_context")
    if scope not in SCOPES:
        raise RowFaultError(f"hash_id_scope is {scope!r:.80}, not one of {', '.join(SCOPES)}")
    return str(scope)


def _names(scope: str, session: int, call: _Call) -> Iterator[Hashable]:
    if scope == "global":
        return iter(call.hash_ids)
    if scope == "local":
        return ((session, block_id) for block_id in call.hash_ids)
    return ((session, call.context, block_id) for block_id in call.hash_ids)


def _calls(session: Row, block_size: int) -> list[_Call]:
    """All calls of a session, sub-agents at any depth included; each must be valid for the session to be used."""
    calls: list[_Call] = []
    num_contexts = 1
    pending = [(session, 0, 0.0, "")]
    while pending:
        owner, context, start, where = pending.pop()
        for position, entry in enumerate(fields.items(owner, "requests", where)):
            path = f"{where}requests[{position}]"
            call = fields.as_mapping(entry, path)
            time = start + fields.number(call, "t", f"{path}.")
            if call.get("type") == SUBAGENT:
                pending.append((call, num_contexts, time, f"{path}."))
                num_contexts += 1
            else:
                calls.append(_call(call, context, time, f"{path}.", block_size))
    if not calls:
        raise RowFaultError("the session has no request")
    return calls


def _call(call: Row, context: int, time: float, where: str, block_size: int) -> _Call:
    input_length = fields.integer(call, "in", 1, where)
    output_length = fields.integer(call, "out", 0, where)
    fields.check_total_length(input_length, output_length)
    ids = fields.hash_ids(call, "hash_ids", where)
    if len(ids) != input_length // block_size:
        raise RowFaultError(
            f"{where}hash_ids holds {len(ids)} ids, but {input_length} prompt tokens fill "
            f"{input_length // block_size} blocks of {block_size}"
        )
    return _Call(time, context, input_length, output_length, ids)


FORMAT = TraceFormat("agentic", "agent sessions (kv-cache-tester)", read_agentic, keys=("block_size", "requests"))
