"""Qwen Bailian usage traces: hash ids of 16 tokens, chat ids, turns, arrival in seconds."""

from __future__ import annotations

from typing import Final

from trtkv.traces import fields
from trtkv.traces.arrivals import Arrival, CycleGuard, Link, numbered
from trtkv.traces.block_names import BlockNames, check_id_count, checked_block_size
from trtkv.traces.options import ReadOptions, Rows
from trtkv.traces.rows import Row
from trtkv.traces.trace import TraceRequest
from trtkv.traces.trace_format import TraceFormat

BAILIAN_BLOCK_SIZE: Final = 16
"""Tokens of a hash id in the published files."""

ROOT_CHAT: Final = -1


def read_bailian(rows: Rows, options: ReadOptions) -> list[TraceRequest]:
    """Requests by arrival, equal times in file order. Blocks have 16 tokens unless ``--block-size`` says otherwise.

    A chat waits for its parent. Turn and type are checked, not used: the ids alone say what is shared.
    """
    block_size = BAILIAN_BLOCK_SIZE if options.block_size is None else checked_block_size(options.block_size)
    names = BlockNames()
    guard = CycleGuard()

    def convert(row: Row) -> Arrival:
        timestamp = fields.number(row, "timestamp")
        input_length, output_length = fields.lengths(row, "input_length", "output_length")
        chat = fields.integer(row, "chat_id", 0)
        parent = fields.integer(row, "parent_chat_id", ROOT_CHAT, default=ROOT_CHAT)
        wait_for = () if parent == ROOT_CHAT else (parent,)
        guard.check(chat, wait_for, "chat_id", may_repeat=True)
        fields.integer(row, "turn", 1, default=1)
        if "type" in row:
            fields.text(row, "type")
        ids = fields.hash_ids(row, "hash_ids")
        check_id_count(len(ids), input_length, block_size, "hash_ids", full_only=True)
        guard.add(chat, wait_for)
        source = names.tokens(ids, input_length, block_size)
        return Arrival(timestamp, input_length, output_length, source, link=Link(key=chat, wait_for=wait_for))

    return numbered(rows.records(convert), by_time=True)


FORMAT = TraceFormat(
    "bailian",
    f"Qwen Bailian rows, {BAILIAN_BLOCK_SIZE} tokens per hash id",
    read_bailian,
    keys=("chat_id", "input_length", "hash_ids"),
    seconds_per_unit=1.0,
)
