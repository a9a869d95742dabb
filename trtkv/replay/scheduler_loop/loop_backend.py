"""What the scheduler loop works on: manager, schedulers and requests, behind one protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from trtkv.records.llm_request import LlmRequest
from trtkv.replay.closed_loop.closed_loop import make_llm_request
from trtkv.resource_manager import KVCacheResourceManager
from trtkv.scheduler.capacity_scheduler import CapacityScheduler, CapacityScheduleResult
from trtkv.scheduler.micro_batch_scheduler import MicroBatchScheduler, MicroBatchScheduleResult

if TYPE_CHECKING:
    from trtkv.manager.kv_cache_manager import KVCacheManager
    from trtkv.replay.scheduler_loop.loop_config import LoopConfig
    from trtkv.traces.trace import TraceRequest


class LoopBackend(Protocol):
    """Makes requests, schedules them and gives them blocks. All changes of requests go through it or the requests."""

    @property
    def manager(self) -> KVCacheManager:
        """The manager, to be read only."""
        ...

    @property
    def resources(self) -> KVCacheResourceManager:
        """Prepares, settles and frees."""
        ...

    @property
    def num_deferred_requests(self) -> int:
        """Requests that the last capacity schedule held back for a common prefix."""
        ...

    def new_request(self, trace_request: TraceRequest, num_new_tokens: int) -> LlmRequest:
        """A request at the start of its prompt."""
        ...

    def drop_request(self, request: LlmRequest) -> None:
        """Forget a finished request."""
        ...

    def schedule_capacity(self, active: Sequence[LlmRequest]) -> CapacityScheduleResult:
        """Choose by blocks."""
        ...

    def schedule_micro_batch(self, fitting: Sequence[LlmRequest]) -> MicroBatchScheduleResult:
        """Choose by tokens, and set chunks."""
        ...

    def set_time(self, now_ns: int) -> None:
        """Move the manager's clock on."""
        ...


class LoopClock:
    """A clock that shows what it is set to."""

    __slots__ = ("now_ns",)

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        """Nanoseconds."""
        return self.now_ns


class DirectBackend:
    """Manager and schedulers as they are."""

    def __init__(self, config: LoopConfig, requests: Sequence[TraceRequest]) -> None:
        compatibility = config.cache.compatibility
        self._clock = LoopClock()
        self._config = config
        self._manager = config.cache.build_manager(requests, self._clock)
        self._resources = KVCacheResourceManager(
            self._manager,
            max_num_tokens=config.max_num_tokens,
            enable_chunked_prefill=config.chunking is not None,
        )
        self._capacity_scheduler = CapacityScheduler(config.max_batch_size, config.policy, compatibility=compatibility)
        self._micro_batch_scheduler = MicroBatchScheduler(config.chunking, compatibility=compatibility)

    @property
    def manager(self) -> KVCacheManager:
        """The manager."""
        return self._manager

    @property
    def resources(self) -> KVCacheResourceManager:
        """The resource manager around it."""
        return self._resources

    @property
    def num_deferred_requests(self) -> int:
        """Requests that the last capacity schedule held back for a common prefix."""
        return self._capacity_scheduler.num_deferred_requests

    def new_request(self, trace_request: TraceRequest, num_new_tokens: int) -> LlmRequest:
        """A request at the start of its prompt."""
        return make_llm_request(trace_request, num_new_tokens)

    def drop_request(self, request: LlmRequest) -> None:
        """Nothing to forget."""

    def schedule_capacity(self, active: Sequence[LlmRequest]) -> CapacityScheduleResult:
        """Choose by blocks."""
        return self._capacity_scheduler.schedule(active, self._manager)

    def schedule_micro_batch(self, fitting: Sequence[LlmRequest]) -> MicroBatchScheduleResult:
        """Choose by tokens, and set chunks."""
        config = self._config
        return self._micro_batch_scheduler.schedule(fitting, (), config.max_batch_size, config.max_num_tokens)

    def set_time(self, now_ns: int) -> None:
        """Set the manager's clock."""
        self._clock.now_ns = now_ns
