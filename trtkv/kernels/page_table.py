"""Ragged page tables (kv_indptr, kv_indices, kv_last_page_len) from a block table, as FlashInfer reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trtkv.errors import InvalidInputError
from trtkv.kernels import reference
from trtkv.kernels._loader import resolve_launcher
from trtkv.kernels.kernel_launch import Backend, KernelLaunch, pointer

if TYPE_CHECKING:
    import torch

_THREADS = 128
"""THREADS of csrc/page_table.cu."""


class PageTable(NamedTuple):
    """int32 arrays of n rows; only the first ``kv_indptr[n]`` entries of ``kv_indices`` are meant.

    An empty row has no pages and a last page length of 0; other lengths lie in 1..tokens_per_block.
    """

    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    kv_last_page_len: torch.Tensor


def create_page_table(num_rows: int, max_blocks_per_seq: int, device: torch.device | str) -> PageTable:
    """Arrays that are large enough for every length, to be filled again each step."""
    import torch

    def empty(size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.int32, device=device)

    return PageTable(empty(num_rows + 1), empty(num_rows * max_blocks_per_seq), empty(num_rows))


def build_page_table(
    out: PageTable,
    block_table: torch.Tensor,
    kv_lens: torch.Tensor,
    tokens_per_block: int,
    front_blocks: torch.Tensor | None = None,
    divisor: int = 1,
    addend: int = 0,
    backend: Backend = None,
) -> None:
    """Fill ``out`` from ``block_table`` [num_rows, max_blocks_per_seq] (rows may be strided) on the current stream.

    ``kv_lens``: tokens per row; ``front_blocks``: leading blocks to leave out because they slid out of a window.
    An index is entry / divisor + addend: divisor 1 for slots, entries per slot for K entries of an offset table.
    Lengths are not looked at on the host, so they must fit the table. Needs no synchronisation; changes ``out`` only.
    """
    num_rows = len(block_table)
    _check_sizes(out, block_table, kv_lens, front_blocks)
    if not num_rows:
        out.kv_indptr[:1] = 0
        return
    launcher = resolve_launcher(backend, block_table.device)
    if launcher is None:
        indptr, indices, last = reference.build_page_table(
            block_table, kv_lens, front_blocks, tokens_per_block, divisor, addend
        )
        out.kv_indptr[: num_rows + 1] = indptr
        out.kv_indices[: len(indices)] = indices
        out.kv_last_page_len[:num_rows] = last
        return
    launcher(
        KernelLaunch(
            "page_table.cu",
            "build_page_table",
            (num_rows, 1, 1),
            _THREADS,
            (
                pointer(out.kv_indptr),
                pointer(out.kv_indices),
                pointer(out.kv_last_page_len),
                pointer(block_table),
                pointer(kv_lens),
                pointer(front_blocks),
                np.int32(num_rows),
                np.int64(block_table.stride(0)),
                np.int32(tokens_per_block),
                np.int32(divisor),
                np.int32(addend),
            ),
        )
    )


def _check_sizes(
    out: PageTable, block_table: torch.Tensor, kv_lens: torch.Tensor, front_blocks: torch.Tensor | None
) -> None:
    import torch

    num_rows, width = block_table.shape
    if width > 1 and block_table.stride(1) != 1:
        raise InvalidInputError("the entries of a block table row must be adjacent; pass a table without column stride")
    for name, tensor, needed in (
        ("kv_indptr", out.kv_indptr, num_rows + 1),
        ("kv_indices", out.kv_indices, num_rows * width),
        ("kv_last_page_len", out.kv_last_page_len, num_rows),
        ("kv_lens", kv_lens, num_rows),
        ("front_blocks", kv_lens if front_blocks is None else front_blocks, num_rows),
        ("block_table", block_table, 0),
    ):
        if tensor.dtype != torch.int32 or tensor.numel() < needed:
            raise InvalidInputError(
                f"{name} must be int32 with {needed} entries, it is {tensor.dtype}, {tensor.numel()}"
            )
