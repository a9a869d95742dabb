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


class PoolShape(NamedTuple):
    """What index tensors have to know of a pool."""

    num_heads: int
    tokens_per_block: int
    head_dim: int
    is_hnd: bool


class PagedIndex(NamedTuple):
    """Which keys and values are meant, for all layers of a pool."""

    units: torch.Tensor
    """Flat: the units in the order of the copy; see PagedKvCache."""
    num_sequences: int
    tokens_per_unit: int
    unwritten: torch.Tensor | None = None
    """Flat: tokens of the copy that are zeroed, as nobody may have written them."""


class _Layer(NamedTuple):
    """Where the pages of a layer are."""

    pool_idx: int
    memory: torch.Tensor
    """The pool from the layer's first entry on, flat: the offset table names entries of the pool's first layer."""


class PagedKvCache:
    """Reads and writes keys and values by table row and position. Rows belong to one beam of one request each.

    An index is made once a step and pool, and serves all layers of the pool. Its units are contiguous in memory: the
    page of a head or a token of it where heads come before tokens (HND), a page or a token of it otherwise.
    """

    def __init__(
        self, manager: KVCacheManager, spec: ModelSpec, device: str, max_rows: int, backend: Backend = None
    ) -> None:
        self.manager = manager
        self.device = torch.device(device)
        pools = manager.pool_tensors.pools
        self._windows = list(manager.window_sizes_metadata)
        self.offsets = DeviceOffsetTable.for_pools(pools, max_rows, manager.max_blocks_per_seq, device, backend)
        self.shapes = [
            PoolShape(pool.num_kv_heads, pool.tokens_per_block, pool.size_per_head, pool.kv_layout is KvLayout.HND)
            for pool in pools
        ]
        self._layers = [self._find_layer(layer_idx, spec.dtype) for layer_idx in range(len(spec.attention_windows))]

    def _find_layer(self, layer_idx: int, dtype: torch.dtype) -> _Layer:
        block_manager = self.manager.block_manager
        pool_idx = block_manager.get_layer_pool_idx(layer_idx)
        pool, shape = block_manager.get_pool(pool_idx), self.shapes[pool_idx]
        first_entry = block_manager.get_pool_layer_idx(layer_idx) * pool.kv_factor
        page_size = shape.num_heads * shape.tokens_per_block * shape.head_dim
        return _Layer(pool_idx, get_primary(pool).view(dtype).view(-1)[first_entry * page_size :])

    def get_pool_idx(self, layer_idx: int) -> int:
        """Pool of a layer."""
        return self._layers[layer_idx].pool_idx

    def update_rows(self, request_id: int, rows: Sequence[int]) -> None:
        """Ask for the present blocks of a request in its rows, one per beam; ``offsets.flush`` sends the changes."""
        sequence = self.manager.get_sequence(request_id)
        for window_idx, window_size in enumerate(self._windows):
            for row, slots in zip(rows, sequence.get_rows(window_size), strict=True):
                self.offsets.set_row(window_idx, row, slots)

    # -- indices ----------------------------------------------------------------------------------

    def index_pages(
        self, pool_idx: int, rows: torch.Tensor, columns: torch.Tensor, unwritten: torch.Tensor | None = None
    ) -> PagedIndex:
        """Index of whole pages. ``rows`` [sequences] and ``columns`` [sequences, n] of the offset table.

        ``unwritten`` bool [sequences, n * tokens per block]: what a copy must not hold.
        """
        shape = self.shapes[pool_idx]
        pages = self._find_pages(pool_idx, rows[:, None], columns)
        if shape.is_hnd:
            pages = pages.unsqueeze(-2) * shape.num_heads + self._heads(shape)
        places = None if unwritten is None else self._find_places(shape, unwritten)
        return PagedIndex(pages.flatten(), len(rows), shape.tokens_per_block, places)

    def index_tokens(self, pool_idx: int, rows: torch.Tensor, positions: torch.Tensor) -> PagedIndex:
        """Index of single tokens. ``rows`` and ``positions`` [sequences, n]: each token has a row of its own."""
        shape = self.shapes[pool_idx]
        pages = self._find_pages(pool_idx, rows, positions // shape.tokens_per_block)
        inside = (positions % shape.tokens_per_block).to(self.device)
        if shape.is_hnd:
            pages = pages.unsqueeze(-2) * shape.num_heads + self._heads(shape)
            inside = inside.unsqueeze(-2)
        return PagedIndex((pages * shape.tokens_per_block + inside).flatten(), len(rows), 1)

    def _find_pages(self, pool_idx: int, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """Pages [K/V, sequences, n] of the pool's first layer."""
        table, rows, columns = self.offsets.table[pool_idx], rows.to(self.device), columns.to(self.device)
        return torch.stack((table[rows, 0, columns], table[rows, 1, columns])).long()

    def _heads(self, shape: PoolShape) -> torch.Tensor:
        return torch.arange(shape.num_heads, device=self.device)[:, None]

    def _find_places(self, shape: PoolShape, marked: torch.Tensor) -> torch.Tensor:
        """Where marked positions [sequences, n] lie in a copy, counted in vectors of one token."""
        sequences, positions = marked.nonzero(as_tuple=True)
        num_sequences, num_positions = marked.shape
        sequences = torch.stack((sequences, sequences + num_sequences))  # keys, values
        if shape.is_hnd:
            sequences = sequences[:, None] * shape.num_heads + torch.arange(shape.num_heads)[:, None]
        return (sequences * num_positions + positions).flatten().to(self.device)

    # -- keys and values --------------------------------------------------------------------------

    def write(self, layer_idx: int, index: PagedIndex, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store ``key`` and ``value`` [heads, tokens, dim] at the tokens of an index of one sequence."""
        layer = self._layers[layer_idx]
        shape = self.shapes[layer.pool_idx]
        states = torch.stack((key, value))
        width = shape.head_dim
        if not shape.is_hnd:
            states, width = states.transpose(1, 2), shape.num_heads * shape.head_dim
        layer.memory.view(-1, width).index_copy_(0, index.units, states.reshape(-1, width))

    def read(self, layer_idx: int, index: PagedIndex) -> torch.Tensor:
        """A copy of what an index says: keys and values [K/V, sequences, heads, positions, dim]."""
        layer = self._layers[layer_idx]
        num_heads, _, head_dim, is_hnd = self.shapes[layer.pool_idx]
        width = head_dim if is_hnd else num_heads * head_dim
        states = layer.memory.view(-1, index.tokens_per_unit * width).index_select(0, index.units).view(-1, width)
        if index.unwritten is not None:
            states.index_fill_(0, index.unwritten, 0)
        if is_hnd:
            return states.view(2, index.num_sequences, num_heads, -1, head_dim)
        return states.view(2, index.num_sequences, -1, num_heads, head_dim).transpose(2, 3)
