"""Mooncake rows: hash ids of blocks, whose size the user gives."""

from __future__ import annotations

from trtkv.common import ceil_div
from trtkv.errors import InvalidInputError
from trtkv.traces import fields
from trtkv.traces.arrivals import Arrival, numbered
from trtkv.traces.block_names import checked_block_size
from trtkv.traces.hash_id_numbers import HashIdNumbers
from trtkv.traces.options import ReadOptions, Rows
from trtkv.traces.rows import Row, RowFaultError
from trtkv.traces.trace import HashIdTokens, TraceRequest
from trtkv.traces.trace_format import TraceFormat


def read_mooncake(rows: Rows, options: ReadOptions) -> list[TraceRequest]:
    """Requests in file order, from ``timestamp`` (ms), ``input_length``, ``output_length`` and ``hash_ids``."""
    if options.block_size is None:
        raise InvalidInputError(
            "Mooncake rows do not say how many tokens a hash id stands for; give it with --block-size "
            "(512 for the traces published with Mooncake)"
        )
    block_size = checked_block_size(options.block_size)
    numbers = HashIdNumbers(block_size)

    def convert(row: Row) -> Arrival:
        timestamp = fields.number(row, "timestamp")
        input_length, output_length = fields.lengths(row, "input_length", "output_length")
        ids = fields.hash_ids(row, "hash_ids")
        needed = ceil_div(input_length, block_size)
        if len(ids) != needed:
            raise RowFaultError(
                f"hash_ids holds {len(ids)} ids, but input_length {input_length} at block size {block_size} "
                f"needs {needed}; check the row and --block-size"
            )
        return Arrival(timestamp, input_length, output_length, HashIdTokens(numbers.add(ids), block_size))

    return numbered(rows.records(convert))


FORMAT = TraceFormat(
    "mooncake",
    "hash ids of blocks",
    read_mooncake,
    keys=("input_length", "hash_ids"),
    seconds_per_unit=1e-3,
    needs_block_size=True,
)
