"""Budgets as recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trtkv.blocks.generation_request import GenerationRequest
from trtkv.common import RECURRENT_STATES, WindowSize
from trtkv.manager.block_budget import BlockBudget
from trtkv.pools import capacity_estimation
from trtkv.records.linear_attention import LinearAttentionMetadata
from trtkv.records.llm_request import LlmRequest


class RecordedBlockBudget(BlockBudget):
    """Takes every window for one that holds a window and a chunk, and so admits more than fits."""

    @contextmanager
    def _fresh_estimate(self, llm_request: LlmRequest) -> Iterator[None]:
        llm_request.set_estimated_reusable_tokens(0)
        yield

    def _slides(self, window_size: WindowSize) -> bool:
        return False

    def _most_context_tokens(self, window_size: WindowSize) -> int:
        return window_size + self._chunk_size

    def get_num_step_drafts(self, llm_request: LlmRequest, num_draft_tokens: int) -> int:
        """All of them, however few tokens are to come."""
        return num_draft_tokens

    def get_num_final_drafts(self, llm_request: LlmRequest, num_draft_tokens: int) -> int:
        """All of them."""
        return num_draft_tokens

    def _most_tokens_after_step(self, llm_request: LlmRequest, num_tokens: int, num_steps: int) -> int:
        """However few are to come."""
        return num_tokens + num_steps * (max(llm_request.num_draft_tokens, self.draft_token_reserve) + 1)

    def _num_context_beams(self, llm_request: LlmRequest) -> int:
        return llm_request.beam_width

    def _final_len(self, llm_request: LlmRequest) -> int:
        return llm_request.prompt_len + llm_request.max_new_tokens

    def _states_of_context(self, llm_request: LlmRequest, linear: LinearAttentionMetadata) -> int:
        num_tokens = self._num_context_tokens(llm_request, RECURRENT_STATES)
        return linear.calc_num_blocks_needed_for_req(num_tokens, self._tokens_per_block, self._enable_block_reuse)

    def _states_of_step(
        self, sequence: GenerationRequest, llm_request: LlmRequest, linear: LinearAttentionMetadata
    ) -> int:
        return self._additional_states(sequence.num_tokens, llm_request, linear)

    def _additional_states(self, num_tokens: int, llm_request: LlmRequest, linear: LinearAttentionMetadata) -> int:
        return linear.calc_num_additional_blocks_needed_for_req(
            num_tokens, llm_request.prompt_len, self._tokens_per_block, self._enable_block_reuse
        )

    def _remaining_recurrent(self, llm_request: LlmRequest, linear: LinearAttentionMetadata) -> int:
        if llm_request.is_generation_in_progress_state:
            return self._additional_states(llm_request.get_num_tokens(0), llm_request, linear)
        if llm_request.is_context_finished:
            return self._remaining_attention(llm_request, RECURRENT_STATES, None)
        if llm_request.request_id in self._sequences:
            return 0
        return linear.calc_num_blocks_needed_for_req(
            llm_request.prompt_len, self._tokens_per_block, self._enable_block_reuse
        )

    def _max_blocks_of(self, window_size: WindowSize, input_length: int, output_length: int) -> int:
        return capacity_estimation.calculate_max_block_requirements(
            input_length, output_length, 0, window_size, self._max_beam_width, self._tokens_per_block
        )
