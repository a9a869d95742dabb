"""PagedKvCache: the pools of a manager as paged memory, found through the offset table on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trtkv.executor.model_spec import ModelSpec
from trtkv.executor.paged_memory import PagedLayer, PagedMemory, PoolShape
from trtkv.kernels.kernel_launch import Backend
from trtkv.kernels.offset_table import DeviceOffsetTable
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.pools.kv_cache_block_pool import KvLayout
from trtkv.pools.pool_tensors import get_primary


class PagedKvCache(PagedMemory):
    """Keys and values in the pools of a manager. Rows belong to one beam of one request each."""

    def __init__(
        self, manager: KVCacheManager, spec: ModelSpec, device: str, max_rows: int, backend: Backend = None
    ) -> None:
        pools = manager.pool_tensors.pools
        self.manager = manager
        self.offsets = DeviceOffsetTable.for_pools(pools, max_rows, manager.max_blocks_per_seq, device, backend)
        self._windows = list(manager.window_sizes_metadata)
        shapes = [
            PoolShape(pool.num_kv_heads, pool.tokens_per_block, pool.size_per_head, pool.kv_layout is KvLayout.HND)
            for pool in pools
        ]
        layers = [_find_layer(manager, shapes, idx, spec.dtype) for idx in range(len(spec.attention_windows))]
        super().__init__(shapes, layers, self.offsets.table)

    def update_rows(self, request_id: int, rows: Sequence[int]) -> None:
        """Ask for the present blocks of a request in its rows, one per beam; ``offsets.flush`` sends the changes."""
        sequence = self.manager.get_sequence(request_id)
        for window_idx, window_size in enumerate(self._windows):
            for row, slots in zip(rows, sequence.get_rows(window_size), strict=True):
                self.offsets.set_row(window_idx, row, slots)


def _find_layer(manager: KVCacheManager, shapes: Sequence[PoolShape], layer_idx: int, dtype: torch.dtype) -> PagedLayer:
    """The table names entries of a pool's first layer; those of others follow at a distance."""
    block_manager = manager.block_manager
    pool_idx = block_manager.get_layer_pool_idx(layer_idx)
    pool = block_manager.get_pool(pool_idx)
    first_entry = block_manager.get_pool_layer_idx(layer_idx) * pool.kv_factor
    return PagedLayer(pool_idx, get_primary(pool).view(dtype).view(-1)[first_entry * shapes[pool_idx].page_size :])
