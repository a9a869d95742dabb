"""Request logs with text: OpenAI chat or completion rows."""

from __future__ import annotations

from array import array
from typing import Final

from trtkv.traces import fields
from trtkv.traces.arrivals import Arrival, numbered, token_arrival
from trtkv.traces.options import ReadOptions, Rows
from trtkv.traces.rows import Row, RowFaultError
from trtkv.traces.text_tokenizer import ASSISTANT, TextTokenizer, load_tokenizer
from trtkv.traces.trace import TraceRequest
from trtkv.traces.trace_format import TraceFormat

LIMITS: Final = ("max_completion_tokens", "max_tokens")


def read_openai(rows: Rows, options: ReadOptions) -> list[TraceRequest]:
    """OpenAI requests in file order: ``messages`` or ``prompt``, plain or in the ``body`` of a batch row.

    The output is, in this order: the completion tokens of ``usage``; the tokens of the answer (in ``response``,
    ``choices``, or as the last message, which is then no part of the prompt); the limit that the request asked for.
    """
    tokenizer = load_tokenizer(options)

    def convert(row: Row) -> Arrival:
        body = _body(row)
        timestamp = fields.number(row, "timestamp", default=0)
        prompt, answer = _chat(body, tokenizer) if "messages" in body else _completion(body, tokenizer)
        output_length = _output_length(row, body, answer, tokenizer)
        return token_arrival(timestamp, prompt, output_length)

    return numbered(rows.records(convert))


def _body(row: Row) -> Row:
    """The request itself: the row, or what a batch or a log put it into."""
    for key in ("body", "request"):
        inner = row.get(key)
        if isinstance(inner, dict):
            return _body(inner)
    return row


def _chat(body: Row, tokenizer: TextTokenizer) -> tuple[array[int], str | None]:
    messages = [_message(entry, f"messages[{i}]") for i, entry in enumerate(fields.items(body, "messages"))]
    answer = None
    if messages and messages[-1]["role"] == ASSISTANT:
        content = messages.pop()["content"]
        answer = content if isinstance(content, str) else None
    if not messages:
        raise RowFaultError("messages hold no question")
    tools = fields.items(body, "tools") if body.get("tools") is not None else None
    return tokenizer.chat(messages, tools), answer


def _completion(body: Row, tokenizer: TextTokenizer) -> tuple[array[int], str | None]:
    return tokenizer.text(fields.text(body, "prompt"), special_tokens=True), None


def _message(entry: object, where: str) -> Row:
    message = fields.as_mapping(entry, where)
    fields.text(message, "role", f"{where}.")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_text_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    elif content is not None and not isinstance(content, str):
        raise RowFaultError(f"{where}.content is {content!r:.80}, neither text nor a list of parts")
    return {**message, "content": content}


def _text_part(part: object, where: str) -> str:
    found = fields.as_mapping(part, where)
    kind = fields.text(found, "type", f"{where}.")
    if kind != "text":
        raise RowFaultError(f"{where} is of type {kind!r:.40}: only text has tokens that a tokenizer file can give")
    return fields.text(found, "text", f"{where}.")


def _output_length(row: Row, body: Row, answer: str | None, tokenizer: TextTokenizer) -> int:
    response = _response(row)
    usage = response.get("usage")
    if isinstance(usage, dict) and "completion_tokens" in usage:
        return fields.integer(usage, "completion_tokens", 0, "usage.")
    said = _answer(response) if answer is None else answer
    if said is not None:
        return len(tokenizer.text(said, special_tokens=False))
    for key in LIMITS:
        if body.get(key) is not None:
            return fields.integer(body, key, 0)
    raise RowFaultError(f"nothing tells the length of the output: no usage, no answer, no {' or '.join(LIMITS)}")


def _response(row: Row) -> Row:
    """Where usage and choices are: the row, its ``response``, or the body of that."""
    response = row.get("response")
    if not isinstance(response, dict):
        return row
    body = response.get("body")
    return body if isinstance(body, dict) else response


def _answer(response: Row) -> str | None:
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices:
        return None
    choice = fields.as_mapping(choices[0], "choices[0]")
    if "text" in choice:
        return fields.text(choice, "text", "choices[0].")
    content = fields.mapping(choice, "message", "choices[0].").get("content")
    return content if isinstance(content, str) else None


def _recognise(row: Row) -> str | None:
    for path in ((), ("body",), ("request",), ("request", "body")):
        inner: object = row
        for key in path:
            inner = inner.get(key) if isinstance(inner, dict) else None
        for key in ("messages", "prompt"):
            if isinstance(inner, dict) and key in inner:
                return f"the first row has {'.'.join((*path, key))}"
    return None


FORMAT = TraceFormat("openai", "chat or completion requests as text", read_openai, recognise=_recognise, has_text=True)
