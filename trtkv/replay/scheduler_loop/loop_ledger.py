"""LoopLedger: the book that the scheduler loop keeps; every event of the loop is one method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkv.replay.scheduler_loop.loop_counts import LoopCounts, Refusal, RequestRecord
from trtkv.replay.utilisation import UtilisationSample, UtilisationSamples

if TYPE_CHECKING:
    from trtkv.common import RequestId
    from trtkv.records.llm_request import LlmRequest
    from trtkv.replay.scheduler_loop.step_time import StepWork
    from trtkv.scheduler.scheduled_requests import ScheduledRequests


class LoopLedger:
    """Counts of a run so far. Changes no request."""

    def __init__(self) -> None:
        self.counts = LoopCounts()
        self.records: dict[RequestId, RequestRecord] = {}
        """In order of arrival; refused requests have none."""
        self.utilisation = UtilisationSamples()

    # -- one request --------------------------------------------------------------------------------

    def arrive(self, record: RequestRecord) -> None:
        """A request that can run."""
        self.records[record.request_id] = record

    def refuse(self, refusal: Refusal) -> None:
        """A request that can never run."""
        self.counts.refusals.append(refusal)

    def admit(self, request: LlmRequest, now_ns: int, reused: int, missed: int, shared_tokens: int) -> None:
        """A request that was just given its blocks. ``reused``, ``missed``: blocks of this admission."""
        record = self.records[request.request_id]
        found = request.prepopulated_prompt_len
        if record.admitted_ns is None:
            record.admitted_ns = now_ns
            record.found_tokens = found
            counts = self.counts.first
        else:
            record.recompute_prompt_tokens += request.prompt_len
            record.recompute_found_tokens += found
            counts = self.counts.recompute
        counts.add(request.prompt_len, found, reused, missed, shared_tokens)

    def compute_context(self, request: LlmRequest, num_tokens: int) -> bool:
        """A chunk, before the request moves on. Whether it gets further than the request had ever been."""
        record = self.records[request.request_id]
        position = request.context_current_position
        end = position + num_tokens
        again = max(0, min(end, record.reach) - position)
        has_advanced = end > record.reach
        record.reach = max(end, record.reach)
        record.prefill_steps += 1
        record.computed_tokens += num_tokens
        record.recomputed_tokens += again
        self.counts.recomputed_tokens += again
        return has_advanced

    def start_generation(self, request: LlmRequest, end_ns: int) -> None:
        """A prompt that is computed; its last chunk gives the next token."""
        record = self.records[request.request_id]
        if record.first_token_ns is None:
            record.first_token_ns = end_ns
        self.counts.generated_tokens += 1

    def pause(self, request: LlmRequest) -> None:
        """A request about to lose its blocks."""
        record = self.records[request.request_id]
        record.pauses += 1
        if request.is_generation_in_progress_state:
            record.reach = max(record.reach, request.get_num_tokens() - 1)
        self.counts.pauses += 1

    def finish(self, request: LlmRequest, end_ns: int) -> None:
        """A request that has all its tokens."""
        record = self.records[request.request_id]
        record.finished_ns = end_ns
        record.generated_tokens = request.get_num_tokens() - record.prompt_tokens
        self.counts.finished_requests += 1

    # -- one step -----------------------------------------------------------------------------------

    def count_step(self, batch: ScheduledRequests, work: StepWork, duration_ns: int, used_blocks: int) -> None:
        """A step that computes something."""
        counts = self.counts
        counts.steps += 1
        counts.context_steps += work.context_tokens > 0
        counts.generation_steps += work.generation_requests > 0
        counts.context_tokens += work.context_tokens
        counts.generated_tokens += work.generation_requests
        counts.scheduled_requests += batch.batch_size
        counts.step_tokens += work.num_tokens
        counts.cached_tokens += work.cached_tokens
        counts.busy_ns += duration_ns
        counts.used_block_ns += used_blocks * duration_ns
        counts.most_used_blocks = max(counts.most_used_blocks, used_blocks)

    def sample(
        self,
        batch: ScheduledRequests,
        work: StepWork,
        start_ns: int,
        used_blocks: int,
        active_requests: int,
        waiting_requests: int,
    ) -> None:
        """Keep the step just counted for the picture over time, if it is one to keep."""
        step = self.counts.steps - 1
        if not self.utilisation.wants(step):
            return
        self.utilisation.add(
            UtilisationSample(
                step=step,
                start_ns=start_ns,
                used_blocks=used_blocks,
                context_requests=batch.batch_size - len(batch.generation_requests),
                generation_requests=len(batch.generation_requests),
                tokens=work.num_tokens,
                active_requests=active_requests,
                waiting_requests=waiting_requests,
            )
        )
