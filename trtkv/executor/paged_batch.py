"""PagedBatch: the tokens of one forward pass, and where their keys and values go and come from."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trtkv.executor.attention_group import AttentionGroup, SequenceSlice, VisibleHistory, group_slices
from trtkv.executor.paged_memory import PagedIndex, PagedMemory


class PagedBatch:
    """Slices in an order in which those attended to together are neighbours.

    Indices are made at the first layer that needs them and serve all layers of the same pool and window.
    """

    def __init__(self, memory: PagedMemory, slices: Sequence[SequenceSlice]) -> None:
        members = group_slices(slices)
        self.memory = memory
        self.order = [index for group in members for index in group]
        """Indices into ``slices`` in the order of the batch."""
        self.groups = [AttentionGroup([slices[index] for index in group]) for group in members]
        self.positions = torch.cat([group.positions.flatten() for group in self.groups])
        """Position of each token, on the host."""
        self._rows = torch.cat([group.rows.flatten() for group in self.groups])
        self._new_tokens: dict[int, PagedIndex] = {}
        self._histories: dict[tuple[int, int | None], list[VisibleHistory]] = {}

    def find_new_tokens(self, layer_idx: int) -> PagedIndex:
        """Where a layer keeps the keys and values of this pass."""
        pool_idx = self.memory.get_pool_idx(layer_idx)
        if pool_idx not in self._new_tokens:
            self._new_tokens[pool_idx] = self.memory.index_tokens(pool_idx, self._rows[None], self.positions[None])
        return self._new_tokens[pool_idx]

    def find_histories(self, layer_idx: int, window: int | None) -> list[VisibleHistory]:
        """What each group sees in a layer whose tokens see ``window`` positions (None: all)."""
        pool_idx = self.memory.get_pool_idx(layer_idx)
        if (pool_idx, window) not in self._histories:
            self._histories[pool_idx, window] = [
                group.find_history(self.memory, pool_idx, window) for group in self.groups
            ]
        return self._histories[pool_idx, window]
