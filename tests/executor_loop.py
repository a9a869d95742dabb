"""The loop of an executor without a model: schedule, prepare, "compute", update, free."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trtkv.records.llm_request import LlmRequest, LlmRequestState
from trtkv.resource_manager import KVCacheResourceManager, ResourceManager, ResourceManagerType
from trtkv.scheduler.capacity_scheduler import CapacityScheduler
from trtkv.scheduler.micro_batch_scheduler import MicroBatchScheduler
from trtkv.scheduler.scheduled_requests import ScheduledRequests
from trtkv.scheduler.token_budget import count_step_tokens


class ExecutorLoop:
    """Runs requests to their last token. ``computed``: prompt tokens computed so far, by request."""

    def __init__(
        self,
        capacity_scheduler: CapacityScheduler,
        micro_batch_scheduler: MicroBatchScheduler,
        kv_cache: KVCacheResourceManager,
        *,
        max_batch_size: int = 16,
        num_drafts: Callable[[LlmRequest], int] = lambda request: 0,
        num_accepted: Callable[[LlmRequest], int] = lambda request: 0,
    ) -> None:
        self.capacity_scheduler = capacity_scheduler
        self.micro_batch_scheduler = micro_batch_scheduler
        self.kv_cache = kv_cache
        self.resources = ResourceManager({ResourceManagerType.KV_CACHE_MANAGER: kv_cache})
        self.max_batch_size = max_batch_size
        self.num_drafts = num_drafts
        self.num_accepted = num_accepted
        self.active: list[LlmRequest] = []
        self.computed: dict[int, int] = {}
        self.num_pauses = 0
        self.last_batch = ScheduledRequests()
        self.last_num_tokens = 0

    def add(self, requests: Iterable[LlmRequest]) -> None:
        self.active.extend(requests)

    def schedule(self) -> ScheduledRequests:
        """Choose the next batch; paused requests lose their blocks."""
        manager = self.kv_cache.impl
        fitting, _, paused = self.capacity_scheduler.schedule(self.active, manager)
        for request in paused:
            self.resources.free_resources(request)
            request.pause(10**9)
        self.num_pauses += len(paused)
        chosen = self.micro_batch_scheduler.schedule(fitting, (), self.max_batch_size, self.kv_cache.max_num_tokens)
        return ScheduledRequests.from_schedule(*chosen, paused)

    def step(self, between: Callable[[], None] = lambda: None) -> ScheduledRequests:
        """One step; ``between`` runs after scheduling and before the resources are prepared."""
        batch = self.schedule()
        between()
        self.resources.prepare_resources(batch)
        self.last_num_tokens = count_step_tokens(batch)
        self.compute(batch)
        self.last_batch = batch
        return batch

    def compute(self, batch: ScheduledRequests) -> None:
        accepted = {}
        for request in batch.context_requests:
            num_tokens = min(request.context_chunk_size, request.context_remaining_length)
            self.computed[request.request_id] = self.computed.get(request.request_id, 0) + num_tokens
            request.move_to_next_context_chunk()
            if request.context_remaining_length == 0:
                request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
                self._append(request, 1)
        for request in batch.generation_requests:
            accepted[request.request_id] = min(self.num_accepted(request), request.num_draft_tokens)
            self._append(request, 1 + accepted[request.request_id])
        self.resources.update_resources(batch, accepted)
        for request in batch.all_requests:
            if request.state is LlmRequestState.GENERATION_COMPLETE:
                self.resources.free_resources(request)
                self.active.remove(request)
            elif request.is_generation_in_progress_state:
                request.set_num_draft_tokens(self.num_drafts(request))

    @staticmethod
    def _append(request: LlmRequest, num_tokens: int) -> None:
        num_left = request.prompt_len + request.max_new_tokens - request.get_num_tokens()
        for _ in range(min(num_tokens, num_left)):
            request.add_new_token(1000 * (request.request_id + 1) + request.get_num_tokens())
        if num_tokens >= num_left:
            request.set_state(LlmRequestState.GENERATION_COMPLETE)

    def run(self, max_num_steps: int) -> int:
        """Step until all requests are done; the number of steps."""
        for index in range(max_num_steps):
            if not self.active:
                return index
            self.step()
        raise AssertionError(f"{len(self.active)} requests are left after {max_num_steps} steps")
