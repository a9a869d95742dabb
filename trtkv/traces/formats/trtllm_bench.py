"""Datasets of trtllm-bench, TensorRT-LLM's benchmark: token ids or text, and how much to generate."""

from __future__ import annotations

from typing import Final

from trtkv.traces import fields
from trtkv.traces.arrivals import Arrival, numbered, token_arrival
from trtkv.traces.options import ReadOptions, Rows
from trtkv.traces.prompts import Prompts
from trtkv.traces.rows import Row, RowFaultError
from trtkv.traces.trace import KeyConstraints, TraceRequest
from trtkv.traces.trace_format import TraceFormat

IDS: Final = ("input_ids", "logits")
"""The second is what older versions write."""


def read_trtllm_bench(rows: Rows, options: ReadOptions) -> list[TraceRequest]:
    """Requests in file order. Rows with ids need no tokenizer, even if they have the text, too."""
    prompts = Prompts(options)

    def convert(row: Row) -> Arrival:
        fields.name(row, "task_id")
        output_length = prompts.output_length((row,), ("output_tokens",))
        key = next((key for key in (*IDS, "prompt") if row.get(key) is not None), None)
        if key is None:
            raise RowFaultError(f"the row has none of {', '.join(IDS)}, prompt")
        prompt = prompts.text_or_ids(row, key) if key == "prompt" else fields.token_ids(row, key)
        return token_arrival(None, prompt, output_length, constraints=_constraints(row))

    return numbered(rows.records(convert))


def _constraints(row: Row) -> KeyConstraints | None:
    if row.get("lora_request") is None:
        return None
    lora = fields.mapping(row, "lora_request")
    return KeyConstraints(lora_task_id=fields.integer(lora, "lora_int_id", 0, "lora_request."))


FORMAT = TraceFormat(
    "trtllm-bench", "datasets of trtllm-bench", read_trtllm_bench, keys=("task_id", "output_tokens"), has_text=True
)
