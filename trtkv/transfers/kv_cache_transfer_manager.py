"""KVCacheTransferManager: issues transfers between blocks and counts them."""

from __future__ import annotations

from collections.abc import Sequence

from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import KvCacheTransferMode, WindowSize
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool
from trtkv.records.stats import KvCacheTransferStats
from trtkv.transfers.copy_engine import COPY, OFFLOAD, ONBOARD, BlockCopy, CopyEngine


class KVCacheTransferManager:
    """Transfers of one window. C++: KVCacheTransferManager. Slots are read before the caller swaps them."""

    def __init__(self, window_size: WindowSize, copy_engine: CopyEngine) -> None:
        self._window_size = window_size
        self._copy_engine = copy_engine
        self._stats = KvCacheTransferStats()

    def onboard(
        self,
        src: KVCacheBlock,
        dst: KVCacheBlock,
        pools: Sequence[KVCacheBlockPool],
        num_tokens: int = 0,
        mode: KvCacheTransferMode = KvCacheTransferMode.DRAM,
        directory: str = "",
    ) -> None:
        """Copy a block into a primary one, from the secondary level or inside the primary one."""
        kind = COPY if src.is_primary else ONBOARD
        moved = self._copy(kind, src, dst, pools, num_tokens, mode, directory)
        if kind == COPY:
            self._stats.intra_device_copy_blocks += 1
            self._stats.intra_device_copy_bytes += moved
        else:
            self._stats.onboard_blocks += 1
            self._stats.onboard_bytes += moved

    def offload(
        self,
        src: KVCacheBlock,
        dst: KVCacheBlock,
        pools: Sequence[KVCacheBlockPool],
        num_tokens: int = 0,
        mode: KvCacheTransferMode = KvCacheTransferMode.DRAM,
        directory: str = "",
    ) -> None:
        """Copy a primary block into a secondary one."""
        self._stats.offload_bytes += self._copy(OFFLOAD, src, dst, pools, num_tokens, mode, directory)
        self._stats.offload_blocks += 1

    def _copy(
        self,
        kind: str,
        src: KVCacheBlock,
        dst: KVCacheBlock,
        pools: Sequence[KVCacheBlockPool],
        num_tokens: int,
        mode: KvCacheTransferMode,
        directory: str,
    ) -> int:
        copy = BlockCopy(
            kind,
            self._window_size,
            src.memory_pool_block_index,
            dst.memory_pool_block_index,
            src.block_id,
            dst.block_id,
            num_tokens,
            mode,
            directory,
        )
        return self._copy_engine.copy_block(copy, pools)

    def sync_with_buffer_manager(self) -> None:
        """Order coming transfers after the compute work queued so far."""
        self._copy_engine.sync_with_buffer_manager()

    def sync_transfers(self) -> None:
        """Order coming compute work after the transfers issued so far."""
        self._copy_engine.sync_transfers()

    def get_and_reset_transfer_stats(self) -> KvCacheTransferStats:
        """Counts since the last call."""
        stats, self._stats = self._stats, KvCacheTransferStats()
        return stats
