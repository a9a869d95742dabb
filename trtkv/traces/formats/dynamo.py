"""Dynamo request traces (``dynamo.request.trace.v1``): rolling hashes of prompts, several shards possible."""

from __future__ import annotations

from typing import Final

from trtkv.errors import InvalidInputError
from trtkv.traces import fields
from trtkv.traces.arrivals import Arrival, numbered
from trtkv.traces.block_names import BlockNames, check_id_count
from trtkv.traces.options import ReadOptions, Rows
from trtkv.traces.rows import Row, RowFaultError
from trtkv.traces.trace import TraceRequest
from trtkv.traces.trace_format import TraceFormat

DYNAMO_SCHEMA: Final = "dynamo.request.trace.v1"
REQUEST_END: Final = "request_end"
OTHER_EVENTS: Final = ("request_payload", "tool_start", "tool_end", "tool_error")


def read_dynamo(rows: Rows, options: ReadOptions) -> list[TraceRequest]:
    """Requests by time of reception (ms), equal times in file order; rows of tools and payloads are passed over.

    ``input_sequence_hashes`` are cumulative: equal hashes mean equal prompts up to there. Hashes of completions are not
    used: generated tokens of a replay are its own.
    """
    names = BlockNames()
    request_ids: set[str] = set()

    def convert(row: Row) -> Arrival | None:
        record = _unwrapped(row)
        if not _is_request(record):
            return None
        request = fields.mapping(record, "request")
        request_id = fields.text(request, "request_id", "request.")
        if request_id in request_ids:
            raise RowFaultError(f"request.request_id {request_id!r:.80} was used before")
        arrival = _arrival(names, request, options)
        request_ids.add(request_id)
        return arrival

    return numbered(rows.records(convert), by_time=True)


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
