"""Request logs of SGLang (``--log-requests`` in JSON): an event when a request comes in, one when it is done."""

from __future__ import annotations

from array import array
from typing import Final

from trtkv.traces import fields
from trtkv.traces.arrivals import Arrival, numbered, token_arrival
from trtkv.traces.options import ReadOptions, Rows
from trtkv.traces.prompts import Prompts
from trtkv.traces.rows import Row, RowFaultError
from trtkv.traces.trace import TraceRequest
from trtkv.traces.trace_format import TraceFormat

RECEIVED: Final = "request.received"
FINISHED: Final = "request.finished"


def read_sglang(rows: Rows, options: ReadOptions) -> list[TraceRequest]:
    """Requests that were finished, by the time at which they came in, equal times in file order."""
    prompts = Prompts(options)
    received: dict[str, float | None] = {}

    def convert(row: Row) -> Arrival | None:
        event, name = fields.text(row, "event"), fields.text(row, "rid")
        timestamp = fields.seconds(row, "timestamp")
        if event == RECEIVED:
            received[name] = timestamp
            return None
        if event != FINISHED:
            raise RowFaultError(f"event is {event!r:.80}, neither {RECEIVED} nor {FINISHED}")
        arrival = _arrival(row, received.get(name, timestamp), prompts)
        received.pop(name, None)
        return arrival

    return numbered(rows.records(convert), by_time=True)


def _arrival(row: Row, timestamp: float | None, prompts: Prompts) -> Arrival:
    request, out = fields.mapping(row, "obj"), fields.mapping(row, "out")
    key = "input_ids" if request.get("input_ids") is not None else "text"
    prompt = prompts.text_or_ids(request, key, "obj.")
    meta_info = fields.mapping(out, "meta_info", "out.")
    output_length = fields.integer(meta_info, "completion_tokens", 0, "out.meta_info.")
    return token_arrival(timestamp, prompt, output_length, output=_answer(out, prompts))


def _answer(out: Row, prompts: Prompts) -> array[int] | None:
    if out.get("output_ids") is not None:
        return fields.token_ids(out, "output_ids", where="out.")
    text = out.get("text")
    return prompts.answer(text) if isinstance(text, str) and prompts.has_tokenizer else None


def _recognise(row: Row) -> str | None:
    is_log = row.get("event") in (RECEIVED, FINISHED) and "rid" in row
    return f"the first row has rid, event {row['event']}" if is_log else None


FORMAT = TraceFormat(
    "sglang", "request logs of SGLang", read_sglang, recognise=_recognise, seconds_per_unit=1.0, has_text=True
)
