"""Admitting sequences: claim what is cached for the whole batch, then copy, onboard and allocate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trtkv.blocks.block_listener import RemovalReason
from trtkv.blocks.generation_request import GenerationRequest, SequenceWindow
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import (
    PLACEHOLDER_BLOCK_ID,
)
from trtkv.errors import check
from trtkv.events.kv_cache_events import KVCacheUpdatedData
from trtkv.keys.key_hash import link_hash
from trtkv.keys.packed_key import PackedKey, num_key_tokens
from trtkv.records.retention_config import DEFAULT_RETENTION_PRIORITY
from trtkv.window_block_manager.claiming import BlockClaimer
from trtkv.window_block_manager.context import WindowContext, WindowPart
from trtkv.window_block_manager.planning import ClaimResult, keeps_state
from trtkv.window_block_manager.sequences import (
    SequenceBlocks,
    add_block_to_all_beams,
    add_block_to_beam,
    write_slots,
)


class BatchSeqStats(NamedTuple):
    """Outcome of one sequence in one window. C++: BatchSeqStats."""

    prepopulated_len: int
    alloc_total_delta: int
    alloc_new_delta: int
    reused_delta: int
    missed_delta: int


class BlockLoader(WindowPart):
    """Places sequences whose blocks are planned. C++: addSequenceBatch, onboardAndAllocateBlocks."""

    hashes_copies = True
    """Whether a copied block takes the hash that follows from its predecessor."""

    def __init__(self, context: WindowContext, claimer: BlockClaimer, sequences: SequenceBlocks) -> None:
        super().__init__(context)
        self._claimer = claimer
        self._sequences = sequences

    def add_sequence_batch(
        self, sequences: Sequence[GenerationRequest], claims: Sequence[ClaimResult], is_enable_block_reuse: bool
    ) -> list[BatchSeqStats]:
        """Claim for all, then place one after the other. C++: WindowBlockManager::addSequenceBatch.

        Running out of blocks on the way raises OutOfBlocksError and leaves what was placed so far; the manager
        checks the room beforehand unless it reproduces the reference.
        """
        window_size = self._settings.window_size
        for sequence, claim in zip(sequences, claims, strict=True):
            self._sequences.allocated_blocks_per_seq[sequence.request_id] = sequence.get_window(window_size)
            if is_enable_block_reuse:
                self._claim(claim)
        results = []
        for sequence, claim in zip(sequences, claims, strict=True):
            before = self._counters.snapshot()
            if self._listener is not None:
                self._listener.on_allocation(sequence.request_id, window_size)
            self._onboard_and_allocate(claim, sequence.get_window(window_size), is_enable_block_reuse)
            prepopulated = self._found_len(sequence, claim)
            sequence.set_current_prepopulated_prompt_len(prepopulated)
            after = self._counters
            results.append(
                BatchSeqStats(
                    prepopulated,
                    after.alloc_total - before.alloc_total,
                    after.alloc_new - before.alloc_new,
                    after.reused - before.reused,
                    after.missed - before.missed,
                )
            )
        return results

    def _found_len(self, sequence: GenerationRequest, claim: ClaimResult) -> int:
        """Tokens found in this window and in all wider ones."""
        return min(claim.prepopulated_len, sequence.current_prepopulated_prompt_len)

    def _reports_priority(self, block: KVCacheBlock, is_held_source: bool) -> bool:
        """Whether listeners are told that a claimed block has another priority."""
        return not is_held_source and self._claimer.is_announced(block)

    def _claim(self, claim: ClaimResult) -> None:
        """Take matched blocks out of their queues, with the request's retention. C++: claimMatchingBlocks."""
        claim_block, retentions = self._policy.claim_block, claim.retentions
        if self._policy.follows_tree:
            self._policy.used(claim.matched)
        if retentions is None:
            matched = claim.matched
            if claim.needs_copy and matched[-1].ref_count:
                matched = matched[:-1]
            self._policy.claim_blocks(matched)
            return
        last = len(claim.matched) - 1
        for index, block in enumerate(claim.matched):
            priority, duration_ms = retentions[index]
            if block.block_id == PLACEHOLDER_BLOCK_ID:
                continue
            is_held_source = index == last and claim.is_partial and block.ref_count > 0
            if (
                priority is not None
                and block.priority != priority
                and self._event_manager is not None
                and self._reports_priority(block, is_held_source)
            ):
                self._event_manager.enqueue_updated_event(
                    KVCacheUpdatedData(block.hash, priority=(block.priority, priority)), self._settings.window_size
                )
            if is_held_source:
                continue
            claim_block(block, priority, duration_ms)

    def _onboard_and_allocate(self, claim: ClaimResult, window: SequenceWindow, is_enable_block_reuse: bool) -> None:
        """Place claimed blocks, then fresh ones. C++: onboardAndAllocateBlocks."""
        for index, block in enumerate(claim.matched):
            self._place_claimed(claim, index, block, window)
        self._allocate_shared(claim, window, is_enable_block_reuse)
        if claim.num_shared_context_blocks < claim.num_context_blocks:
            self._allocate_per_beam(claim, window)
        write_slots(window, claim.beam_width)

    def _place_claimed(self, claim: ClaimResult, index: int, block: KVCacheBlock, window: SequenceWindow) -> None:
        counters = self._counters
        is_partial = claim.is_partial and index == len(claim.matched) - 1
        if block.block_id == PLACEHOLDER_BLOCK_ID:
            add_block_to_all_beams(block, window, claim.beam_width)
            return
        if is_partial and claim.needs_copy:
            block = self._copy_source(claim, index, block)
        elif is_partial:
            check(block.is_leaf, f"block {block.block_id} is not a leaf, so it cannot be taken over")
            self._claimer.remove_held(block, RemovalReason.TAKEN_OVER)
        self._claimer.onboard_block(block, claim.mode, claim.directory)
        add_block_to_all_beams(block, window, claim.beam_width)
        if is_partial and claim.needs_copy and self.hashes_copies:
            block.compute_hash()
        if not block.is_placeholder:
            counters.reused += 1
            counters.partial_reused += is_partial
            counters.full_reused += not is_partial

    def _copy_source(self, claim: ClaimResult, index: int, source: KVCacheBlock) -> KVCacheBlock:
        """A fresh block with the first tokens of a partially matched one, keyed for this request."""
        duration_ms = self._policy.get_duration_ms(source)
        block = self._claimer.get_free_block(source.priority, duration_ms, claim.mode, claim.directory)
        self._claimer.copy_in(source, block, claim.num_partial_tokens, claim.mode, claim.directory)
        if claim.should_release_copy_source and not source.ref_count:
            self._policy.release_block(source)
        if index < len(claim.keys):
            self._set_key(block, claim.keys[index])
        block.compute_hash()
        return block

    def _set_key(self, block: KVCacheBlock, key: PackedKey) -> None:
        block.set_block_key(key, num_key_tokens(key) == self._settings.tokens_per_block)

    def _take_fresh(self, claim: ClaimResult, index: int, want_placeholder: bool = False) -> KVCacheBlock:
        priority, duration_ms = None, None
        if claim.retentions is not None:
            priority, duration_ms = claim.retentions[index]
        if priority is None:
            priority = DEFAULT_RETENTION_PRIORITY
        return self._claimer.get_free_block(priority, duration_ms, claim.mode, claim.directory, want_placeholder)

    def _allocate_shared(self, claim: ClaimResult, window: SequenceWindow, is_enable_block_reuse: bool) -> None:
        keys, beam_width, counters = claim.keys, claim.beam_width, self._counters
        is_recurrent = self._settings.is_recurrent_state
        for index in range(len(claim.matched), claim.num_shared_context_blocks):
            want_placeholder = is_recurrent and not keeps_state(self._settings, claim, index, is_enable_block_reuse)
            block = self._take_fresh(claim, index, want_placeholder)
            add_block_to_all_beams(block, window, beam_width)
            if index < len(keys):
                self._set_key(block, keys[index])
            prev = block.prev_block_in_seq
            block.hash_link = link_hash(block.key, 0 if prev is None else prev.hash_link)
            counters.missed += 1

    def _allocate_per_beam(self, claim: ClaimResult, window: SequenceWindow) -> None:
        """The last block of several beams: one each; only beam 0's is keyed."""
        index = claim.num_shared_context_blocks
        for beam_idx in range(claim.beam_width):
            block = self._take_fresh(claim, index)
            add_block_to_beam(block, window, beam_idx, claim.beam_width)
            if beam_idx == 0 and index < len(claim.keys):
                self._set_key(block, claim.keys[index])
            block.compute_hash()
        self._counters.missed += 1
