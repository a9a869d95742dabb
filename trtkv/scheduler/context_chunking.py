"""Chunk sizes of contexts that do not fit into one step, and the draft tokens that still fit behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from trtkv.errors import ConfigurationError
from trtkv.records.llm_request import LlmRequest
from trtkv.scheduler.scheduler_config import ChunkingPolicy, ContextChunkingConfig, ReuseDiscount


def reusable_tokens(request: LlmRequest) -> int:
    """Cached tokens that the capacity scheduler counted on; they help the first chunk only."""
    return request.estimated_reusable_tokens if request.is_first_context_chunk else 0


def count_compute_tokens(chunk: int, reusable: int, remaining: int, discount: ReuseDiscount) -> int:
    """Tokens a chunk is charged with.

    LATE is what is really computed: a chunk is placed after the cached tokens, so it becomes shorter only
    when it would run past the end of the prompt. RECORDED takes the cached tokens off every chunk.
    """
    if discount is ReuseDiscount.LATE:
        return chunk if reusable + chunk < remaining else max(0, remaining - reusable)
    return max(0, chunk - min(reusable, remaining))


class ContextChunker:
    """Sets the chunks of the collected contexts within a number of tokens.

    ``max_context_length`` limits the computed tokens of one chunk.
    """

    def __init__(self, config: ContextChunkingConfig, max_context_length: int | None, discount: ReuseDiscount) -> None:
        self._policy = config.policy
        self._unit = config.chunk_unit_size
        self._max_context_length = max_context_length
        self._discount = discount

    def set_ctx_requests_chunk_size(self, requests: Sequence[LlmRequest], capacity: int | None) -> None:
        """Give every request its chunk, 0 if nothing is left for it, then drop drafts without room.

        ``capacity``: compute tokens of all of them together; None means no limit.
        """
        for request in requests:
            request.set_context_chunk_size(0)
        _SET_CHUNK_SIZES[self._policy](self, requests, capacity)
        self._fit_draft_tokens(requests, capacity)

    @property
    def always_cuts(self) -> bool:
        """Whether chunks are set even when every context fits whole."""
        return self._policy is ChunkingPolicy.FORCE_CHUNK

    def check_unit(self) -> None:
        """Refuse forced chunks longer than the context limit."""
        limit = self._max_context_length
        if self._policy is ChunkingPolicy.FORCE_CHUNK and limit is not None and limit < self._unit:
            raise ConfigurationError(
                f"forced chunks of {self._unit} tokens exceed max_context_length {limit}; take a smaller chunk unit"
            )

    # -- policies -----------------------------------------------------------------------------------

    def _set_equal_progress(self, requests: Sequence[LlmRequest], capacity: int | None) -> None:
        """Offer each request one unit more, round after round, while a round makes progress."""
        num_used_tokens = 0
        progress = True
        while progress and (capacity is None or num_used_tokens < capacity):
            progress = False
            for request in requests:
                past_chunk = request.context_chunk_size
                chunk = self._next_chunk(request, past_chunk)
                increment = self._compute(request, chunk) - self._compute(request, past_chunk)
                if capacity is not None and num_used_tokens + increment > capacity:
                    continue
                if self._max_context_length is not None and self._limited(request, chunk) > self._max_context_length:
                    continue
                request.set_context_chunk_size(chunk)
                num_used_tokens += increment
                progress |= chunk > past_chunk

    def _next_chunk(self, request: LlmRequest, past_chunk: int) -> int:
        """One unit more; all of the prompt when only cached tokens would be left behind."""
        remaining = request.context_remaining_length
        chunk = min(past_chunk + self._unit, remaining)
        if self._discount is ReuseDiscount.LATE and reusable_tokens(request) + chunk >= remaining:
            return remaining
        return chunk

    def _set_first_come_first_served(self, requests: Sequence[LlmRequest], capacity: int | None) -> None:
        """Serve the requests in order, each with as much as possible, rounded down to a unit unless whole."""
        for request in requests:
            remaining = request.context_remaining_length
            reusable = min(reusable_tokens(request), remaining)
            chunk = remaining
            if capacity is not None and remaining - reusable > capacity:
                chunk = capacity
            chunk = self._limit_first_come_chunk(chunk, reusable, remaining)
            if chunk != remaining:
                chunk = chunk // self._unit * self._unit
            request.set_context_chunk_size(chunk)
            if capacity is not None:
                capacity -= min(chunk, remaining - reusable)

    def _limit_first_come_chunk(self, chunk: int, reusable: int, remaining: int) -> int:
        limit = self._max_context_length
        if limit is None:
            return chunk
        if self._discount is ReuseDiscount.LATE:
            return limit if count_compute_tokens(chunk, reusable, remaining, self._discount) > limit else chunk
        return min(reusable + limit, remaining) if chunk - reusable > limit else chunk

    def _set_forced(self, requests: Sequence[LlmRequest], capacity: int | None) -> None:
        """One unit for each; a request that does not fit gets nothing, a later smaller one may. No reuse credit."""
        self.check_unit()
        num_used_tokens = 0
        for request in requests:
            chunk = min(request.context_remaining_length, self._unit)
            if capacity is None or num_used_tokens + chunk <= capacity:
                request.set_context_chunk_size(chunk)
                num_used_tokens += chunk

    def _compute(self, request: LlmRequest, chunk: int) -> int:
        return count_compute_tokens(chunk, reusable_tokens(request), request.context_remaining_length, self._discount)

    def _limited(self, request: LlmRequest, chunk: int) -> int:
        """Tokens of a chunk that the context limit counts."""
        return self._compute(request, chunk)

    # -- drafts -------------------------------------------------------------------------------------

    def _fit_draft_tokens(self, requests: Sequence[LlmRequest], capacity: int | None) -> None:
        """Keep drafts of last chunks that fit into the unit begun, the context limit and the capacity."""
        discount = ReuseDiscount.LATE
        compute = {
            request.request_id: count_compute_tokens(
                request.context_chunk_size, reusable_tokens(request), request.context_remaining_length, discount
            )
            for request in requests
        }
        num_used_tokens = sum(compute.values())
        for request in requests:
            if not (request.is_last_context_chunk and request.has_draft_tokens):
                continue
            room = -request.context_chunk_size % self._unit
            if self._max_context_length is not None:
                room = min(room, self._max_context_length - compute[request.request_id])
            if capacity is not None:
                room = min(room, capacity - num_used_tokens)
            num_kept = min(request.num_draft_tokens, max(room, 0))
            request.discard_draft_tokens(request.num_draft_tokens - num_kept)
            num_used_tokens += num_kept


_SetChunkSizes = Callable[[ContextChunker, Sequence[LlmRequest], "int | None"], None]
_SET_CHUNK_SIZES: Final[dict[ChunkingPolicy, _SetChunkSizes]] = {
    ChunkingPolicy.EQUAL_PROGRESS: ContextChunker._set_equal_progress,
    ChunkingPolicy.FIRST_COME_FIRST_SERVED: ContextChunker._set_first_come_first_served,
    ChunkingPolicy.FORCE_CHUNK: ContextChunker._set_forced,
}
