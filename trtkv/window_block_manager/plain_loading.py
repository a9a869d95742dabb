"""PlainBlockLoader: admission into a full-attention window; the hot loops of a replay."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from trtkv.blocks.generation_request import SequenceWindow
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import KeyForm, KvCacheTransferMode
from trtkv.keys.key_hash import NO_HASH, HashLink
from trtkv.records.kv_cache_index import SECONDARY_POOL_FLAG
from trtkv.window_block_manager.loading import BlockLoader
from trtkv.window_block_manager.planning import ClaimResult
from trtkv.window_block_manager.sequences import write_slots


class PlainBlockLoader(BlockLoader):
    """Places what ``BlockLoader`` places; for one beam whole matches and fresh blocks go in batches."""

    def _onboard_and_allocate(self, claim: ClaimResult, window: SequenceWindow, is_enable_block_reuse: bool) -> None:
        if claim.beam_width > 1:
            super()._onboard_and_allocate(claim, window, is_enable_block_reuse)
            return
        num_full = self._num_full_primary_matches(claim)
        self._place_full_matches(claim.matched[:num_full], window)
        if num_full:
            window.num_stored = num_full
            window.num_shared_moves = self._sequences.num_shared_moves
            window.last_stored_key = claim.keys[num_full - 1]
            # Matched, so it is in the tree.
            window.last_node_key = claim.matched[num_full - 1].lookup_node.key  # type: ignore[union-attr]
        for index in range(num_full, len(claim.matched)):
            self._place_claimed(claim, index, claim.matched[index], window)
        is_default = claim.retentions is None and claim.mode is KvCacheTransferMode.DRAM
        if is_default and len(claim.keys) >= claim.num_context_blocks:
            self._allocate_default(claim, window)
        else:
            self._allocate_shared(claim, window, is_enable_block_reuse)
        if self._settings.has_one_tier:
            window.slots[0] = array("i", window.block_ids[0])  # slots never move: each block's is its id
        else:
            write_slots(window, claim.beam_width)

    def _num_full_primary_matches(self, claim: ClaimResult) -> int:
        """Leading matches that are whole and need no onboarding."""
        num_full = len(claim.matched) - claim.is_partial
        if not self._settings.has_one_tier:
            for index, block in enumerate(claim.matched[:num_full]):
                if block.memory_pool_block_index >= SECONDARY_POOL_FLAG:
                    return index
        return num_full

    def _place_full_matches(self, blocks: Sequence[KVCacheBlock], window: SequenceWindow) -> None:
        """``_place_claimed`` for whole primary blocks and one beam."""
        prev = None
        for block in blocks:
            block.ref_count += 1
            block.prev_block_in_seq = prev
            prev = block
        window.held += blocks
        window.block_ids[0] += [block.block_id for block in blocks]
        self._counters.reused += len(blocks)
        self._counters.full_reused += len(blocks)

    def _allocate_default(self, claim: ClaimResult, window: SequenceWindow) -> None:
        """``_allocate_shared`` for one beam and the default retention."""
        first = len(window.held)
        count = claim.num_context_blocks - first
        keys = claim.keys[first:]
        blocks = self._claimer.get_free_blocks(count)
        prev = window.held[-1] if first else None
        has_hashes = self._settings.key_form is not KeyForm.DIGESTS
        link: HashLink | int = NO_HASH if not has_hashes else 0 if prev is None else prev.hash_link
        for block, key in zip(blocks, keys, strict=True):
            block.ref_count = 1
            block.prev_block_in_seq = prev
            block.key = key
            block.is_full = True
            if has_hashes:
                link = (key, link)
            block.hash_link = link
            prev = block
        if prev is not None and count:
            self._set_key(prev, keys[-1])
        window.held += blocks
        window.block_ids[0] += [block.block_id for block in blocks]
        self._counters.missed += count
