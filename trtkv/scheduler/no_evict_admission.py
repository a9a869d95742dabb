"""What one call of a policy without evictions admits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from trtkv.records.llm_request import LlmRequest
from trtkv.records.window_size_metadata import PrefixReuseSummary
from trtkv.scheduler.base_capacity_scheduler import ScheduleInput
from trtkv.scheduler.peft_budget import PeftBudget
from trtkv.scheduler.prefix_deferral import EncoderPrefixSummaries, PrefixDeferral, PrefixSummaries
from trtkv.scheduler.scheduled_blocks_manager import NoEvictScheduledBlocksManager


class NoEvictAdmission:
    """What one scheduling call has admitted, and what that leaves free."""

    _blocks_class: ClassVar[type[NoEvictScheduledBlocksManager]] = NoEvictScheduledBlocksManager
    _encoder_summaries_class: ClassVar[type[EncoderPrefixSummaries]] = EncoderPrefixSummaries
    _peft_class: ClassVar[type[PeftBudget]] = PeftBudget

    def __init__(self, max_num_requests: int, call: ScheduleInput, is_static_batch: bool) -> None:
        manager = call.require_kv_cache_manager()
        cross = call.cross_kv_cache_manager
        self.scheduled: list[LlmRequest] = []
        self._max_num_requests = max_num_requests
        self._reserved = [self._blocks_class(cache) for cache in (manager, cross) if cache is not None]
        self._peft = self._peft_class(call.peft_cache_manager)
        self._summaries = [PrefixSummaries(manager), self._encoder_summaries_class(cross)]
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
            self._note_considered(summary, cross_summary)
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

    def _note_considered(self, summary: PrefixReuseSummary | None, cross_summary: PrefixReuseSummary | None) -> None:
        """Called for each request that is not held back, before its blocks are looked at."""

    def _admit(self, request: LlmRequest, num_pages: int) -> None:
        self.scheduled.append(request)
        for blocks in self._reserved:
            blocks.commit_blocks()
        self._peft.charge(request, num_pages)
