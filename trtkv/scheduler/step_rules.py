"""StepRules: what contexts count in a step, and the order of its requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from trtkv.checks import check_count, check_member
from trtkv.errors import ConfigurationError
from trtkv.records.llm_request import LlmRequest
from trtkv.scheduler.context_chunking import ContextChunker, reusable_tokens
from trtkv.scheduler.request_order import sort_requests
from trtkv.scheduler.scheduler_config import ContextChunkingConfig, ReuseDiscount


class StepRules:
    """The parts of a micro-batch scheduler that decisions differ about. ``reuse_discount``: None is the default one."""

    default_discount: ClassVar[ReuseDiscount] = ReuseDiscount.LATE
    smallest_context_limit: ClassVar[int] = 1

    def __init__(self, max_context_length: int | None, reuse_discount: ReuseDiscount | str | None) -> None:
        if max_context_length is not None:
            least = self.smallest_context_limit
            check_count("max_context_length", max_context_length, least, error=ConfigurationError)
        discount = self.default_discount if reuse_discount is None else reuse_discount
        self._discount = check_member("reuse_discount", discount, ReuseDiscount, error=ConfigurationError)
        self._max_context_length = max_context_length

    def make_chunker(self, config: ContextChunkingConfig) -> ContextChunker:
        """Chunker of contexts; refuses forced chunks longer than the context limit."""
        chunker = ContextChunker(config, self._max_context_length, self._discount)
        chunker.check_unit()
        return chunker

    def check_step(self, max_batch_size: int, max_num_tokens: int | None) -> None:
        """Refuse limits of a step that make no sense."""
        check_count("max_batch_size_runtime", max_batch_size, 1)
        if max_num_tokens is not None:
            check_count("max_num_tokens_runtime", max_num_tokens)

    def check_beforehand(self, check_length: Callable[[LlmRequest], int], requests: Sequence[LlmRequest]) -> None:
        """Refuse a request that is too long before any request is changed."""
        for request in requests:
            check_length(request)

    def take_whole(self, request: LlmRequest) -> None:
        """Make a context one chunk."""
        request.set_context_chunk_size(request.context_remaining_length)

    def count_whole_context(self, request: LlmRequest) -> int:
        """Computed tokens of a context in one piece, its drafts included."""
        return max(1, request.context_remaining_length - reusable_tokens(request)) + request.num_draft_tokens

    def sort_requests(self, contexts: list[LlmRequest], generation: list[LlmRequest], has_chunks: bool) -> None:
        """Put the requests of a step in the order they run."""
        sort_requests(contexts, generation, has_chunks)
