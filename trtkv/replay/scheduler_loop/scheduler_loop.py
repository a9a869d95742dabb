"""SchedulerLoop: a trace through the real schedulers, step by step on a virtual clock; it knows no formats.

A step: requests that have arrived become active; the capacity scheduler chooses by blocks and pauses; the micro-batch
scheduler chooses by tokens and cuts chunks; blocks are given; the step takes its modelled time; chunks move on and
tokens are generated; computed blocks are stored for reuse; finished requests leave.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from trtkv.common import RequestId
from trtkv.errors import OutOfBlocksError
from trtkv.records.llm_request import LlmRequest, LlmRequestState
from trtkv.replay.closed_loop.closed_loop import Progress
from trtkv.replay.scheduler_loop.arrival_queue import ArrivalQueue
from trtkv.replay.scheduler_loop.loop_counts import Refusal, RequestRecord
from trtkv.replay.scheduler_loop.loop_ledger import LoopLedger
from trtkv.replay.scheduler_loop.progress_watch import ProgressWatch, describe_requests
from trtkv.replay.scheduler_loop.step_time import StepTimeModel, StepWork
from trtkv.scheduler.scheduled_requests import ScheduledRequests
from trtkv.traces.outputs import generated_token, output_tokens

if TYPE_CHECKING:
    from trtkv.manager.kv_cache_manager import KVCacheManager
    from trtkv.replay.scheduler_loop.loop_backend import LoopBackend
    from trtkv.traces.trace import TraceRequest

FindRefusal = Callable[[RequestId, int, int], "str | None"]
"""Why a request of this id, prompt and output length can never run; None if it can."""

StepObserver = Callable[["SchedulerLoop"], None]


class SchedulerLoop:
    """One run over a backend; ``run`` may be called once.

    Only the ``max_active`` oldest requests are shown to the schedulers. A paused request keeps its place among them.
    ``after_step`` is called when a step is settled, ``progress`` with the number of requests that are done or refused.
    """

    def __init__(
        self,
        backend: LoopBackend,
        step_time: StepTimeModel,
        *,
        max_active: int,
        max_sequence_length: int,
        find_refusal: FindRefusal,
        after_step: StepObserver | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.ledger = LoopLedger()
        self.now_ns = 0
        self._backend = backend
        self._resources = backend.resources
        self._step_time = step_time
        self._max_active = max_active
        self._max_sequence_length = max_sequence_length
        self._find_refusal = find_refusal
        self._after_step = after_step
        self._progress = progress
        self._waiting: deque[TraceRequest] = deque()
        self._active: dict[RequestId, LlmRequest] = {}
        self._sources: dict[RequestId, TraceRequest] = {}  # of active requests
        self._outputs: dict[RequestId, list[int]] = {}  # of those whose output the trace tells
        self._ended: list[TraceRequest] = []  # in the step that is being run
        self._watch = ProgressWatch(max_sequence_length + max_active, self.describe)
        self._num_primary_blocks = sum(
            metadata.allotted_primary_blocks for metadata in backend.manager.window_sizes_metadata.values()
        )

    @property
    def manager(self) -> KVCacheManager:
        """The manager, to be read only."""
        return self._backend.manager

    @property
    def active_requests(self) -> Sequence[LlmRequest]:
        """Requests that the schedulers look at, oldest first."""
        return list(self._active.values())

    def run(self, queue: ArrivalQueue) -> None:
        """Run all requests to their ends, as they arrive."""
        while True:
            self._receive(queue)
            if self._active:
                self._step()
                for request in self._ended:
                    queue.set_over(request, self.now_ns)
                self._ended.clear()
            elif queue.next_time_ns is None:
                break
            else:
                self._set_time(queue.next_time_ns)
        self.ledger.counts.end_ns = self.now_ns

    def describe(self) -> str:
        """Step, time, free blocks and active requests, for errors."""
        head = f"  step {self.ledger.counts.steps}, {self.now_ns} ns, {len(self._waiting)} requests wait to be active"
        return f"{head}\n{describe_requests(self._backend.manager, self._active.values())}"

    # -- arrival ------------------------------------------------------------------------------------

    def _receive(self, queue: ArrivalQueue) -> None:
        """Take what has arrived: refuse the impossible, queue the rest, and make the oldest active."""
        for arrival in queue.take_until(self.now_ns):
            request = arrival.request
            num_new_tokens = max(1, request.output_length)
            reason = self._find_refusal(request.index, request.input_length, num_new_tokens)
            if reason is not None:
                self.ledger.refuse(Refusal(request.index, request.input_length, num_new_tokens, reason))
                queue.set_over(request, arrival.time_ns)
                continue
            record = RequestRecord(request.index, arrival.time_ns, request.input_length, num_new_tokens)
            self.ledger.arrive(record)
            self._waiting.append(request)
        while self._waiting and len(self._active) < self._max_active:
            request = self._waiting.popleft()
            self._active[request.index] = self._backend.new_request(request, max(1, request.output_length))
            self._sources[request.index] = request
            if request.output is not None:
                self._outputs[request.index] = output_tokens(request).tolist()

    def _set_time(self, now_ns: int) -> None:
        self.now_ns = now_ns
        self._backend.set_time(now_ns)

    # -- one step -----------------------------------------------------------------------------------

    def _step(self) -> None:
        batch = self._schedule()
        if batch.batch_size:
            self._prepare(batch)
        if not batch.batch_size:
            self._count_idle_step(batch)
            return
        work = _measure(batch)
        duration_ns = self._step_time.duration_ns(work)
        self._count_step(batch, work, duration_ns)
        self._set_time(self.now_ns + duration_ns)
        self._compute(batch)
        if self._after_step is not None:
            self._after_step(self)

    def _schedule(self) -> ScheduledRequests:
        fitting = self._backend.schedule_capacity(self.active_requests)
        self.ledger.counts.deferrals += self._backend.num_deferred_requests
        for request in fitting.paused_requests:
            self._pause(request)
        contexts, generating = self._backend.schedule_micro_batch(fitting.fitting_requests)
        return ScheduledRequests.from_schedule(contexts, generating, fitting.paused_requests)

    def _pause(self, request: LlmRequest) -> None:
        """Take the blocks of a request; what it has generated becomes part of its prompt."""
        self.ledger.pause(request)
        self._resources.free_resources(request)
        request.pause(self._max_sequence_length)

    def _prepare(self, batch: ScheduledRequests) -> None:
        """Give blocks. New requests that find none leave the batch and wait."""
        sequences = self._backend.manager.sequences
        new_requests = [
            (request, request.reused_blocks_per_request, request.missed_blocks_per_request)
            for request in batch.context_requests
            if request.request_id not in sequences
        ]
        try:
            self._resources.prepare_resources(batch)
        except OutOfBlocksError:
            if batch.batch_size:
                raise
        self._resources.fit_token_budget(batch)
        self.ledger.counts.withdrawals += len(batch.deferred_requests)
        for request, reused, missed in new_requests:
            if request.request_id in sequences:
                self._count_admission(request, reused, missed)

    def _compute(self, batch: ScheduledRequests) -> None:
        has_advanced = bool(batch.generation_requests)
        finished: list[LlmRequest] = []
        for request in batch.context_requests:
            has_advanced |= self._compute_chunk(request)
            if not request.context_remaining_length:
                request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
                self.ledger.start_generation(request, self.now_ns)
                self._generate((request,), finished)
        self._generate(batch.generation_requests, finished)
        self._resources.update_resources(batch)
        for request in finished:
            self._finish(request)
        self._watch.note(has_advanced=has_advanced)

    def _compute_chunk(self, request: LlmRequest) -> bool:
        has_advanced = self.ledger.compute_context(request, request.context_chunk_size)
        request.move_to_next_context_chunk()
        return has_advanced

    def _generate(self, requests: Iterable[LlmRequest], finished: list[LlmRequest]) -> None:
        """One token for each; those that have all are marked and appended to ``finished``."""
        for request in requests:
            num_left = request.prompt_len + request.max_new_tokens - request.get_num_tokens()
            output = self._outputs.get(request.request_id)
            token = generated_token(request.request_id, num_left) if output is None else output[-num_left]
            request.add_new_token(token)
            if num_left <= 1:
                request.set_state(LlmRequestState.GENERATION_COMPLETE)
                finished.append(request)

    def _finish(self, request: LlmRequest) -> None:
        self._resources.free_resources(request)
        self.ledger.finish(request, self.now_ns)
        self._backend.drop_request(request)
        del self._active[request.request_id]
        self._outputs.pop(request.request_id, None)
        self._ended.append(self._sources.pop(request.request_id))
        if self._progress is not None:
            self._progress(self.ledger.counts.finished_requests + len(self.ledger.counts.refusals))

    # -- counting -----------------------------------------------------------------------------------

    def _count_admission(self, request: LlmRequest, reused_before: int, missed_before: int) -> None:
        self.ledger.admit(
            request,
            self.now_ns,
            request.reused_blocks_per_request - reused_before,
            request.missed_blocks_per_request - missed_before,
            self._count_shared_tokens(request),
        )

    def _count_shared_tokens(self, request: LlmRequest) -> int:
        """Found tokens in whole blocks that other live requests hold too, in the widest window."""
        manager = self._backend.manager
        window = manager.sequences[request.request_id].get_window(max(manager.window_sizes_metadata))
        num_whole = request.prepopulated_prompt_len // manager.tokens_per_block
        return manager.tokens_per_block * sum(
            block.ref_count > 1 for block in window.held[:num_whole] if not block.is_placeholder
        )

    def _count_step(self, batch: ScheduledRequests, work: StepWork, duration_ns: int) -> None:
        free_blocks = self._backend.manager.num_free_blocks_per_window_size
        used_blocks = self._num_primary_blocks - sum(free_blocks.values())
        self.ledger.count_step(batch, work, duration_ns, used_blocks)
        self.ledger.sample(batch, work, self.now_ns, used_blocks, len(self._active), len(self._waiting))

    def _count_idle_step(self, batch: ScheduledRequests) -> None:
        """A step without work is allowed when it freed blocks; otherwise the next one would be the same."""
        self.ledger.counts.idle_steps += 1
        if not batch.paused_requests:
            self._watch.fail("no active request can run, and nothing will change that")
        self._watch.note(has_advanced=False)


def _measure(batch: ScheduledRequests) -> StepWork:
    """Work of a batch whose blocks are given."""
    contexts = batch.context_requests
    generating = batch.generation_requests
    return StepWork(
        context_tokens=sum(request.context_chunk_size for request in contexts),
        generation_requests=len(generating),
        cached_tokens=sum(request.context_current_position for request in contexts)
        + sum(request.get_num_tokens() for request in generating),
    )
