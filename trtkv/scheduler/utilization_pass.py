"""One pass of max_utilization over the active requests."""

from __future__ import annotations

from trtkv.records.llm_request import LlmRequest
from trtkv.scheduler.base_capacity_scheduler import ScheduleInput, StateLimits, is_started_context
from trtkv.scheduler.peft_budget import PeftBudget
from trtkv.scheduler.prefix_deferral import PrefixDeferral, PrefixSummaries
from trtkv.scheduler.scheduled_blocks_manager import MaxUtilizationScheduledBlocksManager


class UtilizationPass:
    """Position, totals and results of one scheduling call of max_utilization."""

    def __init__(
        self, call: ScheduleInput, max_num_requests: int, two_steps_look_ahead: bool, limits: StateLimits
    ) -> None:
        self.scheduled: list[LlmRequest] = []
        self.paused: list[LlmRequest] = []
        self._requests = call.active_requests
        self._manager = call.require_kv_cache_manager()
        self._max_num_requests = max_num_requests
        self._limits = limits
        self._end = len(self._requests)
        self._manager.start_scheduling()
        self._blocks = MaxUtilizationScheduledBlocksManager(self._manager, two_steps_look_ahead)
        self._peft = PeftBudget(call.peft_cache_manager)
        self._summaries = PrefixSummaries(self._manager)
        self._deferral = PrefixDeferral(self._summaries)
        self._skipping_is_relevant = not self._manager.is_variable_window
        self._add_started_contexts()

    @property
    def num_deferred(self) -> int:
        """Requests held back for a common prefix."""
        return self._deferral.num_skipped

    @property
    def _is_full(self) -> bool:
        return len(self.scheduled) >= self._max_num_requests

    def run(self) -> None:
        """Admit started requests while blocks last, new ones while the requests before them fit."""
        index = 0
        new_requests_wait = False
        while index < self._end and not self._is_full:
            request = self._requests[index]
            if not self._limits.consider(request):
                index += 1
            elif self._is_started(request):
                if self._has_pages(request) and not self._try_scheduling(request):
                    if not self._pause_last_started(index):
                        return
                    continue
                index += 1
            else:
                if not new_requests_wait and not self._is_deferred(request) and self._has_pages(request):
                    new_requests_wait = not self._try_making_room(request, index)
                index += 1

    def _add_started_contexts(self) -> None:
        if self._skipping_is_relevant:
            self._deferral.add_started_contexts(self._requests)

    def _is_started(self, request: LlmRequest) -> bool:
        """Whether a request holds blocks that a pause would free."""
        return self._limits.allow(request) and (is_started_context(request) or request.is_generation_in_progress_state)

    def _is_deferred(self, request: LlmRequest) -> bool:
        summary = self._summaries.take(request)
        return self._skipping_is_relevant and self._deferral.is_beneficial_to_skip(summary)

    def _has_pages(self, request: LlmRequest) -> bool:
        return self._peft.has_room(self._peft.count_new_pages(request))

    def _try_scheduling(self, request: LlmRequest) -> bool:
        num_pages = self._peft.count_new_pages(request)
        num_blocks = self._blocks.prepare_new_number_of_blocks_if_we_end_up_scheduling(
            request, self._summaries.take(request)
        )
        if num_blocks is None or not self._peft.has_room(num_pages):
            return False
        self._blocks.update_scheduled_blocks(num_blocks)
        self._peft.charge(request, num_pages)
        self.scheduled.append(request)
        return True

    def _try_making_room(self, request: LlmRequest, index: int) -> bool:
        """Schedule a new request, pausing started ones behind it; if even that is not enough, pause none."""
        end, num_paused = self._end, len(self.paused)
        while not self._try_scheduling(request):
            if not self._pause_last_started(index):
                self._undo_pauses(end, num_paused)
                return False
        self._deferral.register(self._summaries.take(request))
        return True

    def _pause_last_started(self, index: int) -> bool:
        """Pause the last started request from ``index`` on and end the pass there; False when there is none."""
        for position in range(self._end - 1, index - 1, -1):
            request = self._requests[position]
            if self._is_started(request):
                self._manager.scheduling_remove_sequence(request.request_id)
                self.paused.append(request)
                self._end = position
                self._note_pauses()
                return True
        return False

    def _undo_pauses(self, end: int, num_paused: int) -> None:
        """Go back to an earlier end of the pass: simulate anew, with only the earlier pauses."""
        if len(self.paused) == num_paused:
            return
        self._end = end
        del self.paused[num_paused:]
        self._manager.start_scheduling()
        for request in self.paused:
            self._manager.scheduling_remove_sequence(request.request_id)
        self._note_pauses()

    def _note_pauses(self) -> None:
        """Blocks that only paused requests hold are free: sharing them saves nothing any more."""
        self._summaries.forget()
