"""AttentionGroup: slices of a step that are attended to together, in one copy of their history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trtkv.executor.paged_memory import PagedIndex, PagedMemory

_LONG = 32
"""Slices of more tokens than this are computed alone: they fill a machine by themselves, and masks stay small."""

_SHORT = 128
"""Histories are padded to the longest of a group, which is at most twice the shortest, or twice this."""


@dataclass(slots=True)
class SequenceSlice:
    """Consecutive tokens of one sequence (or beam) among the tokens of a forward pass."""

    table_row: int
    """Row of the offset table that the tokens are written to."""
    first_position: int
    num_tokens: int
    history_rows: Sequence[int] | None = None
    """With several beams: for each earlier position the row that holds it. None: all in ``table_row``."""

    def find_rows(self, positions: Sequence[int]) -> list[int]:
        """Row of each position up to its last token."""
        history = self.history_rows or ()
        return [history[position] if position < len(history) else self.table_row for position in positions]


@dataclass(frozen=True, slots=True)
class VisibleHistory:
    """What the slices of a group see in the layers of one pool and window."""

    index: PagedIndex
    num_keys: int
    """Positions of a copy that count; those after them are the rest of a page."""
    mask: torch.Tensor | None
    """bool [sequences, 1, queries, keys]: who sees what; None: everything, or what ``is_causal`` says."""
    is_causal: bool
    """Queries are the keys themselves, and each sees those before it."""


class AttentionGroup:
    """Slices of equally many tokens and similar positions."""

    def __init__(self, slices: Sequence[SequenceSlice]) -> None:
        self.slices = slices
        self.num_tokens = slices[0].num_tokens
        """Tokens of each slice."""
        self._rows = torch.tensor([entry.table_row for entry in slices])
        self._first_positions = torch.tensor([entry.first_position for entry in slices])

    @property
    def positions(self) -> torch.Tensor:
        """Positions [slices, tokens] of the tokens."""
        return self._first_positions[:, None] + torch.arange(self.num_tokens)

    @property
    def rows(self) -> torch.Tensor:
        """Rows [slices, tokens] of the tokens."""
        return self._rows[:, None].expand(-1, self.num_tokens)

    def find_history(self, memory: PagedMemory, pool_idx: int, window: int | None) -> VisibleHistory:
        """Where the keys and values of all positions lie that some token of the group sees."""
        first_visible = torch.zeros_like(self._first_positions)
        if window is not None:
            first_visible = (self._first_positions - window + 1).clamp(min=0)
        if self.slices[0].history_rows is not None:
            return self._find_tokens(memory, pool_idx, window, first_visible)
        return self._find_pages(memory, pool_idx, window, first_visible)

    def _find_pages(
        self, memory: PagedMemory, pool_idx: int, window: int | None, first_visible: torch.Tensor
    ) -> VisibleHistory:
        """The pages of each row; a row with fewer than the longest repeats its last one, which is hidden then."""
        size = memory.shapes[pool_idx].tokens_per_block
        first_columns, last_columns = first_visible // size, self._last_positions // size
        columns = first_columns[:, None] + torch.arange(int((last_columns - first_columns).max()) + 1)
        held = torch.minimum(columns, last_columns[:, None])
        positions = first_columns[:, None] * size + torch.arange(columns.shape[1] * size)
        num_keys = int((self._last_positions - first_columns * size).max()) + 1
        if num_keys == self.num_tokens and (window is None or window >= num_keys):
            return VisibleHistory(memory.index_pages(pool_idx, self._rows, held), num_keys, None, is_causal=True)
        visible = self._find_visible(positions, window)
        if visible[:, :, :num_keys].all():
            return VisibleHistory(memory.index_pages(pool_idx, self._rows, held), num_keys, None, is_causal=False)
        # What no query sees counts zero times, but zero times NaN is NaN: memory that was never written must go.
        unwritten = ~visible.any(dim=1)
        unwritten[:, num_keys:] = False
        index = memory.index_pages(pool_idx, self._rows, held, unwritten)
        return VisibleHistory(index, num_keys, self._to_mask(visible[:, :, :num_keys], memory), is_causal=False)

    def _find_tokens(
        self, memory: PagedMemory, pool_idx: int, window: int | None, first_visible: torch.Tensor
    ) -> VisibleHistory:
        """The tokens of each beam, one by one, as neighbours may lie in different rows."""
        num_keys = int((self._last_positions - first_visible).max()) + 1
        positions = first_visible[:, None] + torch.arange(num_keys)
        held = torch.minimum(positions, self._last_positions[:, None])  # the newest token stands in for those beyond
        rows = torch.tensor([entry.find_rows(places) for entry, places in zip(self.slices, held.tolist(), strict=True)])
        mask = self._to_mask(self._find_visible(positions, window), memory)
        return VisibleHistory(memory.index_tokens(pool_idx, rows, held), num_keys, mask, is_causal=False)

    @property
    def _last_positions(self) -> torch.Tensor:
        return self._first_positions + (self.num_tokens - 1)

    def _find_visible(self, positions: torch.Tensor, window: int | None) -> torch.Tensor:
        """bool [slices, tokens, positions]: which of ``positions`` [slices, n] each token sees."""
        newest = self.positions[:, :, None]
        visible = positions[:, None] <= newest
        if window is not None:
            visible &= positions[:, None] > newest - window
        return visible

    def _to_mask(self, visible: torch.Tensor, memory: PagedMemory) -> torch.Tensor:
        return visible[:, None].to(memory.device)


def group_slices(slices: Sequence[SequenceSlice]) -> list[list[int]]:
    """Cut a step into groups of slices, given by their indices: equally many tokens, histories of similar length."""
    alike: dict[tuple[int, bool], list[int]] = {}
    for index, entry in enumerate(slices):
        alike.setdefault((entry.num_tokens, entry.history_rows is not None), []).append(index)
    groups: list[list[int]] = []
    for (num_tokens, _), indices in alike.items():
        limit = -1
        for index in sorted(indices, key=lambda index: slices[index].first_position):
            position = slices[index].first_position
            if position > limit or num_tokens > _LONG:
                groups.append([])
                limit = 2 * max(position, _SHORT)
            groups[-1].append(index)
    return groups
