"""Dynamo request traces (``dynamo.request.trace.v1``): rolling hashes of prompts, several shards possible."""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

from trtkv.errors import InvalidInputError
from trtkv.traces import fields
from trtkv.traces.arrivals import Arrival, Link, numbered
from trtkv.traces.block_names import BlockNames, check_id_count
from trtkv.traces.options import ReadOptions, Rows
from trtkv.traces.rows import Row, RowFaultError
from trtkv.traces.trace import HashIdTokens, TraceRequest
from trtkv.traces.trace_format import TraceFormat

DYNAMO_SCHEMA: Final = "dynamo.request.trace.v1"
REQUEST_END: Final = "request_end"
OTHER_EVENTS: Final = ("request_payload", "tool_start", "tool_end", "tool_error")


class _Request(NamedTuple):
    """A request, and what tells how it belongs to others."""

    arrival: Arrival
    name: str
    session: str | None
    parent: str | None
    """Session that started this one."""
    end: float
    """ms, as the times of arrivals."""
    completion: list[int | str]
    """Names of the blocks of prompt and output together; empty if the trace does not have them."""

    @property
    def received(self) -> float:
        """When it came in."""
        return self.arrival.timestamp or 0

    def with_completion(self, names: BlockNames) -> _Request:
        """The request with the blocks of its completion as numbers."""
        source = self.arrival.source
        if not self.completion or not isinstance(source, HashIdTokens):
            return self
        named = names.tokens(self.completion, len(self.completion) * source.block_size, source.block_size)
        completion = named if isinstance(named, HashIdTokens) else None
        return self._replace(arrival=self.arrival._replace(completion=completion))

    def linked(self, wait_for: tuple[str, ...]) -> Arrival:
        """Its arrival as part of its session, if it has one."""
        if self.session is None:
            return self.arrival
        return self.arrival._replace(link=Link(self.session, self.name, wait_for, parent_session=self.parent))


def read_dynamo(rows: Rows, options: ReadOptions) -> list[TraceRequest]:
    """Requests by time of reception (ms), equal times in file order; rows of tools and payloads are passed over.

    ``input_sequence_hashes`` are cumulative: equal hashes mean equal prompts up to there.
    ``completion_sequence_hashes`` name the blocks of prompt and output together.
    """
    names = BlockNames()
    request_ids: set[str] = set()

    def convert(row: Row) -> _Request | None:
        record = _unwrapped(row)
        if not _is_request(record):
            return None
        request = fields.mapping(record, "request")
        request_id = fields.text(request, "request_id", "request.")
        if request_id in request_ids:
            raise RowFaultError(f"request.request_id {request_id!r:.80} was used before")
        session, parent = _session(record)
        total = fields.number(request, "total_time_ms", "request.") if request.get("total_time_ms") is not None else 0
        arrival = _arrival(names, request, options)
        request_ids.add(request_id)
        return _Request(arrival, request_id, session, parent, (arrival.timestamp or 0) + total, _completion(request))

    requests = [request for request in rows.records(convert) if request is not None]
    requests.sort(key=lambda request: request.received)
    # Names of completions are numbered after all of prompts, which so have the tokens they have without them.
    return numbered(_linked([request.with_completion(names) for request in requests]))


def _session(record: Row) -> tuple[str | None, str | None]:
    """Session of a request, and the one that started it: trajectories where there are some."""
    if record.get("agent_context") is None:
        return None, None
    context, where = fields.mapping(record, "agent_context"), "agent_context."
    kind = "trajectory" if context.get("trajectory_id") is not None else "session"
    return fields.name(context, f"{kind}_id", where), fields.name(context, f"parent_{kind}_id", where)


def _linked(requests: list[_Request]) -> list[Arrival]:
    """Arrivals with what they wait for.

    A request waits for the one before in its session. A child's first one waits for the last one of the parent that was
    over when it came in; the parent's first one that comes in after the child's end waits for the child's last one.
    """
    by_session: dict[str, list[_Request]] = {}
    for request in requests:
        if request.session is not None:
            by_session.setdefault(request.session, []).append(request)
    waits: dict[str, list[str]] = {}
    for own in by_session.values():
        for before, request in pairwise(own):
            waits.setdefault(request.name, []).append(before.name)
    for own in by_session.values():
        first, last = own[0], own[-1]
        parents = [] if first.parent in (None, first.session) else by_session.get(first.parent or "", [])
        over = [request for request in parents if request.end <= first.received]
        if over:
            waits.setdefault(first.name, []).append(over[-1].name)
        after = next((request for request in parents if request.received >= last.end), None)
        if after is not None:
            waits.setdefault(after.name, []).append(last.name)
    return [request.linked(tuple(waits.get(request.name, ()))) for request in requests]


def _completion(request: Row) -> list[int | str]:
    where = "request.replay."
    replay = fields.mapping(request, "replay", "request.")
    if replay.get("completion_sequence_hashes") is None:
        return []
    return list(fields.hash_ids(replay, "completion_sequence_hashes", where))


def _recognise(row: Row) -> str | None:
    return f"the first row has schema {DYNAMO_SCHEMA}" if _unwrapped(row).get("schema") == DYNAMO_SCHEMA else None


def _unwrapped(row: Row) -> Row:
    """The record itself where a recorder has put it into an ``event`` field."""
    event = row.get("event")
    return event if isinstance(event, dict) and "schema" in event else row


def _is_request(record: Row) -> bool:
    schema = record.get("schema")
    if schema != DYNAMO_SCHEMA:
        raise RowFaultError(f"schema is {schema!r:.80}, not {DYNAMO_SCHEMA}")
    event_type = fields.text(record, "event_type")
    if event_type in OTHER_EVENTS:
        return False
    if event_type != REQUEST_END:
        raise RowFaultError(f"event_type is {event_type!r:.80}, which {DYNAMO_SCHEMA} does not have")
    return True


def _arrival(names: BlockNames, request: Row, options: ReadOptions) -> Arrival:
    timestamp = fields.number(request, "request_received_ms", "request.")
    output_length = fields.integer(request, "output_tokens", 0, "request.")
    where = "request.replay."
    replay = fields.mapping(request, "replay", "request.")
    block_size = fields.integer(replay, "trace_block_size", 1, where)
    names.check_block_size(block_size)
    if options.block_size not in (None, block_size):
        raise InvalidInputError(f"trace_block_size is {block_size}, but --block-size says {options.block_size}")
    input_length = fields.integer(replay, "input_length", 1, where)
    fields.check_total_length(input_length, output_length)
    ids = fields.hash_ids(replay, "input_sequence_hashes", where)
    check_id_count(len(ids), input_length, block_size, f"{where}input_sequence_hashes", full_only=False)
    return Arrival(timestamp, input_length, output_length, names.tokens(ids, input_length, block_size))


FORMAT = TraceFormat("dynamo", f"{DYNAMO_SCHEMA} records", read_dynamo, recognise=_recognise, seconds_per_unit=1e-3)
