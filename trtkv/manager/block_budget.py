"""BlockBudget: how many blocks a request needs for its next step, and until its last token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from trtkv.blocks.generation_request import GenerationRequest, find_sequence
from trtkv.common import RECURRENT_STATES, CacheType, RequestId, WindowSize, ceil_div, trunc_div
from trtkv.errors import InvalidInputError, TrtkvError, UnknownIdError
from trtkv.manager.block_manager import BlockManager
from trtkv.pools import capacity_estimation
from trtkv.records.linear_attention import LinearAttentionMetadata
from trtkv.records.llm_request import LlmRequest
from trtkv.records.window_size_metadata import PrefixReuseSummary, WindowSizeMetadata


class BlockBudget:
    """Budgets that schedulers ask for. Reads blocks and sequences; writes a request's reuse estimate only.

    ``sequences`` is the manager's live map. ``analyze_prefix_reuse`` walks the tree for a request's tokens.
    """

    def __init__(
        self,
        block_manager: BlockManager,
        sequences: Mapping[RequestId, GenerationRequest],
        analyze_prefix_reuse: Callable[[LlmRequest], PrefixReuseSummary],
        *,
        chunk_size: int,
        max_beam_width: int,
        enable_block_reuse: bool,
    ) -> None:
        self._block_manager = block_manager
        self._sequences = sequences
        self._analyze_prefix_reuse = analyze_prefix_reuse
        self._tokens_per_block = block_manager.settings.tokens_per_block
        self._is_cross = block_manager.settings.layers.cache_type is CacheType.CROSS
        self._chunk_size = chunk_size
        self._max_beam_width = max_beam_width
        self._enable_block_reuse = enable_block_reuse
        self.num_extra_kv_tokens = 0
        """Tokens added to every prompt."""
        self.draft_token_reserve = 0
        """Draft tokens to budget for at least."""

    def _uses_summary(self) -> bool:
        return self._enable_block_reuse and not self._block_manager.is_variable_window and not self._is_cross

    def get_needed_blocks_one_step(
        self,
        llm_request: LlmRequest,
        two_steps_look_ahead: bool,
        window_size: WindowSize,
        cached_summary: PrefixReuseSummary | None = None,
    ) -> int:
        """Blocks a request needs in a window for its next step (or two). C++: getNeededBlocksOneStep.

        Writes the request's estimated reusable tokens: cached blocks of a first chunk, else 0. Only cached
        blocks that are held lower the need, as free ones count as free already.
        """
        with self._fresh_estimate(llm_request):
            is_disagg = llm_request.is_disagg_generation_init_state
            if is_disagg or (llm_request.is_context_init_state and llm_request.is_first_context_chunk):
                return self._needed_for_context(llm_request, window_size, cached_summary, credit_reuse=not is_disagg)
            if not llm_request.is_generation_in_progress_state or self._is_cross:
                return 0
            return self._needed_for_generation(llm_request, two_steps_look_ahead, window_size)

    @contextmanager
    def _fresh_estimate(self, llm_request: LlmRequest) -> Iterator[None]:
        """Start a request's estimate at 0; the old one comes back when the budget fails."""
        before = llm_request.estimated_reusable_tokens
        llm_request.set_estimated_reusable_tokens(0)
        try:
            yield
        except TrtkvError:
            llm_request.set_estimated_reusable_tokens(before)
            raise

    def _needed_for_context(
        self,
        llm_request: LlmRequest,
        window_size: WindowSize,
        cached_summary: PrefixReuseSummary | None,
        credit_reuse: bool,
    ) -> int:
        tokens_per_block = self._tokens_per_block
        linear = self._block_manager.settings.layers.linear_attention_metadata
        if window_size == RECURRENT_STATES and linear is not None:
            return self._states_of_context(llm_request, linear)
        num_tokens = self._num_context_tokens(llm_request, window_size)
        num_shared = num_tokens // tokens_per_block
        num_beams = self._num_context_beams(llm_request)
        required = num_shared + ceil_div(num_tokens % tokens_per_block, tokens_per_block) * num_beams
        if not credit_reuse or not self._uses_summary():
            return required
        summary = self._analyze_prefix_reuse(llm_request) if cached_summary is None else cached_summary
        input_len = min(llm_request.prompt_len, self._most_context_tokens(window_size))
        if input_len < 1:
            raise InvalidInputError(f"request {llm_request.request_id} has an empty prompt; give at least 1 token")
        limit = min(num_shared, (input_len - 1) // tokens_per_block)
        llm_request.set_estimated_reusable_tokens(min(summary.reusable_blocks_all, limit) * tokens_per_block)
        if self._slides(window_size):  # in the same step others may let go of shared blocks, and count on them
            return required
        return required - min(summary.reusable_blocks_allocated, limit)

    def _num_context_tokens(self, llm_request: LlmRequest, window_size: WindowSize) -> int:
        """Slots of a context at its admission."""
        length = llm_request.encoder_output_len if self._is_cross else llm_request.prompt_len
        num_behind = self.num_extra_kv_tokens + self._num_step_drafts(llm_request)
        return min(length, self._most_context_tokens(window_size)) + num_behind

    def _num_context_beams(self, llm_request: LlmRequest) -> int:
        """Blocks that the last, partly filled position of a context takes; encoder output is the same for all beams."""
        return 1 if self._is_cross else llm_request.beam_width

    def _num_step_drafts(self, llm_request: LlmRequest) -> int:
        """Drafts that the next step of a request may have."""
        return self.get_num_step_drafts(llm_request, max(llm_request.num_draft_tokens, self.draft_token_reserve))

    def get_num_step_drafts(self, llm_request: LlmRequest, num_draft_tokens: int) -> int:
        """How many of so many drafts can become tokens of a request; see ``KVCacheManager.get_num_step_drafts``."""
        num_to_come = llm_request.max_new_tokens
        if llm_request.is_generation_in_progress_state:
            num_tokens = find_sequence(self._sequences, llm_request.request_id).num_tokens
            num_to_come += llm_request.prompt_len + self.num_extra_kv_tokens - num_tokens
            return min(num_draft_tokens, num_to_come - 1) if num_to_come > 0 else num_draft_tokens
        return min(num_draft_tokens, num_to_come) if num_to_come > 0 else num_draft_tokens

    def get_num_final_drafts(self, llm_request: LlmRequest, num_draft_tokens: int) -> int:
        """How many of so many drafts have slots behind the last token of a request: none if the end is known."""
        return 0 if llm_request.max_new_tokens > 0 else num_draft_tokens

    def _most_tokens_after_step(self, llm_request: LlmRequest, num_tokens: int, num_steps: int) -> int:
        """Tokens of a generating sequence after its next steps, at most all it will ever have."""
        num_step_tokens = max(llm_request.num_draft_tokens, self.draft_token_reserve) + 1
        most = llm_request.prompt_len + llm_request.max_new_tokens + self.num_extra_kv_tokens
        num_next = num_tokens + num_steps * num_step_tokens
        return min(num_next, most) if most > num_tokens else num_next

    def _most_context_tokens(self, window_size: WindowSize) -> int:
        """Prompt tokens that take blocks at admission: a sliding window lets go of the first ones only later."""
        return self._get_window_metadata(window_size).max_token_num

    def _get_window_metadata(self, window_size: WindowSize) -> WindowSizeMetadata:
        metadata = self._block_manager.window_sizes_metadata.get(window_size)
        if metadata is None:
            raise UnknownIdError(
                f"window {window_size} is not managed; choose one of {list(self._block_manager.window_sizes_metadata)}"
            )
        return metadata

    def _needed_for_generation(
        self, llm_request: LlmRequest, two_steps_look_ahead: bool, window_size: WindowSize
    ) -> int:
        tokens_per_block = self._tokens_per_block
        sequence = find_sequence(self._sequences, llm_request.request_id)
        num_tokens = sequence.num_tokens
        linear = self._block_manager.settings.layers.linear_attention_metadata
        if window_size == RECURRENT_STATES and linear is not None:
            return self._states_of_step(sequence, llm_request, linear)
        metadata = self._get_window_metadata(window_size)
        num_next = min(
            self._most_tokens_after_step(llm_request, num_tokens, 2 if two_steps_look_ahead else 1),
            metadata.max_blocks_per_seq * tokens_per_block,
        )
        if self._slides(window_size):
            return self._block_manager.get_window_block_manager(window_size).sequences.count_needed(sequence, num_next)
        new_blocks = ceil_div(num_next, tokens_per_block) - ceil_div(num_tokens, tokens_per_block)
        return new_blocks * llm_request.beam_width

    def _slides(self, window_size: WindowSize) -> bool:
        """Whether blocks that leave a window pay for those that come."""
        return self._get_window_metadata(window_size).is_swa

    def get_remaining_blocks_to_completion(
        self,
        llm_request: LlmRequest,
        window_size: WindowSize,
        cached_summary: PrefixReuseSummary | None = None,
    ) -> int:
        """Blocks a request will still take in a window until its last token. C++: getRemainingBlocksToCompletion.

        Writes the request's estimated reusable tokens as ``get_needed_blocks_one_step`` does. May be negative.
        """
        with self._fresh_estimate(llm_request):
            if self._is_cross:
                is_start = llm_request.is_context_init_state and llm_request.context_current_position == 0
                return ceil_div(llm_request.encoder_output_len, self._tokens_per_block) if is_start else 0
            if window_size == RECURRENT_STATES:
                linear = self._block_manager.settings.layers.linear_attention_metadata
                if linear is None:
                    raise UnknownIdError("there is no recurrent window; ask for one of the attention windows")
                return self._remaining_recurrent(llm_request, linear)
            if self._slides(window_size):
                return self._remaining_sliding(llm_request, window_size, cached_summary)
            return self._remaining_attention(llm_request, window_size, cached_summary)

    def _remaining_recurrent(self, llm_request: LlmRequest, linear: LinearAttentionMetadata) -> int:
        sequence = self._sequences.get(llm_request.request_id)
        if sequence is None:
            return self._states_of_context(llm_request, linear)
        return self._states_of_step(sequence, llm_request, linear)

    def _states_of_context(self, llm_request: LlmRequest, linear: LinearAttentionMetadata) -> int:
        """States that a prompt takes."""
        return linear.count_states(
            llm_request.prompt_len, self._tokens_per_block, self._enable_block_reuse, llm_request.beam_width
        )

    def _states_of_step(
        self, sequence: GenerationRequest, llm_request: LlmRequest, linear: LinearAttentionMetadata
    ) -> int:
        """States that a running sequence still takes."""
        sequences = self._block_manager.get_window_block_manager(RECURRENT_STATES).sequences
        return sequences.num_blocks_to_come(sequence, llm_request.prompt_len, self._enable_block_reuse)

    def _remaining_attention(
        self, llm_request: LlmRequest, window_size: WindowSize, cached_summary: PrefixReuseSummary | None
    ) -> int:
        tokens_per_block = self._tokens_per_block
        prompt_len, beam_width = llm_request.prompt_len, llm_request.beam_width
        final_len = self._final_len(llm_request)
        held_tokens = window_size + self._chunk_size
        num_context = trunc_div(min(prompt_len, held_tokens), tokens_per_block)
        num_total = ceil_div(min(final_len, held_tokens), tokens_per_block)
        num_allocated = 0
        sequence = self._sequences.get(llm_request.request_id)
        if sequence is not None:
            window = sequence.get_window(window_size)
            num_allocated = len(window.block_ids[0]) - window.num_front_blocks_removed
        num_reusable = 0
        if (
            self._uses_summary()
            and llm_request.is_context_init_state
            and llm_request.is_first_context_chunk
            and num_allocated == 0
        ):
            summary = self._analyze_prefix_reuse(llm_request) if cached_summary is None else cached_summary
            limit = min(num_context, (prompt_len - 1) // tokens_per_block)
            num_reusable = min(summary.reusable_blocks_allocated, limit)
            llm_request.set_estimated_reusable_tokens(min(summary.reusable_blocks_all, limit) * tokens_per_block)
        # A window that slides takes a block for its new end before it lets go of the one at its start.
        last_block = ceil_div(final_len, tokens_per_block)
        num_extra = int(
            final_len > window_size
            and last_block > ceil_div(llm_request.get_num_tokens(0), tokens_per_block)
            and last_block > num_total
        )
        if num_allocated < num_context - num_reusable:
            return num_context - num_reusable - num_allocated + (num_total - num_context + num_extra) * beam_width
        return (num_total - num_reusable - num_allocated + num_extra) * beam_width

    def _final_len(self, llm_request: LlmRequest) -> int:
        """Slots of a request with its last token."""
        num_drafts = max(llm_request.num_draft_tokens, self.draft_token_reserve)
        num_behind = self.num_extra_kv_tokens + self.get_num_final_drafts(llm_request, num_drafts)
        return llm_request.prompt_len + llm_request.max_new_tokens + num_behind

    def _remaining_sliding(
        self, llm_request: LlmRequest, window_size: WindowSize, cached_summary: PrefixReuseSummary | None
    ) -> int:
        """Blocks until completion in a sliding window, so that no sequence ever lacks one. Not negative.

        A sequence that outgrows the window holds its whole prompt at first, then a window and a block. Shared blocks
        are no help: they stay with the others when it leaves them, or with it when the others leave them.
        """
        tokens_per_block = self._tokens_per_block
        prompt_len = min(llm_request.prompt_len, self._get_window_metadata(window_size).max_token_num)
        final_len = self._final_len(llm_request)
        sequences = self._block_manager.get_window_block_manager(window_size).sequences
        most_tokens = window_size + sequences.rewind_reserve + tokens_per_block - 1
        most_blocks = ceil_div(min(final_len, most_tokens), tokens_per_block)
        sequence = self._sequences.get(llm_request.request_id)
        if sequence is not None:
            num_held = len(sequence.get_window(window_size).held)
            if final_len > window_size:
                num_held = sequences.count_held_alone(sequence)
            return max(most_blocks * llm_request.beam_width - num_held, 0)
        if self._uses_summary() and llm_request.is_context_init_state:
            summary = self._analyze_prefix_reuse(llm_request) if cached_summary is None else cached_summary
            num_reusable = min(summary.reusable_blocks_all, (prompt_len - 1) // tokens_per_block)
            llm_request.set_estimated_reusable_tokens(num_reusable * tokens_per_block)
        most_blocks = max(most_blocks, ceil_div(prompt_len, tokens_per_block))
        num_shared = prompt_len // tokens_per_block
        return num_shared + (most_blocks - num_shared) * llm_request.beam_width

    def get_max_capacity_batch_size(self, input_length: int, output_length: int) -> int:
        """Sequences of these lengths that fit at once: the minimum over windows. C++: getMaxCapacityBatchSize."""
        return min(
            trunc_div(metadata.allotted_primary_blocks, self._max_blocks_of(window_size, input_length, output_length))
            for window_size, metadata in self._block_manager.window_sizes_metadata.items()
        )

    def _max_blocks_of(self, window_size: WindowSize, input_length: int, output_length: int) -> int:
        """Blocks that a sequence of these lengths holds at most in a window."""
        linear = self._block_manager.settings.layers.linear_attention_metadata
        if window_size == RECURRENT_STATES and linear is not None:
            return linear.count_states(
                input_length, self._tokens_per_block, self._enable_block_reuse, self._max_beam_width
            )
        return capacity_estimation.calculate_max_block_requirements(
            input_length, output_length, 0, window_size, self._max_beam_width, self._tokens_per_block
        )
