"""Chooses, among the requests whose blocks fit, those whose tokens fit into one step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from trtkv.checks import check_type
from trtkv.common import RequestId
from trtkv.errors import CapacityError, ConfigurationError, InvalidInputError
from trtkv.records.llm_request import LlmRequest, LlmRequestState
from trtkv.scheduler.base_capacity_scheduler import make_state_limits
from trtkv.scheduler.behaviour import choose_classes
from trtkv.scheduler.context_chunking import ContextChunker, reusable_tokens
from trtkv.scheduler.scheduler_config import ContextChunkingConfig, ReuseDiscount


class MicroBatchScheduleResult(NamedTuple):
    """Requests of the next step in the order they run."""

    context_requests: list[LlmRequest]
    """Encoder and context requests."""
    generation_requests: list[LlmRequest]


class MicroBatchScheduler:
    """Fills a step up to a number of requests and of computed tokens; may cut prompts into chunks.

    Without ``ctx_chunk_config`` prompts are computed whole. ``max_context_length`` limits the computed
    tokens of one context. ``reuse_discount`` says what cached tokens save; by default what is really
    computed. ``compatibility`` reproduces recorded decisions, faults and discount included
    (docs/decisions/0204).
    """

    def __init__(
        self,
        ctx_chunk_config: ContextChunkingConfig | None = None,
        max_context_length: int | None = None,
        no_schedule_until_state: LlmRequestState = LlmRequestState.CONTEXT_INIT,
        no_schedule_after_state: LlmRequestState = LlmRequestState.GENERATION_TO_COMPLETE,
        reuse_discount: ReuseDiscount | str | None = None,
        *,
        compatibility: bool = False,
    ) -> None:
        self._rules = choose_classes(compatibility).step_rules(max_context_length, reuse_discount)
        self._max_context_length = max_context_length
        self._limits = make_state_limits(no_schedule_until_state, no_schedule_after_state)
        self._config = ctx_chunk_config
        self._chunker: ContextChunker | None = None
        if ctx_chunk_config is not None:
            check_type("ctx_chunk_config", ctx_chunk_config, ContextChunkingConfig, error=ConfigurationError)
            self._chunker = self._rules.make_chunker(ctx_chunk_config)

    def schedule(
        self,
        active_requests: Sequence[LlmRequest],
        inflight_req_ids: Collection[RequestId],
        max_batch_size_runtime: int,
        max_num_tokens_runtime: int | None = None,
    ) -> MicroBatchScheduleResult:
        """Choose among requests in order, leaving out those under way.

        Changes the chunk size and the drafts of context requests. Raises InvalidInputError, before any
        change, for a request longer than ``max_context_length`` that may not be cut into chunks.
        C++: MicroBatchScheduler::operator().
        """
        self._rules.check_step(max_batch_size_runtime, max_num_tokens_runtime)
        candidates = [
            request
            for request in active_requests
            if self._limits.allow(request) and request.request_id not in inflight_req_ids
        ]
        self._rules.check_beforehand(self._check_length, candidates)
        selection = _Selection(max_num_tokens_runtime)
        for request in candidates:
            taken = self._select(request, selection)
            if taken is None:
                break
            selection.num_requests += taken
            if selection.num_requests >= max_batch_size_runtime:
                break
        return self._finish(selection)

    def check_can_ever_fit(self, request: LlmRequest, max_num_tokens_runtime: int | None) -> None:
        """Raise CapacityError, with the numbers, for a request no empty step could compute.

        To be called once when a request arrives: such a request would wait for ever. Reuse is not counted
        on. Changes nothing.
        """
        needed = request.prompt_len + request.num_draft_tokens
        if self._config is not None:
            needed = min(request.prompt_len, self._config.chunk_unit_size)
        limits = {"max_num_tokens": max_num_tokens_runtime, "max_context_length": self._max_context_length}
        for name, limit in limits.items():
            if limit is not None and needed > limit:
                raise CapacityError(
                    f"request {request.request_id} needs a step of {needed} tokens (prompt of {request.prompt_len}), "
                    f"{name} is {limit}; shorten it, raise the limit or use chunks of at most {limit} tokens"
                )
        num_step_tokens = request.beam_width + request.num_draft_tokens
        if max_num_tokens_runtime is not None and num_step_tokens > max_num_tokens_runtime:
            raise CapacityError(
                f"request {request.request_id} generates {num_step_tokens} tokens a step (one per beam, and drafts), "
                f"max_num_tokens is {max_num_tokens_runtime}; use fewer beams or drafts, or raise the limit"
            )

    # -- first pass ---------------------------------------------------------------------------------

    def _select(self, request: LlmRequest, selection: _Selection) -> int | None:
        """Slots the request takes (0 when passed over), or None when it ends the pass."""
        if request.state is LlmRequestState.ENCODER_INIT:
            return self._select_whole(request, selection, self._check_length(request))
        if request.is_context_init_state:
            if self._chunker is not None:
                self._collect(request, selection)
                return 1
            num_tokens = self._check_length(request)
            self._rules.take_whole(request)
            return self._select_whole(request, selection, num_tokens)
        return self._select_generation(request, selection)

    def _check_length(self, request: LlmRequest) -> int:
        """Computed tokens of an encoder or unchunked context request (0 for others); refuses too many."""
        if request.state is LlmRequestState.ENCODER_INIT:
            num_tokens = request.encoder_output_len
        elif request.is_context_init_state and self._chunker is None:
            num_tokens = self._rules.count_whole_context(request)
        else:
            return 0
        if self._max_context_length is not None and num_tokens > self._max_context_length:
            raise InvalidInputError(
                f"request {request.request_id} has {num_tokens} tokens to compute in one piece, max_context_length "
                f"is {self._max_context_length}; shorten it, raise the limit or use chunks"
            )
        return num_tokens

    @staticmethod
    def _select_whole(request: LlmRequest, selection: _Selection, num_tokens: int) -> int | None:
        if not selection.has_room(num_tokens):
            return None
        selection.context_requests.append(request)
        selection.num_tokens += num_tokens
        return 1

    def _collect(self, request: LlmRequest, selection: _Selection) -> None:
        """Take a context whole for now; its tokens are looked at when all are collected."""
        request.set_context_chunk_size(request.context_remaining_length)
        num_tokens = max(0, request.context_remaining_length - reusable_tokens(request)) + request.num_draft_tokens
        if self._max_context_length is not None and num_tokens > self._max_context_length:
            num_tokens = self._max_context_length
            selection.must_chunk = True
        selection.collected.append(request)
        selection.num_collected_tokens += num_tokens

    @staticmethod
    def _select_generation(request: LlmRequest, selection: _Selection) -> int | None:
        num_tokens = request.beam_width + request.num_draft_tokens
        if not selection.has_room(num_tokens):
            return None
        if selection.beam_width not in (None, request.beam_width):
            return 0
        selection.beam_width = request.beam_width
        selection.generation_requests.append(request)
        selection.num_tokens += num_tokens
        return 1

    # -- second pass --------------------------------------------------------------------------------

    def _finish(self, selection: _Selection) -> MicroBatchScheduleResult:
        """Cut the collected contexts to what generation left over, and put everything in order."""
        has_chunks = self._chunker is not None and (
            selection.must_chunk or self._chunker.always_cuts or not selection.collected_fit
        )
        if has_chunks and self._chunker is not None:
            self._chunker.set_ctx_requests_chunk_size(selection.collected, selection.capacity)
        contexts = selection.context_requests
        contexts.extend(request for request in selection.collected if request.context_chunk_size > 0)
        self._rules.sort_requests(contexts, selection.generation_requests, has_chunks)
        return MicroBatchScheduleResult(contexts, selection.generation_requests)


class _Selection:
    """What a step holds so far."""

    def __init__(self, max_num_tokens: int | None) -> None:
        self.context_requests: list[LlmRequest] = []
        self.generation_requests: list[LlmRequest] = []
        self.collected: list[LlmRequest] = []
        self.num_requests = 0
        self.num_tokens = 0
        self.num_collected_tokens = 0
        self.beam_width: int | None = None
        self.must_chunk = False
        self._max_num_tokens = max_num_tokens

    def has_room(self, num_tokens: int) -> bool:
        """Whether that many tokens can be added."""
        return self._max_num_tokens is None or self.num_tokens + num_tokens <= self._max_num_tokens

    @property
    def capacity(self) -> int | None:
        """Tokens left for the collected contexts; None means no limit."""
        return None if self._max_num_tokens is None else self._max_num_tokens - self.num_tokens

    @property
    def collected_fit(self) -> bool:
        """Whether all collected contexts can stay whole."""
        return self.capacity is None or self.num_collected_tokens <= self.capacity
