"""ScheduledRequests: the batch of one step, as it goes from the schedulers through the resource managers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from trtkv.common import RequestId
from trtkv.records.llm_request import LlmRequest


@dataclass(slots=True)
class ScheduledRequests:
    """Requests of one step. Contexts are kept in two lists: those whose prompt goes on, and those that end it."""

    context_requests_chunking: list[LlmRequest] = field(default_factory=list)
    context_requests_last_chunk: list[LlmRequest] = field(default_factory=list)
    generation_requests: list[LlmRequest] = field(default_factory=list)
    paused_requests: list[LlmRequest] = field(default_factory=list)
    deferred_requests: list[LlmRequest] = field(default_factory=list)
    """New requests taken out by a resource manager that found no room; they wait for the next step."""
    num_reserved_draft_tokens: dict[RequestId, int] = field(default_factory=dict)
    """Slots after the next token that were prepared for drafts, by request."""

    @classmethod
    def from_schedule(
        cls,
        context_requests: Iterable[LlmRequest],
        generation_requests: Sequence[LlmRequest],
        paused_requests: Sequence[LlmRequest] = (),
    ) -> ScheduledRequests:
        """Batch of what the micro-batch scheduler chose and the capacity scheduler paused."""
        batch = cls(generation_requests=list(generation_requests), paused_requests=list(paused_requests))
        batch.reset_context_requests(context_requests)
        return batch

    @property
    def context_requests(self) -> list[LlmRequest]:
        """All contexts, those that end their prompt last (a new list)."""
        return self.context_requests_chunking + self.context_requests_last_chunk

    @property
    def all_requests(self) -> list[LlmRequest]:
        """Contexts, then generating requests (a new list)."""
        return self.context_requests + self.generation_requests

    @property
    def batch_size(self) -> int:
        """Requests of the step."""
        return (
            len(self.context_requests_chunking) + len(self.context_requests_last_chunk) + len(self.generation_requests)
        )

    def reset_context_requests(self, context_requests: Iterable[LlmRequest] | None = None) -> None:
        """Sort contexts (default: the present ones) into the two lists anew, after their chunks have changed."""
        requests = self.context_requests if context_requests is None else list(context_requests)
        self.context_requests_chunking = [request for request in requests if not request.is_last_context_chunk]
        self.context_requests_last_chunk = [request for request in requests if request.is_last_context_chunk]
