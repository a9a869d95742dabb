"""What all capacity policies share: input, state limits and the interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from trtkv.checks import check_member
from trtkv.errors import ConfigurationError, LogicError
from trtkv.records.llm_request import LlmRequest, LlmRequestState
from trtkv.scheduler.budget_protocols import BasePeftCacheManager, KvCacheBudget


class ScheduleInput(NamedTuple):
    """One call: active requests in order, and the managers whose room is shared out."""

    active_requests: Sequence[LlmRequest]
    kv_cache_manager: KvCacheBudget | None
    peft_cache_manager: BasePeftCacheManager | None = None
    cross_kv_cache_manager: KvCacheBudget | None = None

    def require_kv_cache_manager(self) -> KvCacheBudget:
        """The cache manager; its absence is refused before a policy is called."""
        if self.kv_cache_manager is None:
            raise LogicError("a cache policy was called without a cache manager")
        return self.kv_cache_manager


class StateLimits(NamedTuple):
    """States a request must have reached, and must not have reached, to be scheduled."""

    no_schedule_until_state: LlmRequestState
    no_schedule_after_state: LlmRequestState

    def allow(self, request: LlmRequest) -> bool:
        """Whether the state of a request lies within the limits."""
        return self.no_schedule_until_state <= request.state < self.no_schedule_after_state

    def consider(self, request: LlmRequest) -> bool:
        """As allow, but a request that waits for a remote prompt always counts: its blocks are needed first."""
        return request.is_disagg_generation_init_state or self.allow(request)


def make_state_limits(until: LlmRequestState, after: LlmRequestState) -> StateLimits:
    """Limits from states or their numbers; ConfigurationError for anything else."""
    return StateLimits(
        check_member("no_schedule_until_state", until, LlmRequestState, error=ConfigurationError),
        check_member("no_schedule_after_state", after, LlmRequestState, error=ConfigurationError),
    )


def is_started_context(request: LlmRequest) -> bool:
    """Whether a request is between two chunks of its prompt."""
    return request.is_context_init_state and not request.is_first_context_chunk


class BaseCapacityScheduler(ABC):
    """One way to choose requests, up to a number of them."""

    def __init__(self, max_num_requests: int, limits: StateLimits) -> None:
        self._max_num_requests = max_num_requests
        self._limits = limits
        self._num_deferred_requests = 0

    @property
    def num_deferred_requests(self) -> int:
        """Requests that the last call held back because another one is about to compute their next block."""
        return self._num_deferred_requests

    @property
    def no_schedule_until_state(self) -> LlmRequestState:
        """Requests below this state are passed over."""
        return self._limits.no_schedule_until_state

    @property
    def no_schedule_after_state(self) -> LlmRequestState:
        """Requests in this state or a later one are passed over."""
        return self._limits.no_schedule_after_state

    @abstractmethod
    def schedule(self, call: ScheduleInput) -> tuple[list[LlmRequest], list[LlmRequest]]:
        """Scheduled requests and paused ones."""
