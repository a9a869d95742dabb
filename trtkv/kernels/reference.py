"""The kernels in plain torch, written for reading: what a launch must leave behind, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trtkv.records.kv_cache_index import NULL_ENTRY

if TYPE_CHECKING:
    import torch

    from trtkv.kernels.copy_job import BlockLayout, CopyJob


def scatter_block_offsets(table: torch.Tensor, runs: torch.Tensor, slots: torch.Tensor, rules: torch.Tensor) -> None:
    """Write the K and V entries of each run into ``table`` (changed in place); see csrc/block_offsets.cu."""
    import torch

    starts = runs[:, 3].tolist()
    for (window, row, column, begin), end in zip(runs.tolist(), [*starts[1:], len(slots)], strict=True):
        run_slots = slots[begin:end]
        for pool, (pool_window, stride, v_distance, _) in enumerate(rules.tolist()):
            if pool_window != window:
                continue
            for field, distance in enumerate((0, v_distance)):
                entries = torch.where(run_slots == NULL_ENTRY, NULL_ENTRY, run_slots * stride + distance)
                table[pool, row, field, column : column + len(run_slots)] = entries


def copy_blocks(
    dst: torch.Tensor,
    src: torch.Tensor,
    jobs: Sequence[CopyJob],
    dst_layout: BlockLayout,
    src_layout: BlockLayout,
) -> None:
    """Copy the first tokens of blocks, job by job, into ``dst`` (changed in place); both are flat uint8."""
    for job in jobs:
        _rows(dst, job.dst_slot, dst_layout, job.num_tokens).copy_(_rows(src, job.src_slot, src_layout, job.num_tokens))


def _rows(pool: torch.Tensor, slot: int, layout: BlockLayout, num_tokens: int) -> torch.Tensor:
    """The leading bytes of a block as a view [pieces, rows, bytes]."""
    return pool.as_strided(
        (layout.num_pieces, layout.rows_per_piece, num_tokens * layout.token_bytes),
        (layout.piece_stride, layout.row_bytes, 1),
        pool.storage_offset() + slot * layout.slot_stride,
    )


def build_page_table(
    block_table: torch.Tensor,
    kv_lens: torch.Tensor,
    front_blocks: torch.Tensor | None,
    tokens_per_block: int,
    divisor: int = 1,
    addend: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``kv_indptr``, ``kv_indices`` without spare entries, ``kv_last_page_len``; see csrc/page_table.cu."""
    import torch

    num_rows, width = block_table.shape
    front = torch.zeros_like(kv_lens) if front_blocks is None else front_blocks
    blocks = (kv_lens + tokens_per_block - 1) // tokens_per_block
    pages = (blocks - front).clamp(min=0)
    indptr = torch.zeros(num_rows + 1, dtype=torch.int32, device=block_table.device)
    indptr[1:] = torch.cumsum(pages, 0)
    columns = torch.arange(width, device=block_table.device)
    is_page = (columns >= front[:, None]) & (columns < blocks[:, None])
    indices = torch.div(block_table[is_page], divisor, rounding_mode="trunc") + addend
    last = torch.where(pages == 0, 0, (kv_lens - 1) % tokens_per_block + 1)
    return indptr, indices.to(torch.int32), last.to(torch.int32)
