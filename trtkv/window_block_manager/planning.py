"""ClaimPlanner: what a batch of prompts would take from one window. Nothing here changes anything."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import PLACEHOLDER_LEVEL, PRIMARY_LEVEL, CacheType, KvCacheTransferMode, ceil_div
from trtkv.errors import InvalidInputError, OutOfBlocksError, check
from trtkv.keys.key_builder import build_block_keys, build_encoder_keys, make_empty_key
from trtkv.keys.packed_key import PackedKey, num_key_tokens
from trtkv.records.llm_request import LlmRequest
from trtkv.records.retention_config import RetentionPriorityAndDuration
from trtkv.window_block_manager.context import WindowContext, WindowPart
from trtkv.window_block_manager.reuse_matching import ReuseMatcher, ReuseMatches
from trtkv.window_block_manager.settings import WindowSettings


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


class ClaimPlanner(WindowPart):
    """Looks up keys, cached blocks and room of prompts. C++: claimMatchingBlocks, buildClaimResultMetadata."""

    ends_at_last_state = True
    """Whether placeholders after the last recurrent state found are left for states of the request's own."""

    def __init__(self, context: WindowContext, matcher: ReuseMatcher) -> None:
        super().__init__(context)
        self._matcher = matcher

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
            # What lies after the last state is no use; the request may want states of its own there.
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
            self._check_partial()

    def _check_partial(self) -> None:
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
            if block.ref_count or not block.is_leaf:
                claim.needs_copy = True
                if block.ref_count:
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
                is_held_source = claim.needs_copy and index == len(claim.matched) - 1 and block.ref_count
                if self._policy.is_free(block) and block not in claimed and not is_held_source:
                    claimed.add(block)
                    free -= block.is_primary
                    placeholders -= block.is_placeholder
        for claim in claims:
            free = self._room_after(claim, free, onboarded, is_enable_block_reuse)
            placeholders -= self._num_fresh_placeholders(claim, is_enable_block_reuse)
            if placeholders < 0:
                self._raise_out_of_blocks(claim, "placeholders")

    def find_copy_to_give_up(self, claims: Sequence[ClaimResult], is_enable_block_reuse: bool) -> int | None:
        """The last claim whose partial match is not to be used; None for a batch that fits as it is.

        It would copy against the settings, or take a block that is missing. Raises OutOfBlocksError if giving matches
        up does not help.
        """
        if not self._settings.copy_on_partial_reuse:
            forbidden = [index for index, claim in enumerate(claims) if claim.needs_copy]
            if forbidden:
                return forbidden[-1]
        try:
            self.check_room(claims, is_enable_block_reuse)
        except OutOfBlocksError:
            index = self._find_dispensable_copy(claims)
            if index is None:
                raise
            return index
        return None

    def _find_dispensable_copy(self, claims: Sequence[ClaimResult]) -> int | None:
        """The last claim that copies from a free block which no claim takes as a whole; None if there is none."""
        fully_matched = {block for claim in claims for block in claim.matched[: len(claim.matched) - claim.is_partial]}
        for index in reversed(range(len(claims))):
            claim = claims[index]
            if claim.needs_copy:
                source = claim.matched[-1]
                if source.is_primary and self._policy.is_free(source) and source not in fully_matched:
                    return index
        return None

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
            not keeps_state(self._settings, claim, index, is_enable_block_reuse)
            for index in range(len(claim.matched), claim.num_shared_context_blocks)
        )

    def _raise_out_of_blocks(self, claim: ClaimResult, what: str) -> None:
        free = self._policy.get_num_free_blocks(PRIMARY_LEVEL)
        raise OutOfBlocksError(
            f"window {self._settings.window_size} has too few free {what} ({free} blocks) for the "
            f"{claim.num_context_blocks} context blocks of request {claim.request.request_id} with "
            f"{claim.beam_width} beam(s) in this batch; admit fewer requests or enlarge the pool"
        )


def keeps_state(settings: WindowSettings, claim: ClaimResult, index: int, is_enable_block_reuse: bool) -> bool:
    """Whether a context position of a recurrent window has memory."""
    metadata = settings.linear_attention_metadata
    if metadata is None:
        return True
    if not is_enable_block_reuse:
        return index == claim.num_context_blocks - 1
    width = settings.tokens_per_block
    return metadata.should_allocate_recurrent_states((index + 1) * width, claim.request.prompt_len, width)
