"""The closed loop: a number of live requests is kept filled from a trace; it knows no file formats.

Rounds between two removals are alike (nothing can be admitted before blocks are given back), so they
are run in one go; and since a manager reads generated tokens only when a sequence is removed, they are
appended just before that. Both leave every count as if each round were run by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from trtkv.common import RequestId, ceil_div
from trtkv.records.llm_request import LlmRequest, LlmRequestState
from trtkv.replay.eligible_requests import EligibleRequests
from trtkv.traces.outputs import output_tokens

if TYPE_CHECKING:
    from trtkv.traces.trace import TraceRequest

Timer = Callable[[], float]
Progress = Callable[[int], None]


class ReplayManager(Protocol):
    """What the loop asks of a manager."""

    def add_sequence_batch(
        self, request_infos: Sequence[tuple[RequestId, int, int]], requests: Sequence[LlmRequest], /
    ) -> object:
        """Admit requests, given as (id, prompt tokens, beams)."""

    def store_context_blocks(self, request: LlmRequest, /) -> object:
        """Make the blocks of a computed prompt reusable."""

    def add_token_rounds(self, request_ids: Sequence[RequestId], num_rounds: int, /) -> object:
        """Make room for one more token of each id, in order, this many times."""

    def remove_sequence(self, request_id: RequestId, request: LlmRequest, /) -> object:
        """Release a sequence and keep its blocks for reuse."""


@dataclass(slots=True)
class PhaseSeconds:
    """Time spent in calls of the manager, by kind; all 0 without a timer."""

    add: float = 0.0
    store: float = 0.0
    decode: float = 0.0
    remove: float = 0.0


class RequestOutcome(NamedTuple):
    """What became of one request."""

    request_id: RequestId
    found_tokens: int | None
    """Prompt tokens found in the cache; None: it needed more blocks than there are and was never run."""


@dataclass(slots=True)
class ReplayCounts:
    """What the loop itself counts."""

    requests: int = 0
    """Requests run."""
    skipped_requests: int = 0
    """Requests that need more blocks than there are; they are never run."""
    prompt_tokens: int = 0
    prompt_blocks: int = 0
    decode_calls: int = 0
    prepopulated_tokens: int = 0
    """Prompt tokens found in the cache."""
    zero_hit_requests: int = 0
    """Requests of which no token was found."""
    token_hit_rates: list[float] = field(default_factory=list)
    """Prepopulated share of the prompt, of each request run."""
    outcomes: list[RequestOutcome] = field(default_factory=list)
    """What became of each request, in the order in which they were admitted or skipped."""


class LiveRequest:
    """An admitted request and the tokens it has still to generate."""

    __slots__ = ("left", "num_blocks", "request", "trace_request")

    def __init__(self, trace_request: TraceRequest, num_blocks: int) -> None:
        self.trace_request = trace_request
        self.request = make_llm_request(trace_request, trace_request.output_length)
        self.num_blocks = num_blocks
        self.left = trace_request.output_length


def make_llm_request(trace_request: TraceRequest, max_new_tokens: int) -> LlmRequest:
    """A request at the start of its prompt, with the salt and the LoRA id that the trace gives it."""
    constraints = trace_request.constraints
    return LlmRequest(
        trace_request.index,
        trace_request.tokens(),
        max_new_tokens,
        kv_cache_retention_config=trace_request.retention,
        **({} if constraints is None else constraints._asdict()),
    )


class ClosedLoop:
    """One run of the loop over a manager; ``run`` may be called once."""

    def __init__(
        self,
        manager: ReplayManager,
        *,
        tokens_per_block: int,
        num_primary_blocks: int,
        live: int,
        num_needed_blocks: Callable[[TraceRequest], int],
        timer: Timer | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.counts = ReplayCounts()
        self.seconds = PhaseSeconds()
        self._manager = manager
        self._tokens_per_block = tokens_per_block
        self._num_free_blocks = num_primary_blocks
        self._max_live = live
        self._num_needed_blocks = num_needed_blocks
        self._timer = timer or _no_time
        self._progress = progress or _no_progress
        self._live: list[LiveRequest] = []
        self._waiting = EligibleRequests(())

    @property
    def next_request_id(self) -> RequestId | None:
        """The request that would be admitted next; None if none may start."""
        head = self._waiting.head
        return None if head is None else head.index

    def run(self, trace: Iterable[TraceRequest]) -> None:
        """Replay all requests in order. Tokens of a request are made when it is admitted."""
        waiting = self._waiting = EligibleRequests(trace)
        while True:
            admitted = self._admit(waiting)
            if admitted:
                self._add(admitted)
                self._store(admitted)
            if not self._live:
                return
            self._decode()
            self._remove_finished(waiting)
            self._progress(self.counts.requests + self.counts.skipped_requests - len(self._live))

    def _admit(self, waiting: EligibleRequests) -> list[LiveRequest]:
        """Requests of the trace that fit now, in order. Reserves their blocks and makes them live."""
        admitted: list[LiveRequest] = []
        while (head := waiting.head) is not None and len(self._live) < self._max_live:
            live_request = self._reserve(head)
            if live_request is not None:
                self._live.append(live_request)
                admitted.append(live_request)
                waiting.take()
            elif self._live:
                break
            else:
                self.counts.skipped_requests += 1
                self.counts.outcomes.append(RequestOutcome(head.index, None))
                waiting.take()
                waiting.set_over(head)
        return admitted

    def _reserve(self, trace_request: TraceRequest) -> LiveRequest | None:
        """Set blocks aside for a request; None if there are not enough."""
        num_blocks = self._num_needed_blocks(trace_request)
        if num_blocks > self._num_free_blocks:
            return None
        self._num_free_blocks -= num_blocks
        return LiveRequest(trace_request, num_blocks)

    def _release(self, live_request: LiveRequest) -> None:
        """Give back what was set aside."""
        self._num_free_blocks += live_request.num_blocks

    def _add(self, admitted: list[LiveRequest]) -> None:
        requests = [live_request.request for live_request in admitted]
        infos = [(request.request_id, request.prompt_len, 1) for request in requests]
        start = self._timer()
        self._manager.add_sequence_batch(infos, requests)
        self.seconds.add += self._timer() - start
        for request in requests:
            self._count_admission(request)
            self._compute_prompt(request)
            request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)

    def _compute_prompt(self, request: LlmRequest) -> None:
        """Compute the rest of a prompt, in one step."""
        request.set_context_current_position(request.prompt_len)

    def _count_admission(self, request: LlmRequest) -> None:
        counts = self.counts
        num_found = request.prepopulated_prompt_len
        counts.requests += 1
        counts.prompt_tokens += request.prompt_len
        counts.prompt_blocks += ceil_div(request.prompt_len, self._tokens_per_block)
        counts.prepopulated_tokens += num_found
        counts.zero_hit_requests += num_found == 0
        counts.token_hit_rates.append(num_found / request.prompt_len)
        counts.outcomes.append(RequestOutcome(request.request_id, num_found))

    def _store(self, admitted: list[LiveRequest]) -> None:
        store_context_blocks = self._manager.store_context_blocks
        start = self._timer()
        for live_request in admitted:
            store_context_blocks(live_request.request)
        self.seconds.store += self._timer() - start

    def _decode(self) -> None:
        """One token for every live request in order, as many rounds as end with the next removal."""
        ids = [live_request.request.request_id for live_request in self._live]
        num_rounds = max(1, min(live_request.left for live_request in self._live))
        start = self._timer()
        self._manager.add_token_rounds(ids, num_rounds)
        self.seconds.decode += self._timer() - start
        self.counts.decode_calls += num_rounds * len(ids)
        for live_request in self._live:
            live_request.left -= num_rounds

    def _append_output(self, live_request: LiveRequest) -> None:
        live_request.request.add_new_tokens([output_tokens(live_request.trace_request)])

    def _remove_finished(self, waiting: EligibleRequests) -> None:
        finished = [live_request for live_request in self._live if live_request.left <= 0]
        self._live = [live_request for live_request in self._live if live_request.left > 0]
        for live_request in finished:
            self._append_output(live_request)
        start = self._timer()
        for live_request in finished:
            self._manager.remove_sequence(live_request.request.request_id, live_request.request)
        self.seconds.remove += self._timer() - start
        for live_request in finished:
            waiting.set_over(live_request.trace_request)
            self._release(live_request)


def _no_time() -> float:
    return 0.0


def _no_progress(num_done: int) -> None:
    pass
