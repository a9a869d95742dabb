"""Admitting sequences: claim what is cached for the whole batch, then copy, onboard and allocate."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from trtkv.blocks.block_listener import BlockListener, RemovalReason
from trtkv.blocks.generation_request import GenerationRequest, SequenceWindow
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import (
    PLACEHOLDER_BLOCK_ID,
    PLACEHOLDER_LEVEL,
    PRIMARY_LEVEL,
    CacheType,
    KeyForm,
    KvCacheTransferMode,
    ceil_div,
)
from trtkv.errors import InvalidInputError, OutOfBlocksError, check
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.events.kv_cache_events import KVCacheUpdatedData
from trtkv.eviction.eviction_policy import WindowEvictionPolicy
from trtkv.keys.key_builder import build_block_keys, build_encoder_keys, make_empty_key
from trtkv.keys.key_hash import NO_HASH, HashLink, link_hash
from trtkv.keys.packed_key import PackedKey, num_key_tokens
from trtkv.records.kv_cache_index import SECONDARY_POOL_FLAG
from trtkv.records.llm_request import LlmRequest
from trtkv.records.retention_config import DEFAULT_RETENTION_PRIORITY, RetentionPriorityAndDuration
from trtkv.transfers.kv_cache_transfer_manager import KVCacheTransferManager
from trtkv.window_block_manager.claiming import BlockClaimer
from trtkv.window_block_manager.counters import BlockCounters
from trtkv.window_block_manager.pools import WindowPools
from trtkv.window_block_manager.reuse_matching import ReuseMatcher, ReuseMatches
from trtkv.window_block_manager.sequences import (
    SequenceBlocks,
    add_block_to_all_beams,
    add_block_to_beam,
    write_slots,
)
from trtkv.window_block_manager.settings import WindowSettings


class BatchSeqStats(NamedTuple):
    """Outcome of one sequence in one window. C++: BatchSeqStats."""

    prepopulated_len: int
    alloc_total_delta: int
    alloc_new_delta: int
    reused_delta: int
    missed_delta: int


class ClaimResult:
    """One request on its way into one window. C++: WindowBlockManager::ClaimResult."""

    __slots__ = (
        "beam_width",
        "depends_on_length",
        "directory",
        "input_length",
        "is_partial",
        "keys",
        "matched",
        "mode",
        "needs_copy",
        "num_context_blocks",
        "num_partial_tokens",
        "num_shared_context_blocks",
        "prepopulated_len",
        "request",
        "retentions",
        "should_release_copy_source",
        "total_matched_tokens",
    )

    def __init__(self, request: LlmRequest, input_length: int, beam_width: int, num_context_blocks: int) -> None:
        self.request = request
        self.input_length = input_length
        self.beam_width = beam_width
        self.num_context_blocks = num_context_blocks
        self.num_shared_context_blocks = num_context_blocks
        self.keys: list[PackedKey] = []
        self.retentions: list[RetentionPriorityAndDuration] | None = None
        self.mode = KvCacheTransferMode.DRAM
        self.directory = ""
        self.matched: list[KVCacheBlock] = []
        self.is_partial = False
        self.num_partial_tokens = 0
        self.needs_copy = False
        self.should_release_copy_source = False
        self.total_matched_tokens = 0
        self.depends_on_length = False
        """Whether the match is of no use when fewer than ``total_matched_tokens`` are taken from it."""
        self.prepopulated_len = 0


class BlockLoader:
    """Admission into one window. C++: addSequenceBatch, claimMatchingBlocks, onboardAndAllocateBlocks."""

    ends_at_last_state = True
    """Whether placeholders after the last recurrent state found are left for states of the request's own."""
    allocates_in_batches = True
    """Whether the rest of a prompt may be taken in one go."""
    hashes_copies = True
    """Whether a copied block takes the hash that follows from its predecessor."""

    def __init__(
        self,
        settings: WindowSettings,
        pools: WindowPools,
        matcher: ReuseMatcher,
        claimer: BlockClaimer,
        policy: WindowEvictionPolicy,
        sequences: SequenceBlocks,
        transfer_manager: KVCacheTransferManager,
        event_manager: KVCacheEventManager | None,
        counters: BlockCounters,
        listener: BlockListener | None = None,
    ) -> None:
        self._settings = settings
        self._pools = pools
        self._matcher = matcher
        self._claimer = claimer
        self._policy = policy
        self._sequences = sequences
        self._transfer_manager = transfer_manager
        self._event_manager = event_manager
        self._counters = counters
        self._listener = listener

    # -- planning: reads only -----------------------------------------------------------------------

    def plan_batch(
        self,
        requests: Sequence[LlmRequest],
        input_lengths: Sequence[int],
        beam_widths: Sequence[int],
        is_enable_block_reuse: bool,
        max_matched_tokens: Sequence[int],
    ) -> list[ClaimResult]:
        """What each request of a batch would take from the cache, and who copies what. Changes nothing."""
        claims = [
            self.plan(request, input_length, beam_width, is_enable_block_reuse, limit)
            for request, input_length, beam_width, limit in zip(
                requests, input_lengths, beam_widths, max_matched_tokens, strict=True
            )
        ]
        if is_enable_block_reuse:
            self._resolve_partial_claims(claims)
        return claims

    def plan(
        self,
        request: LlmRequest,
        input_length: int,
        beam_width: int,
        is_enable_block_reuse: bool,
        max_matched_tokens: int,
    ) -> ClaimResult:
        """Keys, retention and cached blocks of one request. Changes nothing."""
        settings = self._settings
        tokens_per_block = settings.tokens_per_block
        result = ClaimResult(request, input_length, beam_width, ceil_div(input_length, tokens_per_block))
        if settings.is_recurrent_state and is_enable_block_reuse and input_length != request.prompt_len:
            raise InvalidInputError(
                f"input length {input_length} of request {request.request_id} differs from its prompt of "
                f"{request.prompt_len} tokens; recurrent states need the whole prompt"
            )
        result.keys = self._context_keys(request, input_length)
        config = request.kv_cache_retention_config
        if config is not None:
            if config.token_range_retention_configs:
                result.retentions = config.get_per_block_retention_priority_duration(tokens_per_block, input_length)
            if config.directory or config.transfer_mode is KvCacheTransferMode.DRAM:
                result.mode, result.directory = config.transfer_mode, config.directory
        if beam_width > 1 and settings.cache_type is not CacheType.CROSS and input_length % tokens_per_block:
            result.num_shared_context_blocks -= 1
        if is_enable_block_reuse:
            matches = self._matcher.find_reusable_block_matches(
                result.keys if result.keys and num_key_tokens(result.keys[-1]) else result.keys[:-1],
                settings.enable_partial_reuse,
                settings.copy_on_partial_reuse,
                max_matched_tokens,
            )
            self._take_matches(result, matches)
        result.prepopulated_len = self._prepopulated_len(result)
        return result

    def _context_keys(self, request: LlmRequest, input_length: int) -> list[PackedKey]:
        """Keys of all tokens but the last; an empty one if the last token stands alone in its block."""
        tokens_per_block = self._settings.tokens_per_block
        if self._settings.cache_type is CacheType.CROSS:
            if request.encoder_tokens is None:
                return []
            keys = self._encoder_keys(request, request.encoder_tokens, input_length - 1)
        else:
            keys = build_block_keys(request, tokens_per_block, input_length - 1, True, self._settings.key_form)
        if input_length % tokens_per_block == 1:
            keys.append(make_empty_key(request, input_length - 1))
        return keys

    def _encoder_keys(self, request: LlmRequest, tokens: array[int], num_tokens: int) -> list[PackedKey]:
        """Keys of what a cross cache holds."""
        return build_encoder_keys(request, tokens, self._settings.tokens_per_block, num_tokens, True)

    def _take_matches(self, result: ClaimResult, matches: ReuseMatches) -> None:
        if self._settings.is_recurrent_state and self.ends_at_last_state:
            # What lies behind the last state is no use; the request may want states of its own there.
            while matches.blocks and matches.blocks[-1].is_placeholder:
                matches.blocks.pop()
            matches.total_matched_tokens = len(matches.blocks) * self._settings.tokens_per_block
            result.depends_on_length = True
        elif self._settings.is_swa:
            result.depends_on_length = any(block.is_placeholder for block in matches.blocks)
        result.total_matched_tokens = matches.total_matched_tokens
        result.matched = matches.blocks
        if len(matches.blocks) > result.num_shared_context_blocks:
            result.matched = matches.blocks[: result.num_shared_context_blocks]
        elif matches.is_partial:
            result.is_partial = True
            result.num_partial_tokens = matches.num_partial_tokens
            check(not self._settings.is_recurrent_state, "a recurrent state was matched in part")

    def _prepopulated_len(self, result: ClaimResult) -> int:
        """Tokens of the prompt that need not be computed, by this window alone."""
        tokens_per_block = self._settings.tokens_per_block
        if self._settings.is_recurrent_state:
            real = [index for index, block in enumerate(result.matched) if not block.is_placeholder]
            return (real[-1] + 1) * tokens_per_block if real else 0
        return min(result.total_matched_tokens, result.num_shared_context_blocks * tokens_per_block)

    def _resolve_partial_claims(self, claims: Sequence[ClaimResult]) -> None:
        """Decide who of a batch copies a partially matched block, who takes it over, and who releases the source.

        An unreferenced leaf is taken over by the last request that matches it in part, unless one matches it
        fully; all others copy. The last copier of an unreferenced inner block releases it after its copy.
        References count as of before the batch. Changes the claims only.
        """
        partial_owner: dict[KVCacheBlock, ClaimResult] = {}
        fully_matched: set[KVCacheBlock] = set()
        for claim in claims:
            num_full = len(claim.matched) - claim.is_partial
            if len(claims) > 1:
                if partial_owner:
                    self._withdraw_partial_owners(claim.matched[:num_full], partial_owner, fully_matched)
                fully_matched.update(claim.matched[:num_full])
            if not claim.is_partial:
                continue
            block = claim.matched[-1]
            owner = partial_owner.get(block)
            if block._ref_count or not block.is_leaf:
                claim.needs_copy = True
                if block._ref_count:
                    continue
                claim.should_release_copy_source = block not in fully_matched
                if owner is not None:
                    owner.should_release_copy_source = False
                partial_owner[block] = claim
            elif block in fully_matched:
                claim.needs_copy = True
            else:
                if owner is not None:
                    owner.needs_copy = True
                partial_owner[block] = claim

    @staticmethod
    def _withdraw_partial_owners(
        full: Sequence[KVCacheBlock], partial_owner: dict[KVCacheBlock, ClaimResult], fully_matched: set[KVCacheBlock]
    ) -> None:
        for block in full:
            owner = partial_owner.get(block)
            if owner is not None and block not in fully_matched:
                owner.needs_copy = True
                owner.should_release_copy_source = False

    def check_room(self, claims: Sequence[ClaimResult], is_enable_block_reuse: bool) -> None:
        """Raise OutOfBlocksError if the batch does not fit; counts exactly what admission would take, step by step."""
        free = self._policy.get_num_free_blocks(PRIMARY_LEVEL)
        placeholders = self._policy.get_num_free_blocks(PLACEHOLDER_LEVEL)
        bound = sum(claim.num_context_blocks * claim.beam_width + 1 for claim in claims)
        if bound <= free and (not self._settings.is_recurrent_state or bound <= placeholders):
            return
        claimed: set[KVCacheBlock] = set()
        onboarded: set[KVCacheBlock] = set()
        for claim in claims:
            for index, block in enumerate(claim.matched):
                is_held_source = claim.needs_copy and index == len(claim.matched) - 1 and block._ref_count
                if self._policy.is_free(block) and block not in claimed and not is_held_source:
                    claimed.add(block)
                    free -= block.is_primary
                    placeholders -= block.is_placeholder
        for claim in claims:
            free = self._room_after(claim, free, onboarded, is_enable_block_reuse)
            placeholders -= self._num_fresh_placeholders(claim, is_enable_block_reuse)
            if placeholders < 0:
                self._raise_out_of_blocks(claim, "placeholders")

    def _room_after(
        self, claim: ClaimResult, free: int, onboarded: set[KVCacheBlock], is_enable_block_reuse: bool
    ) -> int:
        for index, block in enumerate(claim.matched):
            if claim.needs_copy and index == len(claim.matched) - 1:
                free -= 1
                if free < 0:
                    self._raise_out_of_blocks(claim, "blocks")
                free += claim.should_release_copy_source and (block.is_primary or block in onboarded)
            elif not block.is_placeholder and not block.is_primary and block not in onboarded:
                onboarded.add(block)
                free -= 1
            if free < 0:
                self._raise_out_of_blocks(claim, "blocks")
        free -= claim.num_shared_context_blocks - len(claim.matched)
        free += self._num_fresh_placeholders(claim, is_enable_block_reuse)
        free -= (claim.num_context_blocks - claim.num_shared_context_blocks) * claim.beam_width
        if free < 0:
            self._raise_out_of_blocks(claim, "blocks")
        return free

    def _num_fresh_placeholders(self, claim: ClaimResult, is_enable_block_reuse: bool) -> int:
        if not self._settings.is_recurrent_state:
            return 0
        return sum(
            not self._keeps_state(claim, index, is_enable_block_reuse)
            for index in range(len(claim.matched), claim.num_shared_context_blocks)
        )

    def _raise_out_of_blocks(self, claim: ClaimResult, what: str) -> None:
        free = self._policy.get_num_free_blocks(PRIMARY_LEVEL)
        raise OutOfBlocksError(
            f"window {self._settings.window_size} has too few free {what} ({free} blocks) for the "
            f"{claim.num_context_blocks} context blocks of request {claim.request.request_id} with "
            f"{claim.beam_width} beam(s) in this batch; admit fewer requests or enlarge the pool"
        )

    # -- claiming and allocating ----------------------------------------------------------------------

    def add_sequence_batch(
        self, sequences: Sequence[GenerationRequest], claims: Sequence[ClaimResult], is_enable_block_reuse: bool
    ) -> list[BatchSeqStats]:
        """Claim for all, then place one after the other. C++: WindowBlockManager::addSequenceBatch.

        Running out of blocks on the way raises OutOfBlocksError and leaves what was placed so far; the manager
        checks the room beforehand unless it reproduces the reference.
        """
        window_size = self._settings.window_size
        for sequence in sequences:
            self._sequences.allocated_blocks_per_seq[sequence.request_id] = sequence.get_window(window_size)
        if is_enable_block_reuse:
            for claim in claims:
                self._claim(claim)
        results = []
        for sequence, claim in zip(sequences, claims, strict=True):
            before = self._counters.snapshot()
            if self._listener is not None:
                self._listener.on_allocation(sequence.request_id, window_size)
            self._onboard_and_allocate(sequence, claim, is_enable_block_reuse)
            prepopulated = self._found_len(sequence, claim)
            sequence.set_current_prepopulated_prompt_len(prepopulated)
            self._counters.reused_tokens += prepopulated
            self._counters.total_input_tokens += claim.input_length
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
            if claim.needs_copy and matched[-1]._ref_count:
                matched = matched[:-1]
            self._policy.claim_blocks(matched)
            return
        last = len(claim.matched) - 1
        for index, block in enumerate(claim.matched):
            priority, duration_ms = retentions[index]
            if block._block_id == PLACEHOLDER_BLOCK_ID:
                continue
            is_held_source = index == last and claim.is_partial and block._ref_count > 0
            if (
                priority is not None
                and block._priority != priority
                and self._event_manager is not None
                and self._reports_priority(block, is_held_source)
            ):
                self._event_manager.enqueue_updated_event(
                    KVCacheUpdatedData(block.hash, priority=(block._priority, priority)), self._settings.window_size
                )
            if is_held_source:
                continue
            claim_block(block, priority, duration_ms)

    def _onboard_and_allocate(
        self, sequence: GenerationRequest, claim: ClaimResult, is_enable_block_reuse: bool
    ) -> None:
        """Place claimed blocks, then fresh ones. C++: onboardAndAllocateBlocks."""
        window = sequence.get_window(self._settings.window_size)
        is_plain = claim.beam_width == 1 and not (self._settings.is_recurrent_state or self._settings.is_swa)
        num_full = 0
        if is_plain:
            num_full = self._num_full_primary_matches(claim)
            self._place_full_matches(claim.matched[:num_full], window)
            if num_full:
                window.num_stored = num_full
                window.num_shared_moves = self._sequences.num_shared_moves
                window.last_stored_key = claim.keys[num_full - 1]
                # Matched, so it is in the tree.
                window.last_node_key = claim.matched[num_full - 1]._lookup_node.key  # type: ignore[union-attr]
        for index in range(num_full, len(claim.matched)):
            self._place_claimed(claim, index, claim.matched[index], window)
        if is_plain and claim.retentions is None and self.allocates_in_batches:
            self._allocate_plain(claim, window)
        else:
            self._allocate_shared(claim, window, is_enable_block_reuse)
        if claim.num_shared_context_blocks < claim.num_context_blocks:
            self._allocate_per_beam(claim, window)
        if is_plain and self._settings.has_one_tier:
            window.slots[0] = array("i", window.block_ids[0])  # with one level slots never move: each block's is its id
        else:
            write_slots(window, claim.beam_width)

    def _num_full_primary_matches(self, claim: ClaimResult) -> int:
        """Leading matches that are whole and need no onboarding."""
        num_full = len(claim.matched) - claim.is_partial
        if not self._settings.has_one_tier:
            for index, block in enumerate(claim.matched[:num_full]):
                if block._memory_pool_block_index >= SECONDARY_POOL_FLAG:
                    return index
        return num_full

    def _place_full_matches(self, blocks: Sequence[KVCacheBlock], window: SequenceWindow) -> None:
        """``_place_claimed`` for whole primary blocks and one beam; a hot loop."""
        prev = None
        for block in blocks:
            block._ref_count += 1
            block._prev_block_in_seq = prev
            prev = block
        window.held += blocks
        window.block_ids[0] += [block._block_id for block in blocks]
        self._counters.reused += len(blocks)
        self._counters.full_reused += len(blocks)

    def _allocate_plain(self, claim: ClaimResult, window: SequenceWindow) -> None:
        """``_allocate_shared`` for one beam and the default retention of an attention window; a hot loop."""
        first = len(window.held)
        count = claim.num_context_blocks - first
        keys = claim.keys[first:]
        if len(keys) < count or claim.mode is not KvCacheTransferMode.DRAM:
            self._allocate_shared(claim, window, True)
            return
        blocks = self._claimer.get_free_blocks(count)
        prev = window.held[-1] if first else None
        has_hashes = self._settings.key_form is not KeyForm.DIGESTS
        link: HashLink | int = NO_HASH if not has_hashes else 0 if prev is None else prev._hash
        for block, key in zip(blocks, keys, strict=True):
            block._ref_count = 1
            block._prev_block_in_seq = prev
            block.key = key
            block._is_full = True
            if has_hashes:
                link = (key, link)
            block._hash = link
            prev = block
        if prev is not None and count:
            self._set_key(prev, keys[-1])
        window.held += blocks
        window.block_ids[0] += [block._block_id for block in blocks]
        self._counters.missed += count

    def _place_claimed(self, claim: ClaimResult, index: int, block: KVCacheBlock, window: SequenceWindow) -> None:
        counters = self._counters
        is_partial = claim.is_partial and index == len(claim.matched) - 1
        if block._block_id == PLACEHOLDER_BLOCK_ID:
            add_block_to_all_beams(block, window, claim.beam_width)
            return
        if is_partial and claim.needs_copy:
            block = self._copy_source(claim, index, block)
        elif is_partial:
            check(block.is_leaf, f"block {block._block_id} is no leaf and cannot be taken over")
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
        block = self._claimer.get_free_block(source._priority, duration_ms, claim.mode, claim.directory)
        try:
            self._transfer_manager.onboard(
                source, block, self._pools.pools, claim.num_partial_tokens, claim.mode, claim.directory
            )
        except Exception:
            self._claimer.give_back((block,))
            raise
        if claim.should_release_copy_source and not source._ref_count:
            self._policy.release_block(source)
        if index < len(claim.keys):
            self._set_key(block, claim.keys[index])
        block.compute_hash()
        return block

    def _set_key(self, block: KVCacheBlock, key: PackedKey) -> None:
        block.set_block_key(key, num_key_tokens(key) == self._settings.tokens_per_block)

    def _keeps_state(self, claim: ClaimResult, index: int, is_enable_block_reuse: bool) -> bool:
        """Whether a context position of a recurrent window has memory."""
        metadata = self._settings.linear_attention_metadata
        if metadata is None:
            return True
        if not is_enable_block_reuse:
            return index == claim.num_context_blocks - 1
        tokens_per_block = self._settings.tokens_per_block
        return metadata.should_allocate_recurrent_states(
            (index + 1) * tokens_per_block, claim.request.prompt_len, tokens_per_block
        )

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
            want_placeholder = is_recurrent and not self._keeps_state(claim, index, is_enable_block_reuse)
            block = self._take_fresh(claim, index, want_placeholder)
            add_block_to_all_beams(block, window, beam_width)
            if index < len(keys):
                self._set_key(block, keys[index])
            prev = block._prev_block_in_seq
            block._hash = link_hash(block.key, 0 if prev is None else prev._hash)
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
