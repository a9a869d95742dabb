"""Policies that admit a request only when all its blocks up to completion are free."""

from __future__ import annotations

from collections.abc import Iterable

from trtkv.common import RequestId
from trtkv.records.llm_request import LlmRequest
from trtkv.scheduler.base_capacity_scheduler import (
    BaseCapacityScheduler,
    ScheduleInput,
    StateLimits,
    is_started_context,
)
from trtkv.scheduler.peft_budget import PeftBudget
from trtkv.scheduler.prefix_deferral import PrefixDeferral, PrefixSummaries
from trtkv.scheduler.scheduled_blocks_manager import NoEvictScheduledBlocksManager


class GuaranteedNoEvictScheduler(BaseCapacityScheduler):
    """Running requests first, with their blocks to completion reserved; then new ones while blocks last.

    Nobody is ever paused. Results: running requests, then those waiting for a remote prompt, then
    contexts, each in input order. A request between two chunks counts as running; in compatibility
    mode it queues with the new ones and can be held back by one of them.
    """

    _is_static_batch = False

    def __init__(self, max_num_requests: int, limits: StateLimits, *, compatibility: bool = False) -> None:
        super().__init__(max_num_requests, limits)
        self._compatibility = compatibility

    def schedule(self, call: ScheduleInput) -> tuple[list[LlmRequest], list[LlmRequest]]:
        """Scheduled requests; the second list is always empty. Writes estimates of reusable tokens."""
        admission = _Admission(self._max_num_requests, call, self._is_static_batch, self._compatibility)
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
        if request.is_generation_in_progress_state:
            return True
        return is_started_context(request) and not self._compatibility


class StaticBatchScheduler(GuaranteedNoEvictScheduler):
    """Admits new requests only when nothing is running, and never holds one back for a common prefix.

    Requests admitted together form a batch: those that found no tokens in its first steps still belong to it.
    In compatibility mode they wait until the batch has ended.
    """

    _is_static_batch = True

    def __init__(self, max_num_requests: int, limits: StateLimits, *, compatibility: bool = False) -> None:
        super().__init__(max_num_requests, limits, compatibility=compatibility)
        self._members: set[RequestId] = set()

    def _select_pending(self, requests: list[LlmRequest], is_running: bool) -> list[LlmRequest]:
        if not is_running:
            return requests
        return [request for request in requests if request.request_id in self._members]

    def _note_admitted(self, requests: Iterable[LlmRequest], is_running: bool) -> None:
        if not (is_running or self._compatibility):
            self._members = {request.request_id for request in requests}


class _Admission:
    """Totals of one scheduling call."""

    def __init__(self, max_num_requests: int, call: ScheduleInput, is_static_batch: bool, compatibility: bool) -> None:
        manager = call.require_kv_cache_manager()
        cross = call.cross_kv_cache_manager
        self.scheduled: list[LlmRequest] = []
        self._max_num_requests = max_num_requests
        self._compatibility = compatibility
        self._reserved = [NoEvictScheduledBlocksManager(manager, compatibility=compatibility)]
        if cross is not None:
            self._reserved.append(NoEvictScheduledBlocksManager(cross, compatibility=compatibility))
        self._peft = PeftBudget(call.peft_cache_manager, compatibility=compatibility)
        self._summaries = [
            PrefixSummaries(manager),
            PrefixSummaries(cross, by_encoder=True, compatibility=compatibility),
        ]
        has_single_windows = not manager.is_variable_window and (cross is None or not cross.is_variable_window)
        self._skipping_is_relevant = has_single_windows and not is_static_batch
        self._deferral = PrefixDeferral(*self._summaries)
        if self._skipping_is_relevant:
            self._deferral.add_started_contexts(call.active_requests)

    @property
    def num_deferred(self) -> int:
        """Requests held back for a common prefix."""
        return self._deferral.num_skipped

    @property
    def is_full(self) -> bool:
        """Whether no further request may be admitted."""
        return len(self.scheduled) >= self._max_num_requests

    def add_running(self, request: LlmRequest) -> None:
        """Schedule a request that holds blocks already, and reserve the rest, free or not."""
        self.scheduled.append(request)
        for blocks in self._reserved:
            blocks.enough_available_blocks(request)
            blocks.commit_blocks()
        self._peft.charge(request, self._peft.count_new_pages(request))

    def add_pending(self, requests: Iterable[LlmRequest]) -> None:
        """Admit requests in order until one finds too few blocks; one that only lacks pages is passed over."""
        for request in requests:
            summary, cross_summary = (summaries.take(request) for summaries in self._summaries)
            if self._skipping_is_relevant and self._deferral.is_beneficial_to_skip(summary, cross_summary):
                continue
            if self._compatibility:
                self._deferral.register(summary, cross_summary)
            if self.is_full:
                return
            if not (request.is_context_init_state or request.is_disagg_generation_init_state):
                continue
            fits = [
                blocks.enough_available_blocks(request, cached)
                for blocks, cached in zip(self._reserved, (summary, cross_summary), strict=False)
            ]
            num_pages = self._peft.count_new_pages(request)
            if not all(fits):
                return
            if self._peft.has_room(num_pages):
                self._admit(request, num_pages)
                self._deferral.register(summary, cross_summary)

    def _admit(self, request: LlmRequest, num_pages: int) -> None:
        self.scheduled.append(request)
        for blocks in self._reserved:
            blocks.commit_blocks()
        self._peft.charge(request, num_pages)
