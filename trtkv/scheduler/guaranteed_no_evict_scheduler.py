"""Policies that admit a request only when all its blocks up to completion are free."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from trtkv.common import RequestId
from trtkv.records.llm_request import LlmRequest
from trtkv.scheduler.base_capacity_scheduler import (
    BaseCapacityScheduler,
    ScheduleInput,
    StateLimits,
    is_started_context,
)
from trtkv.scheduler.no_evict_admission import NoEvictAdmission


class GuaranteedNoEvictScheduler(BaseCapacityScheduler):
    """Running requests first, with their blocks to completion reserved; then new ones while blocks last.

    Nobody is ever paused. Results: running requests, then those waiting for a remote prompt, then
    contexts, each in input order. A request between two chunks counts as running.
    """

    _admission_class: ClassVar[type[NoEvictAdmission]] = NoEvictAdmission
    _is_static_batch: ClassVar[bool] = False

    def schedule(self, call: ScheduleInput) -> tuple[list[LlmRequest], list[LlmRequest]]:
        """Scheduled requests; the second list is always empty. Writes estimates of reusable tokens."""
        admission = self._admission_class(self._max_num_requests, call, self._is_static_batch)
        pending_disagg: list[LlmRequest] = []
        pending: list[LlmRequest] = []
        for request in call.active_requests:
            if not self._limits.consider(request):
                continue
            if admission.is_full:
                break
            if self._is_running(request):
                admission.add_running(request)
            elif request.is_disagg_generation_init_state:
                pending_disagg.append(request)
            else:
                pending.append(request)
        is_running = bool(admission.scheduled)
        admission.add_pending(self._select_pending(pending_disagg, is_running))
        admission.add_pending(self._select_pending(pending, is_running))
        self._note_admitted(admission.scheduled, is_running)
        self._num_deferred_requests = admission.num_deferred
        return admission.scheduled, []

    def _select_pending(self, requests: list[LlmRequest], is_running: bool) -> list[LlmRequest]:
        """Requests that may be admitted beside running ones, or when nothing runs."""
        return requests

    def _note_admitted(self, requests: Iterable[LlmRequest], is_running: bool) -> None:
        """Called with the result; a static batch remembers its members."""

    def _is_running(self, request: LlmRequest) -> bool:
        return request.is_generation_in_progress_state or is_started_context(request)


class StaticBatchScheduler(GuaranteedNoEvictScheduler):
    """Admits new requests only when nothing is running, and never holds one back for a common prefix.

    Requests admitted together form a batch: those that found no tokens in its first steps still belong to it.
    """

    _is_static_batch = True

    def __init__(self, max_num_requests: int, limits: StateLimits) -> None:
        super().__init__(max_num_requests, limits)
        self._members: set[RequestId] = set()

    def _select_pending(self, requests: list[LlmRequest], is_running: bool) -> list[LlmRequest]:
        if not is_running:
            return requests
        return [request for request in requests if request.request_id in self._members]

    def _note_admitted(self, requests: Iterable[LlmRequest], is_running: bool) -> None:
        if not is_running:
            self._members = {request.request_id for request in requests}
