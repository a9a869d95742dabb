"""Inputs of AIPerf with text: rows with ``text_input``, ``messages`` or ``text``, and conversations with ``turns``."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from trtkv.traces import fields
from trtkv.traces.arrivals import Arrival, Link, numbered, token_arrival
from trtkv.traces.options import ReadOptions, Rows
from trtkv.traces.prompts import Prompts, read_messages
from trtkv.traces.rows import Row, RowFaultError
from trtkv.traces.trace import TraceRequest
from trtkv.traces.trace_format import TraceFormat

MEDIA: Final = ("image", "images", "audio", "audios", "video", "videos")
DELTA: Final = "delta"
MODES: Final = ("history", DELTA)


def read_aiperf(rows: Rows, options: ReadOptions) -> list[TraceRequest]:
    """Requests in file order, times in ms. Turns of a conversation hold only what the user says anew."""
    prompts = Prompts(options)
    started: set[str] = set()
    """Sessions of which a row was read."""

    def convert(row: Row) -> list[Arrival]:
        session = fields.name(row, "session_id")
        if "turns" in row:
            session = f"conversation {len(started)}" if session is None else session
            arrivals = list(_turns(row, session, prompts))
        else:
            arrivals = [_single(row, session, session in started, prompts)]
        if session is not None:
            started.add(session)
        return arrivals

    return numbered(arrival for row in rows.records(convert) for arrival in row)


def _turns(row: Row, session: str, prompts: Prompts) -> Iterator[Arrival]:
    turns = fields.items(row, "turns")
    if not turns:
        raise RowFaultError("turns is empty")
    for position, entry in enumerate(turns):
        where = f"turns[{position}]."
        turn = fields.as_mapping(entry, where[:-1])
        role = fields.text(turn, "role", where) if turn.get("role") else "user"
        message: Row = {"role": role, "content": _text(turn, where)}
        link = Link(session, delay_seconds=_milliseconds(turn, "delay", where) or 0, is_delta=position > 0)
        prompt = prompts.chat([message])
        yield token_arrival(_timestamp(turn, where), prompt, prompts.output_length((turn,)), link)


def _single(row: Row, session: str | None, is_later: bool, prompts: Prompts) -> Arrival:
    mode = row.get("message_mode", MODES[0])
    if mode not in MODES:
        raise RowFaultError(f"message_mode is {mode!r:.40}, not one of {', '.join(MODES)}")
    is_delta = mode == DELTA and is_later
    link = None if session is None else Link(session, delay_seconds=_milliseconds(row, "delay") or 0, is_delta=is_delta)
    return token_arrival(_timestamp(row), _prompt(row, mode, prompts), prompts.output_length((row,)), link)


def _prompt(row: Row, mode: object, prompts: Prompts) -> array[int]:
    if "text" in row or "texts" in row:
        return prompts.chat([{"role": "user", "content": _text(row, "")}])
    if mode == DELTA:
        return prompts.chat(read_messages(row, "messages"))
    return prompts.body(row)[0]


def _text(turn: Row, where: str) -> str:
    media = next((key for key in MEDIA if turn.get(key)), None)
    if media is not None:
        raise RowFaultError(f"{where}{media} is given: only text has tokens that a tokenizer file can give")
    if turn.get("text") is not None:
        return fields.text(turn, "text", where)
    texts = fields.items(turn, "texts", where)
    position = next((i for i, found in enumerate(texts) if not isinstance(found, str)), None)
    if position is not None:
        raise RowFaultError(f"{where}texts[{position}] is {texts[position]!r:.80}, not a string")
    return "".join(map(str, texts))


def _milliseconds(row: Row, key: str, where: str = "") -> float | None:
    return fields.number(row, key, where) / 1000 if row.get(key) is not None else None


def _timestamp(row: Row, where: str = "") -> float | None:
    return fields.number(row, "timestamp", where) if row.get("timestamp") is not None else None


def _recognise(row: Row) -> str | None:
    for key in ("turns", "text_input", "texts", "text"):
        if key in row and not {"prompt", "messages"} & row.keys():
            return f"the first row has {key}"
    if "messages" in row and ("message_mode" in row or "output_length" in row):
        return "the first row has messages, " + ("message_mode" if "message_mode" in row else "output_length")
    return None


FORMAT = TraceFormat(
    "aiperf", "text inputs of AIPerf", read_aiperf, recognise=_recognise, seconds_per_unit=1e-3, has_text=True
)
