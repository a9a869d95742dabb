"""Trimming of a prepared batch whose contexts turned out to have less cached than was assumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from trtkv.records.llm_request import LlmRequest
from trtkv.scheduler.scheduled_requests import ScheduledRequests


class TrimResult(NamedTuple):
    """Tokens a step would have computed, and how many of them were put off."""

    num_tokens: int
    num_trimmed_tokens: int


def count_context_tokens(request: LlmRequest) -> int:
    """Tokens a prepared context computes in this step, drafts behind its last chunk included.

    Exact once the sequence has been added; before that the chunk still covers cached tokens.
    """
    if request.is_disagg_generation_init_state:
        return 0
    num_tokens = min(request.context_chunk_size, request.context_remaining_length)
    return num_tokens + (request.num_draft_tokens if request.is_last_context_chunk else 0)


def count_step_tokens(batch: ScheduledRequests) -> int:
    """Tokens a prepared batch computes: one per beam and draft of generating requests, and the chunks."""
    num_tokens = sum(request.beam_width * (1 + request.num_draft_tokens) for request in batch.generation_requests)
    return num_tokens + sum(count_context_tokens(request) for request in batch.context_requests)


def trim_context_chunks(
    batch: ScheduledRequests,
    max_num_tokens: int,
    tokens_per_block: int,
    may_trim: Callable[[LlmRequest], bool] = lambda request: True,
) -> TrimResult:
    """Shorten chunks from the end of the batch until its tokens fit, as far as that goes.

    A shortened chunk ends on a block boundary and has at least one token. No request leaves the batch: its blocks are
    allocated, and the tokens put off are computed in a later step. Sorts the contexts anew if any chunk changed.
    """
    num_tokens = count_step_tokens(batch)
    num_trimmed = 0
    contexts = batch.context_requests
    for request in reversed(contexts):
        if num_tokens - num_trimmed <= max_num_tokens:
            break
        if not request.is_disagg_generation_init_state and may_trim(request):
            num_trimmed += _shorten(request, num_tokens - num_trimmed - max_num_tokens, tokens_per_block)
    if num_trimmed:
        batch.reset_context_requests(contexts)
    return TrimResult(num_tokens, num_trimmed)


def _shorten(request: LlmRequest, excess: int, tokens_per_block: int) -> int:
    """Take at least ``excess`` tokens off a context if blocks allow; the number taken off.

    Drafts go first when they are enough: a prompt that ends a step later costs more.
    """
    before = count_context_tokens(request)
    position = request.context_current_position
    chunk = min(request.context_chunk_size, request.context_remaining_length)
    if before - chunk >= excess:
        request.discard_draft_tokens(excess)
        return excess
    shortest = tokens_per_block - position % tokens_per_block
    last_end = (position + before - excess) // tokens_per_block * tokens_per_block
    new_chunk = max(shortest, last_end - position)
    if new_chunk >= chunk:
        return 0
    request.set_context_chunk_size(new_chunk)
    return before - new_chunk
