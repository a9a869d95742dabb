"""Requests as servers and their clients log them: OpenAI chat or completion rows, and prompts of benchmarks."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from trtkv.traces import fields
from trtkv.traces.arrivals import Arrival, Link, numbered, token_arrival
from trtkv.traces.options import ReadOptions, Rows
from trtkv.traces.prompts import Prompts
from trtkv.traces.rows import Row
from trtkv.traces.trace import TraceRequest
from trtkv.traces.trace_format import TraceFormat


class _Output(NamedTuple):
    """What is known of an output."""

    length: int
    tokens: array[int] | None
    num_unknown: int
    """Tokens before the known ones."""


def read_openai(rows: Rows, options: ReadOptions) -> list[TraceRequest]:
    """Requests in file order: ``messages``, ``prompt`` or ``prompt_token_ids``, by themselves or in a ``body``.

    The output length is, in this order: the completion tokens of ``usage``; the tokens of the answer (in ``response``,
    ``choices``, ``outputs``, or as the last message, which is then no part of the prompt); what the request asked for.
    """
    prompts = Prompts(options)

    def convert(row: Row) -> Arrival:
        body = _body(row)
        prompt, answer = prompts.body(body)
        output = _output(row, body, answer, prompts)
        timestamp = fields.seconds(row, "timestamp", default=fields.seconds(row, "created"))
        return token_arrival(
            timestamp,
            prompt,
            output.length,
            _link(row),
            output.tokens,
            num_unknown=output.num_unknown,
            constraints=fields.key_constraints(row),
        )

    return numbered(rows.records(convert))


def _body(row: Row) -> Row:
    """The request itself: the row, or what a batch or a log put it into."""
    for key in ("body", "request"):
        inner = row.get(key)
        if isinstance(inner, dict):
            return _body(inner)
    return row


def _link(row: Row) -> Link | None:
    session = fields.name(row, "session_id")
    if session is None:
        return None
    delay = fields.number(row, "delay", default=0) / 1000 + fields.number(row, "pre_gap", default=0)
    return Link(session, delay_seconds=delay)


def _output(row: Row, body: Row, answer: str | None, prompts: Prompts) -> _Output:
    response = _response(row)
    tokens = prompts.answer(answer) if answer is not None else _answer(response, prompts)
    usage = response.get("usage")
    if isinstance(usage, dict) and "completion_tokens" in usage:
        details = usage.get("completion_tokens_details")
        hidden = fields.integer(details, "reasoning_tokens", 0, default=0) if isinstance(details, dict) else 0
        return _Output(fields.integer(usage, "completion_tokens", 0, "usage."), tokens, hidden)
    length = len(tokens) if tokens is not None else prompts.output_length((body, row))
    return _Output(length, tokens, 0)


def _response(row: Row) -> Row:
    """Where usage and choices are: the row, its ``response``, or the body of that."""
    response = row.get("response")
    if not isinstance(response, dict):
        return row
    body = response.get("body")
    return body if isinstance(body, dict) else response


def _answer(response: Row, prompts: Prompts) -> array[int] | None:
    """Tokens of the first answer: those of ``choices`` (OpenAI) or of ``outputs`` (what vLLM's engine returns)."""
    for key in ("choices", "outputs"):
        answers = response.get(key)
        if not isinstance(answers, list) or not answers:
            continue
        where = f"{key}[0]."
        found = fields.as_mapping(answers[0], f"{key}[0]")
        if found.get("token_ids") is not None:
            return fields.token_ids(found, "token_ids", where=where)
        if "text" in found:
            return prompts.answer(fields.text(found, "text", where))
        content = fields.mapping(found, "message", where).get("content")
        return prompts.answer(content) if isinstance(content, str) else None
    return None


def _recognise(row: Row) -> str | None:
    for path in ((), ("body",), ("request",), ("request", "body")):
        inner: object = row
        for key in path:
            inner = inner.get(key) if isinstance(inner, dict) else None
        for key in ("messages", "prompt", "prompt_token_ids"):
            if isinstance(inner, dict) and key in inner:
                return f"the first row has {'.'.join((*path, key))}"
    return None


FORMAT = TraceFormat(
    "openai",
    "chat or completion requests, as text or token ids",
    read_openai,
    recognise=_recognise,
    seconds_per_unit=1.0,
    has_text=True,
)
