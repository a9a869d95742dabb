"""OffsetTableWriter: the blocks of a sequence as rows of an offset table in host memory."""

from __future__ import annotations

from typing import Any

from trtkv.blocks.generation_request import GenerationRequest
from trtkv.common import MAX_INT32
from trtkv.errors import InvalidInputError
from trtkv.manager.block_manager import BlockManager
from trtkv.records.kv_cache_index import NULL_ENTRY


class OffsetTableWriter:
    """Turns slots into entries, pool by pool: the slot times the K and V blocks of one slot, plus 1 for V."""

    def __init__(self, block_manager: BlockManager) -> None:
        self._windows = list(block_manager.window_block_managers.items())
        self._num_pools = block_manager.get_num_pools()
        self._num_values = max(
            pool.num_primary_blocks * pool.kv_factor * (1 if pool.layer_first_layout else pool.num_layers)
            for pool in block_manager.pools
        )

    def write(self, output: Any, first_row: int, sequence: GenerationRequest) -> int:
        """Write a sequence's rows, one per beam, from ``first_row`` on; returns the longest row.

        Raises InvalidInputError, with nothing written, if the table is too small.
        """
        import numpy as np

        table = np.asarray(output)
        rows_per_window = [
            [np.asarray(row, dtype=np.int32) for row in sequence.get_rows(window_size)]
            for window_size, _ in self._windows
        ]
        longest = max(len(row) for rows in rows_per_window for row in rows)
        self._check_table(table, first_row, sequence, longest)
        pool_idx = 0
        for (_, manager), rows in zip(self._windows, rows_per_window, strict=True):
            kv_factor = manager.pools.kv_factor
            for pool in manager.pools.pools:
                stride = kv_factor if pool.layer_first_layout else pool.num_layers * kv_factor
                for beam_idx, row in enumerate(rows):
                    _write_row(table[pool_idx, first_row + beam_idx], row, stride, kv_factor)
                pool_idx += 1
        return longest

    def _check_table(self, table: Any, first_row: int, sequence: GenerationRequest, width: int) -> None:
        if self._num_values > MAX_INT32:
            raise InvalidInputError(
                f"a pool has {self._num_values} K and V blocks, entries of 32 bits cannot tell them apart; "
                "use fewer blocks or layers per pool"
            )
        needed = [self._num_pools, first_row + sequence.beam_width, 2, width]
        shape = list(table.shape)
        is_large = len(shape) == 4 and all(size >= least for size, least in zip(shape, needed, strict=True))
        if table.dtype.name != "int32" or first_row < 0 or not is_large:
            raise InvalidInputError(
                f"request {sequence.request_id} from row {first_row} on needs an int32 table of at least {needed}, "
                f"it is {table.dtype} {shape}"
            )


def _write_row(target: Any, slots: Any, stride: int, kv_factor: int) -> None:
    """Write one beam's K and V rows: slot times the slot's stride, plus the field; NULL_ENTRY stays."""
    missing = slots == NULL_ENTRY
    for field in (0, 1):
        values = slots * stride + (field if kv_factor == 2 else 0)
        values[missing] = NULL_ENTRY
        target[field, : len(slots)] = values
