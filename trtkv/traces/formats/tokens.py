"""Rows of token ids."""

from __future__ import annotations

from trtkv.traces import fields
from trtkv.traces.arrivals import Arrival, Link, known_output, numbered
from trtkv.traces.options import ReadOptions, Rows
from trtkv.traces.rows import Row
from trtkv.traces.trace import TokenIds, TraceRequest
from trtkv.traces.trace_format import TraceFormat


def read_tokens(rows: Rows, options: ReadOptions) -> list[TraceRequest]:
    """Requests by ``arrival_time_ns``, equal times in file order, from ``input_tok_ids``.

    ``input_toks`` and ``output_toks`` have to say how many ids there are. ``output_tok_ids``, ``cache_salt`` and
    ``lora_task_id`` may be there.
    """

    def convert(row: Row) -> Arrival:
        timestamp = fields.number(row, "arrival_time_ns")
        input_length, output_length = fields.lengths(row, "input_toks", "output_toks", options.output_length)
        tokens = fields.token_ids(row, "input_tok_ids", input_length, "input_toks")
        output = None
        if "output_tok_ids" in row:
            output = fields.token_ids(row, "output_tok_ids", output_length, "output_toks")
        session = fields.name(row, "session_id")
        gap = fields.number(row, "intra_session_gap_ns", default=0) / 1e9
        return Arrival(
            timestamp,
            input_length,
            output_length,
            TokenIds(tokens),
            fields.key_constraints(row),
            None if session is None else Link(session, delay_seconds=gap),
            known_output(output, output_length),
        )

    return numbered(rows.records(convert), by_time=True)


FORMAT = TraceFormat("tokens", "token ids", read_tokens, keys=("input_toks", "input_tok_ids"), seconds_per_unit=1e-9)
