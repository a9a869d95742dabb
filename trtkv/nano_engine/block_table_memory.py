"""BlockTableMemory: keys and values of a model in the blocks that block tables name."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trtkv.executor.model_spec import ModelSpec
from trtkv.executor.paged_memory import PagedLayer, PagedMemory, PoolShape


class BlockTableMemory(PagedMemory):
    """One tensor for each layer, [K/V, blocks, heads, tokens, dim], zeroed. Row i of a step is the i-th block table."""

    def __init__(self, spec: ModelSpec, num_blocks: int, block_size: int, device: torch.device | str = "cpu") -> None:
        head_counts = sorted(set(spec.num_kv_heads_per_layer))
        shapes = [PoolShape(heads, block_size, spec.head_dim, is_hnd=True) for heads in head_counts]
        self.tensors = [
            torch.zeros(2, num_blocks, heads, block_size, spec.head_dim, dtype=spec.dtype, device=device)
            for heads in spec.num_kv_heads_per_layer
        ]
        layers = [PagedLayer(head_counts.index(tensor.shape[2]), tensor.view(-1)) for tensor in self.tensors]
        super().__init__(shapes, layers, torch.zeros(len(shapes), 0, 2, 0, dtype=torch.int64, device=device))
        self._num_blocks = num_blocks

    def set_block_tables(self, block_tables: Sequence[Sequence[int]]) -> None:
        """Let the rows of the next step be those of these tables; the places after the end of a table are not read."""
        longest = max(len(block_table) for block_table in block_tables)
        keys = torch.tensor([[*table, *[0] * (longest - len(table))] for table in block_tables])
        both = torch.stack((keys, keys + self._num_blocks), dim=1)  # pages of values follow those of all keys
        self.table = both.to(self.device).expand(len(self.shapes), -1, -1, -1)
