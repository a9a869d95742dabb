"""A memory that remembers what was computed: finds a wrong block by its content, not by its id.

Every computed token leaves a value that stands for the whole history before it: tokens, adapter, salt, images. A step
checks, through the offset table that kernels would get, that everything it attends to is there.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from trtkv.common import RECURRENT_STATES, WindowSize, ceil_div
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool
from trtkv.records.kv_cache_index import NULL_INDEX, get_slot, is_primary
from trtkv.records.llm_request import LlmRequest
from trtkv.transfers.copy_engine import BlockCopy, RecordingCopyEngine

NOTHING = None
Value = int | None


class WrongContentError(AssertionError):
    """A step would read something else than what its request computed."""


class FakeMemory(RecordingCopyEngine):
    """Slots of all windows; a slot holds one value per token, or one state in a recurrent window."""

    def __init__(self, tokens_per_block: int) -> None:
        super().__init__()
        self._tokens_per_block = tokens_per_block
        self._slots: dict[tuple[WindowSize, bool, int], list[Value]] = {}

    def slot(self, window: WindowSize, slot: int, primary: bool = True) -> list[Value]:
        """Values of a slot, to be read and written."""
        return self._slots.setdefault((window, primary, slot), [NOTHING] * self._tokens_per_block)

    def copy_block(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        """Move values; what is not copied of the target is lost."""
        assert NULL_INDEX not in (copy.src_index, copy.dst_index), f"a copy without memory: {copy}"
        source, target = (
            self.slot(copy.window_size, get_slot(index), is_primary(index))
            for index in (copy.src_index, copy.dst_index)
        )
        count = len(source) if not copy.num_tokens or copy.window_size == RECURRENT_STATES else copy.num_tokens
        target[:] = source[:count] + [NOTHING] * (len(source) - count)
        return super().copy_block(copy, pools)


def histories(request: LlmRequest, tokens: array[int]) -> list[int]:
    """Value of each position: everything the state of that token depends on."""
    constraint = hash((request.lora_task_id, request.cache_salt))
    extra_ids, mm = request.input_token_extra_ids, request.multimodal_input
    items: dict[int, Any] = {}
    if mm is not None:
        for content, position, length in zip(mm.hashes, mm.positions or (), mm.lengths or (), strict=True):
            items.update((p, (tuple(content), p - position)) for p in range(position, position + length))
    result, value = [], constraint
    for index, token in enumerate(tokens):
        extra = extra_ids[index] if extra_ids is not None and index < len(extra_ids) else None
        value = hash((value, token, extra, items.get(index)))
        result.append(value)
    return result


class FakeEngine:
    """Computes tokens of sequences into a FakeMemory, in every window of a manager."""

    def __init__(self, manager: KVCacheManager, memory: FakeMemory) -> None:
        self._manager = manager
        self._memory = memory
        self._tokens_per_block = manager.tokens_per_block
        self._windows = list(manager.window_sizes_metadata)

    def _rows(self, request: LlmRequest, beam_width: int) -> list[list[list[int]]]:
        """Slots by window, beam and position, as kernels get them."""
        dimensions = self._manager.offset_table_dimensions
        table = np.full((dimensions.num_pools, beam_width, 2, dimensions.max_blocks_per_seq), -7, dtype=np.int32)
        self._manager.copy_block_offsets(table, 0, request.request_id)
        result = []
        for pool, window in enumerate(self._windows):
            stride = 1 if window == RECURRENT_STATES else 2
            result.append([[int(v) // stride if v >= 0 else int(v) for v in row[0]] for row in table[pool]])
        return result

    def compute(self, request: LlmRequest, start: int, end: int, drafts: Sequence[int] = ()) -> None:
        """Compute the tokens [start, end) of every beam; ``drafts`` follow the request's own tokens."""
        sequence = self._manager.get_sequence(request.request_id)
        rows = self._rows(request, sequence.beam_width)
        moved: set[int] = set()
        for beam in range(sequence.beam_width):
            tokens = request.get_tokens(min(beam, request.beam_width - 1)) + array("i", drafts)
            values = histories(request, tokens)
            for index, window in enumerate(self._windows):
                if window == RECURRENT_STATES:
                    self._compute_state(request, values, rows[index][beam], start, end, moved)
                else:
                    self._attend(request, window, values, rows[index][beam], start, end)

    def _attend(
        self, request: LlmRequest, window: WindowSize, values: list[int], row: list[int], start: int, end: int
    ) -> None:
        width = self._tokens_per_block
        for position in range(start, end):
            slot = row[position // width]
            assert slot >= 0, f"token {position} of request {request.request_id} has no memory in window {window}"
            self._memory.slot(window, slot)[position % width] = values[position]
        self.check(request, window, values, row, max(0, start - window + 1), end)

    def check(
        self, request: LlmRequest, window: WindowSize, values: list[int], row: list[int], start: int, end: int
    ) -> None:
        """Raise if any of the positions holds something else than this history."""
        for position in range(start, end):
            slot = row[position // self._tokens_per_block]
            found = self._memory.slot(window, slot)[position % self._tokens_per_block] if slot >= 0 else NOTHING
            if found != values[position]:
                what = "nothing" if found is NOTHING else "another history"
                raise WrongContentError(
                    f"request {request.request_id}, window {window}: token {position} (slot {slot}) holds {what}"
                )

    def _compute_state(
        self, request: LlmRequest, values: list[int], row: list[int], start: int, end: int, moved: set[int]
    ) -> None:
        """The state moves on in the first block with memory at or behind the position; beams may share it."""
        live = next(i for i in range(start // self._tokens_per_block, len(row)) if row[i] >= 0)
        if row[live] in moved:
            return
        moved.add(row[live])
        state = self._memory.slot(RECURRENT_STATES, row[live])
        expected = values[start - 1] if start else NOTHING
        if start and state[0] != expected:
            raise WrongContentError(
                f"request {request.request_id}: the state before token {start} (slot {row[live]}) is not its own"
            )
        assert ceil_div(end, self._tokens_per_block) - 1 <= live, "a chunk may not cross a block with a state"
        state[:] = [values[end - 1]] * len(state)
