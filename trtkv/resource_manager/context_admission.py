"""ContextAdmission: the first chunks of a batch get their sequences, or wait."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

from trtkv.common import RequestId
from trtkv.errors import InvalidInputError, OutOfBlocksError
from trtkv.manager.kv_cache_manager import KVCacheManager, RequestInfo
from trtkv.records.llm_request import LlmRequest
from trtkv.scheduler.scheduled_requests import ScheduledRequests


class ContextAdmission:
    """Adds sequences to a manager, with ``num_extra_kv_tokens`` and the drafts of a request behind its prompt."""

    _holds_window: ClassVar[bool] = True
    """Whether sliding windows stay where they are while the front of a prompt is still to be computed."""

    def __init__(self, kv_cache_manager: KVCacheManager, num_extra_kv_tokens: int) -> None:
        self._manager = kv_cache_manager
        self._num_extra_kv_tokens = num_extra_kv_tokens
        self.num_draft_tokens: dict[RequestId, int] = {}
        """Slots of drafts behind prompts whose last chunk is not settled, by request."""

    def admit(self, batch: ScheduledRequests, has_sequence: Collection[RequestId]) -> None:
        """Admit the first chunks of a batch; those that find no room move to its deferred requests.

        Raises OutOfBlocksError when that leaves the batch empty.
        """
        new_requests = [
            r for r in batch.context_requests if r.is_first_context_chunk and r.request_id not in has_sequence
        ]
        if not new_requests:
            return
        error = self._add_at_once(new_requests)
        is_added = error is None
        for request in new_requests:
            try:
                if not is_added:
                    self._manager.add_sequence(self.request_info(request), request)
                self._add_tokens_behind(request)
            except OutOfBlocksError as caught:
                self._withdraw(request)
                batch.deferred_requests.append(request)
                error = error or caught
        deferred = {request.request_id for request in batch.deferred_requests}
        batch.reset_context_requests(r for r in batch.context_requests if r.request_id not in deferred)
        if error is not None and not batch.batch_size:
            raise error

    def request_info(self, request: LlmRequest) -> RequestInfo:
        """What the manager is told of a new request."""
        if not self._manager.cross_kv:
            return request.request_id, request.prompt_len, request.beam_width
        if request.encoder_output_len < 1:
            raise InvalidInputError(
                f"request {request.request_id} has no encoder output; a cross cache needs its length"
            )
        return request.request_id, request.encoder_output_len, 1

    def _add_at_once(self, requests: Sequence[LlmRequest]) -> OutOfBlocksError | None:
        """Add all sequences, or none and return why."""
        try:
            self._add_batch(requests)
        except OutOfBlocksError as error:
            return error
        return None

    def _add_batch(self, requests: Sequence[LlmRequest]) -> None:
        self._manager.add_sequence_batch([self.request_info(request) for request in requests], requests)

    def _add_tokens_behind(self, request: LlmRequest) -> None:
        """Slots behind a new prompt: the extra ones, and those of drafts until the last chunk is settled."""
        if self._manager.cross_kv:
            return
        self._manager.get_sequence(request.request_id).holds_window = self._holds_window
        num_drafts = self._manager.get_num_step_drafts(request, request.num_draft_tokens)
        num_tokens = self._num_extra_kv_tokens + num_drafts
        check_drafts(request, num_tokens - 1)
        for _ in range(num_tokens):
            self._manager.add_token(request.request_id)
        if num_drafts:
            self.num_draft_tokens[request.request_id] = num_drafts
        drop_drafts(request, num_drafts)

    def _withdraw(self, request: LlmRequest) -> None:
        """Undo the admission of a request that has computed nothing yet."""
        if request.request_id in self._manager.sequences:
            self._manager.remove_sequence(request.request_id)
            request.set_context_current_position(0)
            request.set_prepopulated_prompt_len(0, self._manager.tokens_per_block)
            request.set_context_chunk_size(request.prompt_len)


def drop_drafts(request: LlmRequest, num_drafts: int) -> None:
    """Leave a request no more drafts than slots were prepared for."""
    if request.num_draft_tokens > num_drafts:
        request.discard_draft_tokens(request.num_draft_tokens - num_drafts)


def check_drafts(request: LlmRequest, num_drafts: int) -> None:
    """Raise for drafts of several beams."""
    if num_drafts > 0 and request.beam_width > 1:
        raise InvalidInputError(
            f"request {request.request_id} has {request.beam_width} beams and drafts; drafts need one beam"
        )
