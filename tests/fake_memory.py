"""Memory that remembers what was computed: a wrong block shows by its content, not by its id.

Each computed token leaves a digest of everything that its state depends on: all tokens up to it, adapter, salt, extra
ids and images. A recurrent state is the digest of the last token it has seen.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import RECURRENT_STATES, WindowSize, ceil_div
from trtkv.keys.block_key import BlockKey
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool
from trtkv.records.kv_cache_index import NULL_INDEX, KVCacheIndex
from trtkv.records.llm_request import LlmRequest
from trtkv.transfers.copy_engine import BlockCopy, RecordingCopyEngine


class WrongContentError(AssertionError):
    """A step would read something else than what its request computed."""


class FakeMemory(RecordingCopyEngine):
    """What the slots of all windows hold; moves it when the manager asks, in the order in which it asks."""

    def __init__(self) -> None:
        super().__init__()
        self.slots: dict[tuple[WindowSize, KVCacheIndex], dict[int, int]] = {}
        """Place in the block -> digest; a recurrent state is at place 0."""
        self.num_computed: dict[int, int] = {}
        """Tokens computed by ``write``, by request."""
        self.check_copy: Callable[[BlockCopy], None] = lambda copy: None
        """Called before each transfer."""

    def slot(self, window: WindowSize, index: KVCacheIndex) -> dict[int, int]:
        """Content of a slot, to be read and written."""
        return self.slots.setdefault((window, index), {})

    def copy_block(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        """Move digests; what is not copied of the target is lost."""
        self.check_copy(copy)
        assert NULL_INDEX not in (copy.src_index, copy.dst_index), f"a copy without memory: {copy}"
        assert copy.window_size != RECURRENT_STATES or copy.num_tokens in (0, pools[0].tokens_per_block)
        source = self.slot(copy.window_size, copy.src_index)
        limit = copy.num_tokens or pools[0].tokens_per_block
        self.slots[copy.window_size, copy.dst_index] = {place: v for place, v in source.items() if place < limit}
        return super().copy_block(copy, pools)

    def write(self, manager: KVCacheManager, request: LlmRequest, first: int, end: int) -> None:
        """Compute tokens [first, end) of beam 0 in every attention window, as far as its blocks are there."""
        self.num_computed[request.request_id] = end
        values = digests(request)
        for window, held in _attention_windows(manager, request):
            for position in range(first, end):
                block = held[position // manager.tokens_per_block]
                if not block.is_placeholder:
                    content = self.slot(window, block.memory_pool_block_index)
                    content[position % manager.tokens_per_block] = values[position + 1]

    def check_sequence(self, manager: KVCacheManager, request: LlmRequest, num_tokens: int) -> None:
        """The first tokens of beam 0 are where its blocks are, as far as they are in a window."""
        values = digests(request)
        for window, held in _attention_windows(manager, request):
            for position in range(max(0, num_tokens + 1 - window), num_tokens):
                block = held[position // manager.tokens_per_block]
                where = f"request {request.request_id}, window {window}, token {position}, block {block.block_id}"
                assert not block.is_placeholder, where
                content = self.slot(window, block.memory_pool_block_index)
                assert content.get(position % manager.tokens_per_block) == values[position + 1], where

    def check_tree(self, manager: KVCacheManager, *, with_states: bool = True) -> int:
        """Every cached block holds what its key, and the keys above it, say; returns how many were looked at.

        Keys do not say where an image ends, so blocks with one and those below them are left out.
        """
        count = 0
        for window in manager.block_manager.window_block_managers:
            is_recurrent = window == RECURRENT_STATES
            for path, block in _cached_paths(manager, window):
                if block.is_placeholder or any(key.extra_keys for key in path) or (is_recurrent and not with_states):
                    continue
                count += 1
                content = self.slot(window, block.memory_pool_block_index)
                expected = (
                    _digests_of_path(path)[-1:] if is_recurrent else _digests_of_path(path)[-path[-1].num_tokens :]
                )
                found = [content.get(place) for place in range(len(expected))]
                assert found == expected, f"window {window}, block {block.block_id}, cached for {path}"
        return count


def _attention_windows(manager: KVCacheManager, request: LlmRequest) -> Iterator[tuple[WindowSize, list[KVCacheBlock]]]:
    sequence = manager.get_sequence(request.request_id)
    for window in manager.window_sizes_metadata:
        if window != RECURRENT_STATES:
            yield window, sequence.get_window(window).held


# -- digests ----------------------------------------------------------------------------------------


def digests(request: LlmRequest, tokens: Sequence[int] | None = None) -> list[int]:
    """Entry n is the digest of the first n tokens, by default those of beam 0."""
    tokens = request.get_tokens(0) if tokens is None else tokens
    extra_ids, mm = request.input_token_extra_ids, request.multimodal_input
    items: dict[int, Any] = {}
    if mm is not None:
        for content, position, length in zip(mm.hashes, mm.positions or (), mm.lengths or (), strict=True):
            items.update((p, (tuple(content), p - position)) for p in range(position, position + length))
    result = [hash((request.lora_task_id, request.cache_salt))]
    for index, token in enumerate(tokens):
        extra = None if extra_ids is None else int(extra_ids[index]) if index < len(extra_ids) else 0
        result.append(hash((result[-1], token, extra, items.get(index))))
    return result


def _digests_of_path(path: Sequence[BlockKey]) -> list[int]:
    """The same, from the keys of the blocks."""
    result = [hash((path[0].lora_task_id, path[0].cache_salt))]
    for key in path:
        for token, extra in zip(key.tokens, key.extra_ids or [None] * key.num_tokens, strict=True):
            result.append(hash((result[-1], token, extra, None)))
    return result


# -- the tree ---------------------------------------------------------------------------------------


def _cached_paths(manager: KVCacheManager, window: WindowSize) -> Iterator[tuple[list[BlockKey], KVCacheBlock]]:
    """(keys from the root to the block, the block) for all blocks in the tree of one window."""
    channel = manager.block_manager.window_block_managers[window].settings.channel
    stack = [([BlockKey.unpack(node.key)], node) for node in manager.block_manager.lookup_tree.root.ordered_children()]
    while stack:
        path, node = stack.pop()
        stack.extend(([*path, BlockKey.unpack(child.key)], child) for child in node.ordered_children())
        block = node.get_value(channel)
        if block is not None:
            yield path, block


def cached_blocks(manager: KVCacheManager, window: WindowSize) -> Iterator[tuple[list[int], KVCacheBlock]]:
    """(all tokens up to the end of the block, the block) for all blocks in the tree of one window."""
    for path, block in _cached_paths(manager, window):
        yield [token for key in path for token in key.tokens], block


# -- computing through the offset table ---------------------------------------------------------------


class FakeEngine:
    """Computes tokens of sequences into a FakeMemory, in every window of a manager, by the offset table of kernels."""

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
            values = digests(request, tokens)
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
            self._memory.slot(window, slot)[position % width] = values[position + 1]
        for position in range(max(0, start - window + 1), end):
            slot = row[position // width]
            found = self._memory.slot(window, slot).get(position % width) if slot >= 0 else None
            if found != values[position + 1]:
                what = "nothing" if found is None else "another history"
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
        if start and state.get(0) != values[start]:
            raise WrongContentError(
                f"request {request.request_id}: the state before token {start} (slot {row[live]}) is not its own"
            )
        assert ceil_div(end, self._tokens_per_block) - 1 <= live, "a chunk may not cross a block with a state"
        state[0] = values[end]
