"""Policy without a cache: admit up to a number of requests."""

from __future__ import annotations

from trtkv.records.llm_request import LlmRequest, LlmRequestState
from trtkv.scheduler.base_capacity_scheduler import BaseCapacityScheduler, ScheduleInput


class MaxRequestsScheduler(BaseCapacityScheduler):
    """Takes encoder, context and generation requests in order, up to a limit; looks at no manager."""

    def schedule(self, call: ScheduleInput) -> tuple[list[LlmRequest], list[LlmRequest]]:
        """Scheduled requests in order; none is paused. Changes nothing."""
        scheduled: list[LlmRequest] = []
        for request in call.active_requests:
            if len(scheduled) >= self._max_num_requests:
                break
            if self._limits.allow(request) and _is_runnable(request):
                scheduled.append(request)
        return scheduled, []


def _is_runnable(request: LlmRequest) -> bool:
    return (
        request.state is LlmRequestState.ENCODER_INIT
        or request.is_context_init_state
        or request.is_generation_in_progress_state
    )
