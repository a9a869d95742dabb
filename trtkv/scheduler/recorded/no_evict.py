"""guaranteed_no_evict and static_batch as recorded."""

from __future__ import annotations

from collections.abc import Iterable

from trtkv.errors import InvalidInputError
from trtkv.records.llm_request import LlmRequest
from trtkv.records.window_size_metadata import PrefixReuseSummary
from trtkv.scheduler.budget_protocols import KvCacheBudget
from trtkv.scheduler.guaranteed_no_evict_scheduler import GuaranteedNoEvictScheduler, StaticBatchScheduler
from trtkv.scheduler.no_evict_admission import NoEvictAdmission
from trtkv.scheduler.peft_budget import PeftBudget
from trtkv.scheduler.prefix_deferral import EncoderPrefixSummaries
from trtkv.scheduler.scheduled_blocks_manager import NoEvictScheduledBlocksManager


class RecordedPeftBudget(PeftBudget):
    """An overdrawn budget refuses requests without adapter as well."""

    def has_room(self, num_pages: int) -> bool:
        """Whether that many pages, or none, can be added."""
        return self._peft_cache_manager is None or num_pages <= self._available_pages


class RecordedNoEvictScheduledBlocksManager(NoEvictScheduledBlocksManager):
    """A negative balance refuses even a request that needs no block."""

    def _suffices(self, available: int, needed: int) -> bool:
        return needed <= available


class RecordedEncoderPrefixSummaries(EncoderPrefixSummaries):
    """A request without encoder tokens is an error."""

    def _look_up(self, request: LlmRequest, kv_cache_manager: KvCacheBudget) -> PrefixReuseSummary | None:
        if request.encoder_tokens is None:
            raise InvalidInputError(f"request {request.request_id} has no encoder tokens to look up; give them")
        return super()._look_up(request, kv_cache_manager)


class RecordedNoEvictAdmission(NoEvictAdmission):
    """A request holds others back even when it is not admitted itself."""

    _blocks_class = RecordedNoEvictScheduledBlocksManager
    _encoder_summaries_class = RecordedEncoderPrefixSummaries
    _peft_class = RecordedPeftBudget

    def _note_considered(self, summary: PrefixReuseSummary | None, cross_summary: PrefixReuseSummary | None) -> None:
        self._deferral.register(summary, cross_summary)


class RecordedGuaranteedNoEvictScheduler(GuaranteedNoEvictScheduler):
    """A request between two chunks queues with the new ones and can be held back by one of them."""

    _admission_class = RecordedNoEvictAdmission

    def _is_running(self, request: LlmRequest) -> bool:
        return request.is_generation_in_progress_state


class RecordedStaticBatchScheduler(RecordedGuaranteedNoEvictScheduler, StaticBatchScheduler):
    """Requests of a batch that found no tokens in its first steps wait until it has ended."""

    def _note_admitted(self, requests: Iterable[LlmRequest], is_running: bool) -> None:
        pass
