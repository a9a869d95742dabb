"""Policy that fills the cache and pauses started requests, the last ones first, when blocks run out."""

from __future__ import annotations

from typing import ClassVar

from trtkv.records.llm_request import LlmRequest
from trtkv.scheduler.base_capacity_scheduler import BaseCapacityScheduler, ScheduleInput, StateLimits
from trtkv.scheduler.utilization_pass import UtilizationPass


class MaxUtilizationScheduler(BaseCapacityScheduler):
    """One pass in input order; a request is admitted if the blocks of its next step are free.

    When blocks are short the last started request behind (or the request itself) is paused in the
    simulation, and everything behind that one is out of consideration. A new request pauses others only
    when that really makes room for it; adapter pages and the request limit never pause anybody.
    """

    _pass_class: ClassVar[type[UtilizationPass]] = UtilizationPass

    def __init__(self, max_num_requests: int, two_steps_look_ahead: bool, limits: StateLimits) -> None:
        super().__init__(max_num_requests, limits)
        self._two_steps_look_ahead = two_steps_look_ahead

    def schedule(self, call: ScheduleInput) -> tuple[list[LlmRequest], list[LlmRequest]]:
        """Scheduled requests in input order, and paused ones from the back.

        Starts a new scheduling simulation of the manager and writes estimates of reusable tokens.
        """
        schedule_pass = self._pass_class(call, self._max_num_requests, self._two_steps_look_ahead, self._limits)
        schedule_pass.run()
        self._num_deferred_requests = schedule_pass.num_deferred
        return schedule_pass.scheduled, schedule_pass.paused
