"""PagedMemory: keys and values of a model in pages, read and written through a table of pages on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch


class PoolShape(NamedTuple):
    """What index tensors have to know of a pool."""

    num_heads: int
    tokens_per_block: int
    head_dim: int
    is_hnd: bool

    @property
    def page_size(self) -> int:
        """Elements of a page: the keys or the values of a block in one layer."""
        return self.num_heads * self.tokens_per_block * self.head_dim


class PagedIndex(NamedTuple):
    """Which keys and values are meant, for all layers of a pool."""

    units: torch.Tensor
    """Flat: the units in the order of the copy; see PagedMemory."""
    num_sequences: int
    tokens_per_unit: int
    unwritten: torch.Tensor | None = None
    """Flat: tokens of the copy that are zeroed, as they may never have been written."""


class PagedLayer(NamedTuple):
    """Where the pages of a layer are."""

    pool_idx: int
    memory: torch.Tensor
    """Flat, starting so that the pages of the table are its first, second, ... ``page_size`` elements."""


class PagedMemory:
    """Reads and writes keys and values by table row and position.

    ``table`` is an integer tensor [pools, rows, K/V, columns] of pages: position p of a row lies in column
    ``p // tokens_per_block``. Its owner keeps it up to date, in place or by another tensor.

    An index is made once a step and pool, and serves all layers of the pool. Its units are contiguous in memory: the
    page of a head or a token of it where heads come before tokens (HND), a page or a token of it otherwise.
    """

    def __init__(self, shapes: Sequence[PoolShape], layers: Sequence[PagedLayer], table: torch.Tensor) -> None:
        self.shapes = shapes
        self.table = table
        self.device = table.device
        self._layers = layers

    def get_pool_idx(self, layer_idx: int) -> int:
        """Pool of a layer."""
        return self._layers[layer_idx].pool_idx

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
        table, rows, columns = self.table[pool_idx], rows.to(self.device), columns.to(self.device)
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
