"""Scatter of changed slots into the block-offset table."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trtkv.kernels import reference
from trtkv.kernels._loader import resolve_launcher
from trtkv.kernels.kernel_launch import Backend, KernelLaunch, pointer

if TYPE_CHECKING:
    import torch


class OffsetRule(NamedTuple):
    """How a pool's table entries follow from a slot: K = slot * entries_per_slot, V = K + v_distance."""

    window_idx: int
    """Position of the pool's window in the list of windows."""
    entries_per_slot: int
    v_distance: int


def make_offset_rule(
    window_idx: int, num_layers: int, kv_factor: int, layer_first_layout: bool, is_k_only: bool
) -> OffsetRule:
    """Rule of a pool: blocks count layers * kv_factor entries, or kv_factor where layers come first.

    K-only caches and recurrent states name the same entry twice. C++: WindowBlockManager::setOffsets.
    """
    entries = kv_factor if layer_first_layout else num_layers * kv_factor
    return OffsetRule(window_idx, entries, 0 if is_k_only else 1)


def scatter_block_offsets(
    table: torch.Tensor,
    runs: torch.Tensor,
    slots: torch.Tensor,
    rules: torch.Tensor,
    longest_run: int,
    backend: Backend = None,
) -> None:
    """Write runs of slots into ``table`` [num_pools, num_rows, 2, max_blocks_per_seq] on the current stream.

    ``runs`` [n, 4]: window, row, first column, position of the run's first slot; ``slots``: the slots of all runs;
    ``rules`` [num_pools, 4]: an OffsetRule and a zero. All are int32 on the table's device. Changes ``table`` only.
    """
    if not len(runs):
        return
    launcher = resolve_launcher(backend, table.device)
    if launcher is None:
        reference.scatter_block_offsets(table, runs, slots, rules)
    else:
        launcher(plan_scatter(table, runs, slots, rules, longest_run))


def plan_scatter(
    table: torch.Tensor, runs: torch.Tensor, slots: torch.Tensor, rules: torch.Tensor, longest_run: int
) -> KernelLaunch:
    """Launch of the scatter; few threads where every run is short."""
    num_pools, num_rows, _, max_blocks_per_seq = table.shape
    threads = min(256, max(32, -(-longest_run // 32) * 32))
    return KernelLaunch(
        "block_offsets.cu",
        "scatter_block_offsets",
        (len(runs), num_pools, 1),
        threads,
        (
            pointer(table),
            pointer(runs),
            pointer(slots),
            pointer(rules),
            np.int32(len(runs)),
            np.int32(len(slots)),
            np.int32(num_rows),
            np.int32(max_blocks_per_seq),
        ),
    )
