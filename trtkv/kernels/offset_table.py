"""DeviceOffsetTable: the block-offset table on a device, kept up to date from what changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trtkv.common import MAX_INT32
from trtkv.errors import ConfigurationError, InvalidInputError
from trtkv.kernels.block_offsets import OffsetRule, make_offset_rule, scatter_block_offsets
from trtkv.kernels.kernel_launch import Backend
from trtkv.kernels.staging_ring import StagingRing
from trtkv.records.kv_cache_index import NULL_ENTRY

if TYPE_CHECKING:
    import torch

    from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool

_UNKNOWN = -(2**31)
"""Stands in the host copy at positions never set."""


class DeviceOffsetTable:
    """int32 tensor [num_pools, num_rows, 2, max_blocks_per_seq] and a host copy of the slots it was made from.

    ``set_row`` compares slots with the host copy and remembers what differs; ``flush`` sends only that: 16 bytes per
    run of adjacent columns and 4 per slot, whatever the number of pools. Entries never set are 0; entries behind
    the end of a row keep their last value, as in the original.
    """

    def __init__(
        self,
        rules: Sequence[OffsetRule],
        num_slots_per_window: Sequence[int],
        num_rows: int,
        max_blocks_per_seq: int,
        device: torch.device | str = "cpu",
        backend: Backend = None,
    ) -> None:
        """``rules``: one per pool, in pool order. ``num_slots_per_window``: primary slots, to rule out overflow."""
        import torch

        for rule in rules:
            if num_slots_per_window[rule.window_idx] * rule.entries_per_slot > MAX_INT32:
                raise ConfigurationError(
                    f"{num_slots_per_window[rule.window_idx]} slots of {rule.entries_per_slot} entries do not fit "
                    "into 32-bit offsets; use fewer blocks per pool"
                )
        self.table = torch.zeros((len(rules), num_rows, 2, max_blocks_per_seq), dtype=torch.int32, device=device)
        self.bytes_sent = 0
        """Bytes of the last flush."""
        self.total_bytes_sent = 0
        self._backend = backend
        self._staging = StagingRing(device)
        rule_rows = [[*rule, 0] for rule in rules]
        self._rules = torch.tensor(rule_rows, dtype=torch.int32, device=device)
        self._num_slots = list(num_slots_per_window)
        self._shadow = np.full((len(num_slots_per_window), num_rows, max_blocks_per_seq), _UNKNOWN, dtype=np.int32)
        self._changed_columns: dict[tuple[int, int], list[NDArray[np.intp]]] = {}

    @classmethod
    def for_pools(
        cls,
        pools: Sequence[KVCacheBlockPool],
        num_rows: int,
        max_blocks_per_seq: int,
        device: torch.device | str = "cpu",
        backend: Backend = None,
    ) -> DeviceOffsetTable:
        """Table for all pools of a manager; windows count from 0 in the order in which they appear."""
        windows = list(dict.fromkeys(pool.window_size for pool in pools))
        rules = [
            make_offset_rule(
                windows.index(pool.window_size),
                pool.num_layers,
                pool.kv_factor,
                pool.layer_first_layout,
                is_k_only=pool.kv_factor == 1,
            )
            for pool in pools
        ]
        num_slots = {pool.window_size: pool.num_primary_blocks for pool in pools}
        return cls(rules, [num_slots[window] for window in windows], num_rows, max_blocks_per_seq, device, backend)

    def set_row(
        self, window_idx: int, row: int, slots: Sequence[int] | NDArray[np.int32], first_column: int = 0
    ) -> int:
        """Ask for ``slots`` at ``first_column`` and behind in a row of all pools of a window; NULL_ENTRY for no memory.

        Takes effect at the next flush. Returns how many slots differ from what the table holds or will hold.
        """
        wanted = np.asarray(slots, dtype=np.int32)
        self._check_row(window_idx, row, wanted, first_column)
        known = self._shadow[window_idx, row, first_column : first_column + len(wanted)]
        changed = np.flatnonzero(known != wanted)
        if len(changed):
            known[changed] = wanted[changed]
            self._changed_columns.setdefault((window_idx, row), []).append(first_column + changed)
        return len(changed)

    def flush(self) -> int:
        """Send what changed since the last flush and update ``table`` on the current stream; returns the bytes sent.

        If sending or the launch fails, everything stays to be sent by the next flush.
        """
        runs = self._list_runs()
        self.bytes_sent = 0
        if runs:
            lengths = [end - begin for _, _, begin, end in runs]
            header = np.zeros((len(runs), 4), dtype=np.int32)
            header[:, :3] = [run[:3] for run in runs]
            header[1:, 3] = np.cumsum(lengths[:-1])
            slots = [self._shadow[window_idx, row, begin:end] for window_idx, row, begin, end in runs]
            message = self._staging.send(np.concatenate([header.reshape(-1), *slots]))
            device_runs, device_slots = message[: header.size].view(-1, 4), message[header.size :]
            scatter_block_offsets(self.table, device_runs, device_slots, self._rules, max(lengths), self._backend)
            self.bytes_sent = message.numel() * message.element_size()
            self._changed_columns = {}
        self.total_bytes_sent += self.bytes_sent
        return self.bytes_sent

    def _list_runs(self) -> list[tuple[int, int, int, int]]:
        """Runs (window, row, first column, end column) of changed columns; a column set twice occurs once."""
        runs: list[tuple[int, int, int, int]] = []
        for (window_idx, row), parts in self._changed_columns.items():
            columns = np.unique(np.concatenate(parts))
            pieces = np.split(columns, np.flatnonzero(np.diff(columns) != 1) + 1)
            runs += ((window_idx, row, int(piece[0]), int(piece[-1]) + 1) for piece in pieces)
        return runs

    def _check_row(self, window_idx: int, row: int, slots: NDArray[np.int32], first_column: int) -> None:
        num_windows, num_rows, width = self._shadow.shape
        if not (0 <= window_idx < num_windows and 0 <= row < num_rows):
            raise InvalidInputError(
                f"window {window_idx}, row {row} is outside of {num_windows} windows, {num_rows} rows"
            )
        if slots.ndim != 1 or first_column < 0 or first_column + len(slots) > width:
            raise InvalidInputError(
                f"{slots.shape} slots from column {first_column} on do not fit into {width} columns"
            )
        is_slot = (slots >= 0) & (slots < self._num_slots[window_idx])
        bad = slots[~is_slot & (slots != NULL_ENTRY)]
        if len(bad):
            raise InvalidInputError(
                f"slot {bad[0]} is neither in 0..{self._num_slots[window_idx] - 1} nor NULL_ENTRY; "
                "a block of the secondary level must be onboarded first"
            )
