"""max_utilization as recorded: any failure pauses."""

from __future__ import annotations

from trtkv.scheduler.max_utilization_scheduler import MaxUtilizationScheduler
from trtkv.scheduler.utilization_pass import UtilizationPass


class RecordedUtilizationPass(UtilizationPass):
    """A pass in which any failure pauses a started request, whether that helps or not."""

    def run(self) -> None:
        """Admit requests in order, each with its blocks and pages, pausing started ones from the back."""
        index = 0
        while index < self._end:
            request = self._requests[index]
            if not self._limits.consider(request) or self._is_deferred(request):
                index += 1
                continue
            self._deferral.register(self._summaries.take(request))
            if not self._is_full and self._try_scheduling(request):
                index += 1
            elif not self._pause_last_started(index):
                return

    def _note_pauses(self) -> None:
        """They count as held, and as free."""

    def _add_started_contexts(self) -> None:
        self._deferral.add_started_contexts(self._requests)


class RecordedMaxUtilizationScheduler(MaxUtilizationScheduler):
    """max_utilization by such passes."""

    _pass_class = RecordedUtilizationPass
