"""Agent traces as LMCache publishes them: a row for each model call, with the session it belongs to."""

from __future__ import annotations

from typing import NamedTuple

from trtkv.traces import fields
from trtkv.traces.arrivals import Arrival, Link, known_output, numbered, token_arrival
from trtkv.traces.options import ReadOptions, Rows
from trtkv.traces.prompts import Prompts, read_messages
from trtkv.traces.rows import Row
from trtkv.traces.text_tokenizer import ASSISTANT
from trtkv.traces.trace import TraceRequest
from trtkv.traces.trace_format import TraceFormat


class _Call(NamedTuple):
    arrival: Arrival
    session: str
    messages: list[Row]
    """Of the prompt; empty if it is one text."""


def read_lmcache_agent(rows: Rows, options: ReadOptions) -> list[TraceRequest]:
    """Requests in file order. ``input`` is a list of messages, or a text with the answer in ``output``.

    Of messages, the answer is the assistant's message that the session's next input has where this one ends.
    """
    prompts = Prompts(options)
    arrivals: list[Arrival] = []
    last: dict[str, tuple[int, int]] = {}
    """Session -> place of its last call, and messages of it."""

    def convert(row: Row) -> _Call:
        return _call(row, prompts)

    for call in rows.records(convert):
        place, num_messages = last.get(call.session, (-1, 0))
        answer = call.messages[num_messages] if 0 < num_messages < len(call.messages) else None
        if answer is not None and answer["role"] == ASSISTANT and isinstance(answer["content"], str):
            before = arrivals[place]
            tokens = prompts.answer(answer["content"])
            arrivals[place] = before._replace(output=known_output(tokens, before.output_length))
        last[call.session] = len(arrivals), len(call.messages)
        arrivals.append(call.arrival)
    return numbered(arrivals)


def _call(row: Row, prompts: Prompts) -> _Call:
    session = fields.name(row, "session_id") or ""
    link = Link(session, delay_seconds=fields.number(row, "pre_gap", default=0))
    timestamp = fields.number(row, "timestamp") / 1e6 if "timestamp" in row else None
    if isinstance(row.get("input"), list):
        messages = read_messages(row, "input")
        arrival = token_arrival(timestamp, prompts.chat(messages), prompts.output_length((row,)), link)
        return _Call(arrival, session, messages)
    answer = prompts.answer(fields.text(row, "output")) if "output" in row else None
    length = prompts.output_length((row,)) if answer is None or "output_length" in row else len(answer)
    return _Call(token_arrival(timestamp, prompts.text_or_ids(row, "input"), length, link, answer), session, [])


FORMAT = TraceFormat(
    "lmcache-agent",
    "model calls of agents, with sessions",
    read_lmcache_agent,
    keys=("session_id", "input"),
    seconds_per_unit=1.0,
    has_text=True,
)
