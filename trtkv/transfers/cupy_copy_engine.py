"""CupyCopyEngine: gathers copies inside the primary pools and makes them with one kernel launch per pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trtkv.errors import check
from trtkv.kernels.block_copy import copy_blocks
from trtkv.kernels.copy_job import BlockLayout, CopyJob
from trtkv.kernels.kernel_launch import Backend
from trtkv.kernels.staging_ring import StagingRing
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool, KvLayout
from trtkv.pools.pool_tensors import get_primary, is_partial
from trtkv.records.kv_cache_index import get_slot, is_primary
from trtkv.transfers.torch_copy_engine import TorchCopyEngine, check_copy

if TYPE_CHECKING:
    import torch

    from trtkv.transfers.copy_engine import BlockCopy


class CupyCopyEngine:
    """Copies within the primary level wait for each other and go out together; transfers to and from the host do not.

    The waiting copies are launched on the current stream by ``sync_transfers``, or when a transfer that must come
    behind them is asked for. So ``sync_transfers`` has to be called before the blocks are read or their sources
    written. A launch that fails leaves what was not launched waiting. Everything else is TorchCopyEngine's work.
    """

    def __init__(self, backend: Backend = None) -> None:
        """``backend``: who runs the kernel; see kernels.kernel_launch."""
        self._backend = backend
        self._across = TorchCopyEngine()
        self._waiting: dict[KVCacheBlockPool, list[BlockCopy]] = {}
        self._staging: dict[torch.device, StagingRing] = {}

    def copy_block(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        """Note or make a copy in all pools of one window; returns the bytes that it moves."""
        if not (is_primary(copy.src_index) and is_primary(copy.dst_index)):
            self.sync_transfers()
            return self._across.copy_block(copy, pools)
        check_copy(copy, pools)
        moved = sum(get_block_layout(pool).num_copied_bytes(count_units(pool, copy.num_tokens)) for pool in pools)
        for pool in pools:
            self._waiting.setdefault(pool, []).append(copy)
        return moved

    def sync_with_buffer_manager(self) -> None:
        """Nothing to do: copies are launched on the current stream, behind its work."""

    def sync_transfers(self) -> None:
        """Launch the waiting copies, and let the current stream wait for transfers to and from the host."""
        for pool in list(self._waiting):
            self._launch(pool, self._waiting[pool])
            del self._waiting[pool]
        self._across.sync_transfers()

    def _launch(self, pool: KVCacheBlockPool, copies: Sequence[BlockCopy]) -> None:
        primary = get_primary(pool)
        layout = get_block_layout(pool)
        jobs = [
            CopyJob(get_slot(copy.src_index), get_slot(copy.dst_index), count_units(pool, copy.num_tokens))
            for copy in copies
        ]
        staging = self._staging.setdefault(primary.device, StagingRing(primary.device))
        copy_blocks(primary, primary, jobs, layout, layout, staging, self._backend)


def get_block_layout(pool: KVCacheBlockPool) -> BlockLayout:
    """Where a primary block's bytes lie. Pools that are only copied whole count a block as one token."""
    check(pool.dtype.num_bits % 8 == 0, f"pool elements of {pool.dtype.num_bits} bits have no address")
    piece_bytes = pool.block_size * pool.dtype.num_bits // 8
    rows, tokens = 1, 1
    if is_partial(pool, 1):
        tokens = pool.tokens_per_block
        rows = pool.num_kv_heads if pool.kv_layout is KvLayout.HND else 1
    pieces = pool.num_layers * pool.kv_factor
    if not pool.layer_first_layout:
        slot_stride, piece_stride = pieces * piece_bytes, piece_bytes
    else:
        # K and V of a layer are neighbours, so they make one piece, with the rows of both.
        pieces, piece_bytes = pool.num_layers, pool.kv_factor * piece_bytes
        rows *= pool.kv_factor
        slot_stride, piece_stride = piece_bytes, pool.num_primary_blocks * piece_bytes
    row_bytes = piece_bytes // rows
    return BlockLayout(pieces, rows, row_bytes // tokens, row_bytes, slot_stride, piece_stride, pool.num_primary_blocks)


def count_units(pool: KVCacheBlockPool, num_tokens: int) -> int:
    """Tokens to copy in terms of ``get_block_layout``; 0 tokens mean all."""
    if is_partial(pool, num_tokens):
        return num_tokens
    return get_block_layout(pool).tokens_per_row
