"""Chooses the requests whose cache blocks fit: the front of all capacity policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trtkv.checks import check_count, check_member
from trtkv.errors import ConfigurationError, InvalidInputError
from trtkv.records.llm_request import LlmRequest, LlmRequestState
from trtkv.scheduler.base_capacity_scheduler import BaseCapacityScheduler, ScheduleInput, StateLimits, make_state_limits
from trtkv.scheduler.behaviour import choose_classes
from trtkv.scheduler.budget_protocols import BasePeftCacheManager, KvCacheBudget
from trtkv.scheduler.max_requests_scheduler import MaxRequestsScheduler
from trtkv.scheduler.request_fit import check_blocks_can_ever_fit, check_pages_can_ever_fit
from trtkv.scheduler.scheduler_config import CapacitySchedulerPolicy


class CapacityScheduleResult(NamedTuple):
    """Requests that may run, those that only wait for a remote prompt, and those to be paused."""

    fitting_requests: list[LlmRequest]
    fitting_disagg_gen_init_requests: list[LlmRequest]
    paused_requests: list[LlmRequest]
    """Started requests to remove from the manager and restart, the last one of the list first."""


class CapacityScheduler:
    """Decides by cache blocks and adapter pages which active requests take part in the next step.

    ``max_num_requests``: limit of admitted requests. ``has_kv_cache_manager`` False admits by that limit
    alone. ``two_steps_look_ahead`` reserves blocks of two steps of a generating request (max_utilization).
    Requests below ``no_schedule_until_state`` or from ``no_schedule_after_state`` on are passed over.
    ``compatibility`` reproduces recorded decisions, faults included (docs/decisions/0201 to 0203).
    """

    def __init__(
        self,
        max_num_requests: int,
        policy: CapacitySchedulerPolicy,
        has_kv_cache_manager: bool = True,
        two_steps_look_ahead: bool = False,
        no_schedule_until_state: LlmRequestState = LlmRequestState.CONTEXT_INIT,
        no_schedule_after_state: LlmRequestState = LlmRequestState.GENERATION_COMPLETE,
        *,
        compatibility: bool = False,
    ) -> None:
        self._max_num_requests = check_count("max_num_requests", max_num_requests, 1, error=ConfigurationError)
        self._policy = check_member("policy", policy, CapacitySchedulerPolicy, error=ConfigurationError)
        self._has_kv_cache_manager = has_kv_cache_manager
        self._two_steps_look_ahead = two_steps_look_ahead
        limits = make_state_limits(no_schedule_until_state, no_schedule_after_state)
        self._scheduler = self._build_scheduler(limits, compatibility)

    def _build_scheduler(self, limits: StateLimits, compatibility: bool) -> BaseCapacityScheduler:
        if not self._has_kv_cache_manager:
            return MaxRequestsScheduler(self._max_num_requests, limits)
        classes = choose_classes(compatibility)
        if self._policy is CapacitySchedulerPolicy.MAX_UTILIZATION:
            return classes.max_utilization(self._max_num_requests, self._two_steps_look_ahead, limits)
        if self._policy is CapacitySchedulerPolicy.GUARANTEED_NO_EVICT:
            return classes.guaranteed_no_evict(self._max_num_requests, limits)
        return classes.static_batch(self._max_num_requests, limits)

    @property
    def policy(self) -> CapacitySchedulerPolicy:
        """The policy; without meaning when there is no cache manager."""
        return self._policy

    @property
    def max_num_requests(self) -> int:
        """Limit of admitted requests."""
        return self._max_num_requests

    @property
    def num_deferred_requests(self) -> int:
        """Requests that the last call held back because another one is about to compute their next block."""
        return self._scheduler.num_deferred_requests

    def schedule(
        self,
        active_requests: Sequence[LlmRequest],
        kv_cache_manager: KvCacheBudget | None = None,
        peft_cache_manager: BasePeftCacheManager | None = None,
        cross_kv_cache_manager: KvCacheBudget | None = None,
    ) -> CapacityScheduleResult:
        """Choose among the active requests, oldest first.

        Changes the estimate of reusable tokens of the requests it sizes and, with max_utilization, the
        manager's scheduling simulation; no state and no block. The cross manager is not looked at by
        max_utilization. The caller removes and pauses the paused requests. C++: CapacityScheduler::operator().
        """
        if self._has_kv_cache_manager and kv_cache_manager is None:
            raise InvalidInputError(f"policy {self._policy.value} needs a kv_cache_manager; pass the one in use")
        scheduled, paused = self._scheduler.schedule(
            ScheduleInput(active_requests, kv_cache_manager, peft_cache_manager, cross_kv_cache_manager)
        )
        return CapacityScheduleResult(
            [request for request in scheduled if not request.is_disagg_generation_init_state],
            [request for request in scheduled if request.is_disagg_generation_init_state],
            paused,
        )

    def check_can_ever_fit(
        self,
        request: LlmRequest,
        kv_cache_manager: KvCacheBudget,
        peft_cache_manager: BasePeftCacheManager | None = None,
        cross_kv_cache_manager: KvCacheBudget | None = None,
    ) -> None:
        """Raise OutOfBlocksError, with the numbers, for a request that the empty pools could not serve.

        To be called once when a request arrives: such a request would wait for ever, or be paused and
        restarted for ever. Looks at the whole prompt and all new tokens; changes nothing.
        """
        is_max_utilization = self._policy is CapacitySchedulerPolicy.MAX_UTILIZATION
        num_steps = 2 if is_max_utilization and self._two_steps_look_ahead else 1
        check_blocks_can_ever_fit(request, kv_cache_manager, num_steps, to_completion=not is_max_utilization)
        if cross_kv_cache_manager is not None:
            check_blocks_can_ever_fit(request, cross_kv_cache_manager, num_steps, to_completion=not is_max_utilization)
        if peft_cache_manager is not None:
            check_pages_can_ever_fit(request, peft_cache_manager)
