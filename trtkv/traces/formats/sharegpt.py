"""ShareGPT conversations as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trtkv.traces import fields
from trtkv.traces.arrivals import Arrival, numbered, token_arrival
from trtkv.traces.options import ReadOptions, Rows
from trtkv.traces.rows import Row, RowFaultError
from trtkv.traces.text_tokenizer import ASSISTANT, load_tokenizer
from trtkv.traces.trace import TraceRequest
from trtkv.traces.trace_format import TraceFormat

SHAREGPT_ROLES: Final = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "system": "system",
}


def read_sharegpt(rows: Rows, options: ReadOptions) -> list[TraceRequest]:
    """ShareGPT conversations in file order: a request for each answer, its prompt all that was said before.

    Answers before the first question are left out.
    """
    tokenizer = load_tokenizer(options)

    def convert(row: Row) -> list[Arrival]:
        messages = _sharegpt_messages(row)
        arrivals = []
        for position, message in enumerate(messages):
            if message["role"] == ASSISTANT:
                prompt = tokenizer.chat(messages[:position])
                answer = tokenizer.text(str(message["content"]), special_tokens=False)
                arrivals.append(token_arrival(0, prompt, len(answer)))
        if not arrivals:
            raise RowFaultError("the conversation has no answer to a question")
        return arrivals

    return numbered(arrival for conversation in rows.records(convert) for arrival in conversation)


def _sharegpt_messages(row: Row) -> Sequence[Row]:
    messages: list[Row] = []
    asked = False
    for position, entry in enumerate(fields.items(row, "conversations")):
        where = f"conversations[{position}]"
        turn = fields.as_mapping(entry, where)
        speaker = fields.text(turn, "from", f"{where}.")
        if speaker not in SHAREGPT_ROLES:
            raise RowFaultError(f"{where}.from is {speaker!r:.40}, not one of {', '.join(SHAREGPT_ROLES)}")
        role = SHAREGPT_ROLES[speaker]
        asked = asked or role == "user"
        content = fields.text(turn, "value", f"{where}.")
        if asked or role != ASSISTANT:
            messages.append({"role": role, "content": content})
    return messages


FORMAT = TraceFormat("sharegpt", "conversations as text", read_sharegpt, keys=("conversations",), has_text=True)
