"""Admission as recorded."""

from __future__ import annotations

from collections.abc import Sequence

from trtkv.blocks.generation_request import GenerationRequest
from trtkv.common import MAX_INT32
from trtkv.errors import InvalidInputError
from trtkv.manager.sequence_admission import RequestInfo, SequenceAdmission
from trtkv.records.llm_request import LlmRequest
from trtkv.window_block_manager.loading import BatchSeqStats


class RecordedSequenceAdmission(SequenceAdmission):
    """Plans nothing ahead: each window is asked at its turn, and what is done before a failure stays.

    The length found by encoder tokens is written as well.
    """

    def _tells_of_prompts(self) -> bool:
        return True

    def add_batch(self, request_infos: Sequence[RequestInfo], llm_requests: Sequence[LlmRequest]) -> None:
        """Give every request a sequence, and tell it how much of its prompt is cached."""
        batch = list(zip(request_infos, llm_requests, strict=True))
        sequences = [self._create_sequence(info, request) for info, request in batch]
        self._tell_listener(request_infos, llm_requests, [MAX_INT32] * len(batch))
        totals: list[list[BatchSeqStats]] = [[] for _ in sequences]
        for window_size, manager in self._widest_first:
            limits = [sequence.current_prepopulated_prompt_len for sequence in sequences]
            claims = self._plan_window(window_size, manager, batch, limits)
            stats = manager.loader.add_sequence_batch(sequences, claims, self._enable_block_reuse)
            for total, entry in zip(totals, stats, strict=True):
                total.append(entry)
        for request, total in zip(llm_requests, totals, strict=True):
            length = min(entry.prepopulated_len for entry in total)
            if self._enable_block_reuse:
                length += self._num_connector_tokens(request, length)
            self._finish(request, total, length)

    def probe(self, request: LlmRequest) -> int:
        """Nothing is refused."""
        _, limits = self.find_cached([(request.request_id, request.prompt_len, request.beam_width)], [request])
        return limits[0]

    def _create_sequence(self, info: RequestInfo, request: LlmRequest) -> GenerationRequest:
        self._check_new(info[0])
        return super()._create_sequence(info, request)

    def _write_prepopulated(self, request: LlmRequest, length: int) -> None:
        write_prepopulated_as_recorded(request, length, self._tokens_per_block)


def write_prepopulated_as_recorded(request: LlmRequest, length: int, tokens_per_block: int) -> None:
    """Record a cache match; one that the chunk does not suit leaves length and position written when it fails."""
    try:
        request.set_prepopulated_prompt_len(length, tokens_per_block)
    except InvalidInputError:
        if length < request.prompt_len:
            request._prepopulated_prompt_len = length
            if request.has_context_chunk:
                request.set_context_current_position(length)
        raise
