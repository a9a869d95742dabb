"""A model that reads and writes fake memory through the manager's offset tables, as a real one would."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.fake_memory import FakeMemory, digests
from trtkv import KVCacheManager, LlmRequest
from trtkv.common import RECURRENT_STATES, WindowSize
from trtkv.records.kv_cache_index import NULL_ENTRY

UNSET = -77


class FakeModel:
    """Runs steps of single requests. Changes the memory only."""

    def __init__(self, manager: KVCacheManager, memory: FakeMemory) -> None:
        self.manager = manager
        self.memory = memory
        self.windows: list[WindowSize] = list(manager.window_sizes_metadata)
        self.num_reads = 0

    def read_slots(self, request: LlmRequest, window: WindowSize) -> list[list[int]]:
        """Slots per beam from the offset table; NULL_ENTRY for positions without memory."""
        dimensions = self.manager.offset_table_dimensions
        table = np.full((dimensions.num_pools, request.beam_width, 2, dimensions.max_blocks_per_seq), UNSET, np.int32)
        self.manager.copy_block_offsets(table, 0, request.request_id)
        pool_idx = self.manager.window_sizes_metadata[window].absolute_pools_offset
        pool = self.manager.block_manager.get_pool(pool_idx)
        stride = pool.kv_factor * (1 if pool.layer_first_layout else pool.num_layers)
        rows = []
        for beam in range(request.beam_width):
            keys, values = table[pool_idx, beam]
            entries = keys[keys != UNSET]
            memory = entries != NULL_ENTRY
            assert not (entries[memory] % stride).any()
            expected = np.where(memory, entries + (pool.kv_factor == 2), NULL_ENTRY)
            assert np.array_equal(values[values != UNSET], expected)
            rows.append([int(entry) // stride if entry != NULL_ENTRY else NULL_ENTRY for entry in entries])
        if not self.manager.compatibility:
            self._check_ids(request, window, rows)
        return rows

    def _check_ids(self, request: LlmRequest, window: WindowSize, rows: list[list[int]]) -> None:
        """The table and the block ids lead to the same slots, except where blocks left the window."""
        num_gone = self.manager.sequences[request.request_id].get_num_front_blocks_removed(window)
        for ids, slots in zip(self.manager.get_cache_block_ids(request.request_id, window), rows, strict=True):
            assert len(ids) == len(slots)
            for block_id, slot in list(zip(ids, slots, strict=True))[num_gone:]:
                block = None if block_id < 0 else self.manager.block_manager.get_block_by_id(block_id, window)
                assert slot == (NULL_ENTRY if block is None else block.memory_pool_block_index), request.request_id

    # -- attention --------------------------------------------------------------------------------

    def attend(self, request: LlmRequest, tokens: Sequence[Sequence[int]], first: int, last: int) -> None:
        """Compute tokens ``first`` to ``last`` (exclusive) of every beam in every attention window."""
        for window in self.windows:
            if window == RECURRENT_STATES:
                continue
            for slots, beam_tokens in zip(self.read_slots(request, window), tokens, strict=True):
                expected = digests(request, beam_tokens)
                self._check_reads(request, window, slots, expected, first)
                for position in range(first, last):
                    content = self._content(window, slots, position)
                    content[position % self.manager.tokens_per_block] = expected[position + 1]

    def _check_reads(
        self, request: LlmRequest, window: WindowSize, slots: Sequence[int], expected: Sequence[int], first: int
    ) -> None:
        """A query at ``first`` sees itself and the window - 1 tokens before it."""
        for position in range(max(0, first + 1 - window), first):
            content = self._content(window, slots, position)
            found = content.get(position % self.manager.tokens_per_block)
            assert found == expected[position + 1], (
                f"request {request.request_id}, window {window}: position {position} reads wrong for token {first}"
            )
            self.num_reads += 1

    def _content(self, window: WindowSize, slots: Sequence[int], position: int) -> dict[int, int]:
        slot = slots[position // self.manager.tokens_per_block]
        assert slot != NULL_ENTRY, f"window {window}: position {position} has no memory"
        return self.memory.slot(window, slot)

    # -- recurrent states -------------------------------------------------------------------------

    def advance(self, request: LlmRequest, tokens: Sequence[Sequence[int]], first: int, last: int) -> None:
        """Bring the state in the block of the step's last token from ``first`` to ``last`` tokens, beam by beam.

        A prompt is computed once, into the blocks of beam 0.
        """
        if RECURRENT_STATES not in self.windows:
            return
        rows = self.read_slots(request, RECURRENT_STATES)
        is_prompt = last <= request.prompt_len
        has_reuse = self.manager.enable_block_reuse
        index = (last if has_reuse or not is_prompt else request.prompt_len) - 1
        for slots, beam_tokens in zip(rows[:1] if is_prompt else rows, tokens, strict=False):
            slot = slots[index // self.manager.tokens_per_block]
            assert slot != NULL_ENTRY, f"request {request.request_id}: no state at token {last}"
            expected = digests(request, beam_tokens)
            if first:
                assert self.memory.slot(RECURRENT_STATES, slot).get(0) == expected[first], (
                    f"request {request.request_id}: the state in slot {slot} is not that after {first} tokens"
                )
                self.num_reads += 1
            self.memory.slot(RECURRENT_STATES, slot)[0] = expected[last]
