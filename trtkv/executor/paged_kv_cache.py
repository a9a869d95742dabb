"""PagedKvCache: keys and values of a model in the pools of a manager, found through the offset table on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from trtkv.executor.model_spec import ModelSpec
from trtkv.kernels.kernel_launch import Backend
from trtkv.kernels.offset_table import DeviceOffsetTable
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.pools.kv_cache_block_pool import KvLayout
from trtkv.pools.pool_tensors import get_primary


class _Layer(NamedTuple):
    """Where the pages of a layer are."""

    pages: torch.Tensor
    """The whole pool, one entry per block, layer and K/V: [entries, heads, tokens, dim] or [entries, tokens, ..]."""
    pool_idx: int
    first_entry: int
    """Distance of the layer's entries from those in the offset table, which name the pool's first layer."""
    is_hnd: bool


class PagedKvCache:
    """Reads and writes keys and values by table row and position. Rows belong to one beam of one request each."""

    def __init__(
        self, manager: KVCacheManager, spec: ModelSpec, device: str, max_rows: int, backend: Backend = None
    ) -> None:
        self.manager = manager
        self.device = torch.device(device)
        self._tokens_per_block = manager.tokens_per_block
        pools = manager.pool_tensors.pools
        self._windows = list(manager.window_sizes_metadata)
        self.offsets = DeviceOffsetTable.for_pools(pools, max_rows, manager.max_blocks_per_seq, device, backend)
        self._layers = [self._find_layer(layer_idx, spec.dtype) for layer_idx in range(len(spec.attention_windows))]

    def _find_layer(self, layer_idx: int, dtype: torch.dtype) -> _Layer:
        block_manager = self.manager.block_manager
        pool_idx = block_manager.get_layer_pool_idx(layer_idx)
        pool = block_manager.get_pool(pool_idx)
        is_hnd = pool.kv_layout is KvLayout.HND
        heads, tokens = pool.num_kv_heads, pool.tokens_per_block
        inner = (heads, tokens) if is_hnd else (tokens, heads)
        pages = get_primary(pool).view(dtype).view(-1, *inner, pool.size_per_head)
        return _Layer(pages, pool_idx, block_manager.get_pool_layer_idx(layer_idx) * pool.kv_factor, is_hnd)

    def update_rows(self, request_id: int, rows: Sequence[int]) -> None:
        """Ask for the present blocks of a request in its rows, one per beam; ``offsets.flush`` sends the changes."""
        sequence = self.manager.get_sequence(request_id)
        for window_idx, window_size in enumerate(self._windows):
            for row, slots in zip(rows, sequence.get_rows(window_size), strict=True):
                self.offsets.set_row(window_idx, row, slots)

    def write(
        self, layer_idx: int, rows: torch.Tensor, positions: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Store ``key`` and ``value`` [tokens, heads, dim] at the positions of their rows."""
        layer = self._layers[layer_idx]
        columns, inside = positions // self._tokens_per_block, positions % self._tokens_per_block
        for field, states in enumerate((key, value)):
            entries = self.offsets.table[layer.pool_idx, rows, field, columns] + layer.first_entry
            if layer.is_hnd:
                layer.pages[entries, :, inside] = states
            else:
                layer.pages[entries, inside] = states

    def read(
        self, layer_idx: int, row: int, first_position: int, last_position: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [heads, positions, dim] of a range of positions of one row."""
        layer, tokens = self._layers[layer_idx], self._tokens_per_block
        first_column = first_position // tokens
        columns = slice(first_column, last_position // tokens + 1)
        begin = first_position - first_column * tokens
        end = last_position + 1 - first_column * tokens
        result = []
        for field in (0, 1):
            pages = layer.pages[self.offsets.table[layer.pool_idx, row, field, columns] + layer.first_entry]
            states = pages.transpose(0, 1) if layer.is_hnd else pages.permute(2, 0, 1, 3)
            result.append(states.flatten(1, 2)[:, begin:end])
        return result[0], result[1]

    def read_scattered(
        self, layer_idx: int, rows: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [heads, positions, dim] of one history whose positions lie in the rows of several beams."""
        layer = self._layers[layer_idx]
        columns, inside = positions // self._tokens_per_block, positions % self._tokens_per_block
        result = []
        for field in (0, 1):
            entries = self.offsets.table[layer.pool_idx, rows, field, columns] + layer.first_entry
            states = layer.pages[entries, :, inside] if layer.is_hnd else layer.pages[entries, inside]
            result.append(states.transpose(0, 1))
        return result[0], result[1]
