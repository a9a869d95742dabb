"""Steps as recorded: limits, drafts and the order of requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trtkv.records.llm_request import LlmRequest
from trtkv.scheduler.context_chunking import ContextChunker, count_compute_tokens, reusable_tokens
from trtkv.scheduler.scheduler_config import ContextChunkingConfig, ReuseDiscount
from trtkv.scheduler.step_rules import StepRules


class RecordedContextChunker(ContextChunker):
    """Room for drafts is charged whole and may be negative, which fails with drafts half dropped."""

    def _limited(self, request: LlmRequest, chunk: int) -> int:
        return chunk

    def _fit_draft_tokens(self, requests: Sequence[LlmRequest], capacity: int | None) -> None:
        num_used_tokens = 0
        for request in requests:
            remaining = request.context_remaining_length
            reusable = min(reusable_tokens(request), remaining)
            num_used_tokens += min(request.context_chunk_size, max(0, remaining - reusable))
        for request in requests:
            if not (request.is_last_context_chunk and request.has_draft_tokens):
                continue
            chunk = request.context_chunk_size
            room = -chunk % self._unit
            if self._max_context_length is not None:
                room = min(room, self._max_context_length - chunk)
            if capacity is not None:
                room = min(room, capacity - num_used_tokens)
                num_used_tokens += room
            num_discarded = request.num_draft_tokens - room
            if num_discarded > 0:
                request.discard_draft_tokens(num_discarded)


class RecordedStepRules(StepRules):
    """Nothing is checked before requests change, whole contexts count all their tokens and keep their chunk."""

    default_discount = ReuseDiscount.RECORDED
    smallest_context_limit = 0

    def make_chunker(self, config: ContextChunkingConfig) -> ContextChunker:
        """Chunker of contexts; forced chunks that are too long are refused when they are cut."""
        return RecordedContextChunker(config, self._max_context_length, self._discount)

    def check_step(self, max_batch_size: int, max_num_tokens: int | None) -> None:
        """Any limits will do."""

    def check_beforehand(self, check_length: Callable[[LlmRequest], int], requests: Sequence[LlmRequest]) -> None:
        """A request that is too long is refused at its turn."""

    def take_whole(self, request: LlmRequest) -> None:
        """The request keeps the chunk it has."""

    def count_whole_context(self, request: LlmRequest) -> int:
        """All tokens of a request, computed ones included, less the cached ones."""
        num_tokens, reusable = request.get_num_tokens() + request.num_draft_tokens, reusable_tokens(request)
        if self._discount is ReuseDiscount.RECORDED:
            return max(1, num_tokens - reusable)
        return max(1, count_compute_tokens(num_tokens, reusable, request.context_remaining_length, self._discount))

    def sort_requests(self, contexts: list[LlmRequest], generation: list[LlmRequest], has_chunks: bool) -> None:
        """Unfinished contexts come first by swaps that lose the order of arrival."""
        if has_chunks:
            _partition(contexts)
        super().sort_requests(contexts, generation, has_chunks)


def _partition(requests: list[LlmRequest]) -> None:
    """Swap last chunks at the front with unfinished ones at the back until the two meet."""
    front, back = 0, len(requests)
    while True:
        while front < back and not requests[front].is_last_context_chunk:
            front += 1
        while front < back and requests[back - 1].is_last_context_chunk:
            back -= 1
        if front >= back:
            return
        requests[front], requests[back - 1] = requests[back - 1], requests[front]
        front += 1
        back -= 1
