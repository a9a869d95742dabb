"""kvcache-simulator rows: ``hash_ids``, ``input_length``, ``block_size``, and perhaps ``block_tokens``."""

from __future__ import annotations

from typing import cast

from trtkv.errors import InvalidInputError
from trtkv.traces import fields
from trtkv.traces.arrivals import Arrival, numbered
from trtkv.traces.block_names import BlockNames, check_id_count, checked_block_size
from trtkv.traces.options import ReadOptions, Rows
from trtkv.traces.rows import Row, RowFaultError
from trtkv.traces.trace import TokenSource, TraceRequest
from trtkv.traces.trace_format import TraceFormat


def read_kvcache_simulator(rows: Rows, options: ReadOptions) -> list[TraceRequest]:
    """Requests in file order. Times and outputs may be absent and are 0 then.

    The block size comes from the rows; ``--block-size`` stands in where they have none and must not contradict them.
    Ids name every block of the prompt or every full one. With ``block_tokens`` each block has a length of its own.
    """
    names = BlockNames()
    given = None if options.block_size is None else checked_block_size(options.block_size)

    def convert(row: Row) -> Arrival:
        block_size = _block_size(row, given)
        names.check_block_size(block_size)
        input_length = fields.integer(row, "input_length", 1)
        output_length = fields.integer(row, "output_length", 0, default=0)
        fields.check_total_length(input_length, output_length)
        timestamp = fields.number(row, "timestamp", default=0)
        ids = [_name(block_id) for block_id in fields.hash_ids(row, "hash_ids")]
        source = _tokens(names, row, ids, input_length, block_size)
        return Arrival(timestamp, input_length, output_length, source)

    return numbered(rows.records(convert))


def _block_size(row: Row, given: int | None) -> int:
    if row.get("block_size") is None:
        if given is None:
            raise InvalidInputError("a row has no block_size: give the tokens per hash id with --block-size")
        return given
    block_size = fields.integer(row, "block_size", 1)
    if given not in (None, block_size):
        raise RowFaultError(f"block_size is {block_size}, but --block-size says {given}")
    return block_size


def _tokens(names: BlockNames, row: Row, ids: list[int | str], input_length: int, block_size: int) -> TokenSource:
    if row.get("block_tokens") is None:
        check_id_count(len(ids), input_length, block_size, "hash_ids", full_only=True)
        return names.tokens(ids, input_length, block_size)
    lengths = fields.items(row, "block_tokens")
    if len(lengths) != len(ids):
        raise RowFaultError(f"block_tokens holds {len(lengths)} numbers for {len(ids)} hash_ids")
    for position, length in enumerate(lengths):
        if type(length) is not int or not 1 <= length <= block_size:
            raise RowFaultError(f"block_tokens[{position}] is {length!r:.80}, not an integer from 1 to {block_size}")
    numbers = cast("list[int]", lengths)
    rest = input_length - sum(numbers)
    if rest < 0:
        raise RowFaultError(f"block_tokens add up to {sum(numbers)}, more than input_length {input_length}")
    return names.cut_tokens(ids, numbers, rest, block_size)


def _name(block_id: int | str) -> int | str:
    """Decimal text names the same block as the number, as in the simulator itself."""
    if isinstance(block_id, str) and block_id.removeprefix("-").isascii() and block_id.removeprefix("-").isdigit():
        number = int(block_id)
        return number if str(number) == block_id else block_id
    return block_id


FORMAT = TraceFormat(
    "kvcache-simulator",
    "hash ids with the block size in each row",
    read_kvcache_simulator,
    keys=("block_size", "input_length", "hash_ids"),
)
