"""Conversations as text: ShareGPT, and the like with roles (LMSYS, WildChat)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Final

from trtkv.traces import fields
from trtkv.traces.arrivals import Arrival, Link, numbered, token_arrival
from trtkv.traces.options import ReadOptions, Rows
from trtkv.traces.prompts import Prompts, read_message
from trtkv.traces.rows import Row, RowFaultError
from trtkv.traces.text_tokenizer import ASSISTANT
from trtkv.traces.trace import TraceRequest
from trtkv.traces.trace_format import TraceFormat

ROLES: Final = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "system": "system",
}
TURNS: Final = ("conversations", "conversation")
NAMES: Final = ("id", "conversation_id", "conversation_hash")


def read_sharegpt(rows: Rows, options: ReadOptions) -> list[TraceRequest]:
    """Conversations in file order: a request for each answer, its prompt all that was said before.

    Answers before the first question are left out.
    """
    prompts = Prompts(options)
    numbers = count()
    sessions: set[str] = set()

    def convert(row: Row) -> list[Arrival]:
        messages = _messages(row)
        named = [name for key in NAMES if (name := fields.name(row, key)) is not None]
        requests = []
        for position, message in enumerate(messages):
            if message["role"] == ASSISTANT:
                requests.append((prompts.chat(messages[:position]), prompts.answer(str(message["content"] or ""))))
        if not requests:
            raise RowFaultError("the conversation has no answer to a question")
        number = next(numbers)
        session = named[0] if named else f"conversation {number}"
        session = f"{session} #{number}" if session in sessions else session
        sessions.add(session)
        return [token_arrival(None, prompt, len(answer), Link(session), answer) for prompt, answer in requests]

    return numbered(arrival for conversation in rows.records(convert) for arrival in conversation)


def _messages(row: Row) -> Sequence[Row]:
    messages: list[Row] = []
    asked = False
    key = TURNS[0] if TURNS[0] in row else TURNS[1]
    for position, entry in enumerate(fields.items(row, key)):
        message = _message(entry, f"{key}[{position}]")
        asked = asked or message["role"] == "user"
        if asked or message["role"] != ASSISTANT:
            messages.append(message)
    return messages


def _message(entry: object, where: str) -> Row:
    """A turn with ``from`` and ``value``, or with ``role`` and ``content``."""
    turn = fields.as_mapping(entry, where)
    if "role" in turn and "from" not in turn:
        message = read_message(turn, where)
        return {"role": message["role"], "content": message["content"]}
    speaker = fields.text(turn, "from", f"{where}.")
    if speaker not in ROLES:
        raise RowFaultError(f"{where}.from is {speaker!r:.40}, not one of {', '.join(ROLES)}")
    return {"role": ROLES[speaker], "content": fields.text(turn, "value", f"{where}.")}


def _recognise(row: Row) -> str | None:
    return next((f"the first row has {key}" for key in TURNS if key in row), None)


FORMAT = TraceFormat("sharegpt", "conversations as text", read_sharegpt, recognise=_recognise, has_text=True)
