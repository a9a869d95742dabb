"""Holding back requests whose next missing block another request of the same step is about to compute."""

from __future__ import annotations

from collections.abc import Iterable

from trtkv.common import RequestId
from trtkv.records.llm_request import LlmRequest
from trtkv.records.window_size_metadata import PrefixReuseSummary
from trtkv.scheduler.budget_protocols import KvCacheBudget


class PrefixSummaries:
    """Prefix summaries of one manager, each taken once per request and scheduling call.

    Only a context request on its first chunk has one, with reuse on and a single window.
    """

    def __init__(self, kv_cache_manager: KvCacheBudget | None) -> None:
        usable = kv_cache_manager is not None and kv_cache_manager.enable_block_reuse
        self._kv_cache_manager = kv_cache_manager if usable else None
        self._summaries: dict[RequestId, PrefixReuseSummary] = {}

    def take(self, request: LlmRequest) -> PrefixReuseSummary | None:
        """Summary of a request that starts its context, or None."""
        if self._kv_cache_manager is None or self._kv_cache_manager.is_variable_window:
            return None
        if not (request.is_context_init_state and request.is_first_context_chunk):
            return None
        summary = self._summaries.get(request.request_id)
        if summary is None:
            summary = self.walk(request)
            if summary is not None:
                self._summaries[request.request_id] = summary
        return summary

    def forget(self) -> None:
        """Take summaries anew: what is held has changed."""
        self._summaries.clear()

    def walk(self, request: LlmRequest) -> PrefixReuseSummary | None:
        """Summary of any request; None without reuse or when there are no tokens to look up."""
        return None if self._kv_cache_manager is None else self._look_up(request, self._kv_cache_manager)

    def _look_up(self, request: LlmRequest, kv_cache_manager: KvCacheBudget) -> PrefixReuseSummary | None:
        return kv_cache_manager.analyze_prefix_reuse(request)


class EncoderPrefixSummaries(PrefixSummaries):
    """Summaries of a cross cache, which looks up encoder tokens; a request without them has none."""

    def _look_up(self, request: LlmRequest, kv_cache_manager: KvCacheBudget) -> PrefixReuseSummary | None:
        if request.encoder_tokens is None:
            return None
        return kv_cache_manager.analyze_prefix_reuse(request, request.encoder_tokens)


class PrefixDeferral:
    """First missing blocks that requests of this step contribute, in the self and the cross cache."""

    def __init__(self, self_summaries: PrefixSummaries, cross_summaries: PrefixSummaries | None = None) -> None:
        self._self_summaries = self_summaries
        self._cross_summaries = cross_summaries
        self._contributed: set[object] = set()
        self._cross_contributed: set[object] = set()
        self._num_skipped = 0

    @property
    def num_skipped(self) -> int:
        """How often a request was found worth skipping."""
        return self._num_skipped

    def add_started_contexts(self, requests: Iterable[LlmRequest]) -> None:
        """Register every request between two chunks, wherever it stands: its blocks are on their way."""
        for request in requests:
            if request.is_context_init_state and not request.is_first_context_chunk:
                cross = None if self._cross_summaries is None else self._cross_summaries.walk(request)
                self.register(self._self_summaries.walk(request), cross)

    def is_beneficial_to_skip(
        self, summary: PrefixReuseSummary | None, cross_summary: PrefixReuseSummary | None = None
    ) -> bool:
        """Whether the first missing block of a request is among the contributed ones."""
        is_contributed = _first_new_block(summary) in self._contributed or (
            _first_new_block(cross_summary) in self._cross_contributed
        )
        self._num_skipped += is_contributed
        return is_contributed

    def register(self, summary: PrefixReuseSummary | None, cross_summary: PrefixReuseSummary | None = None) -> None:
        """Add the first missing block of a request that will compute it."""
        _add(self._contributed, summary)
        _add(self._cross_contributed, cross_summary)


def _first_new_block(summary: PrefixReuseSummary | None) -> object:
    return None if summary is None else summary.first_new_block


def _add(contributed: set[object], summary: PrefixReuseSummary | None) -> None:
    first_new_block = _first_new_block(summary)
    if first_new_block is not None:
        contributed.add(first_new_block)
