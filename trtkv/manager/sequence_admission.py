"""SequenceAdmission: a batch of prompts is planned in all windows, then placed in all of them or in none."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Protocol

from trtkv.blocks.generation_request import GenerationRequest
from trtkv.checks import check_integer
from trtkv.common import MAX_INT32, CacheType, RequestId, WindowSize
from trtkv.errors import InvalidInputError, OutOfBlocksError
from trtkv.keys.content_check import check_content
from trtkv.manager.block_manager import BlockManager
from trtkv.records.llm_request import LlmRequest
from trtkv.transfers.copy_engine import LostBlockError
from trtkv.window_block_manager import WindowBlockManager
from trtkv.window_block_manager.counters import BlockCounters
from trtkv.window_block_manager.loading import BatchSeqStats
from trtkv.window_block_manager.planning import ClaimResult

_LOGGER: Final = logging.getLogger(__name__)

RequestInfo = tuple[RequestId, int, int]
"""Request id, input length in tokens (encoder length for a cross cache), beam width."""


class KvCacheConnectorManager(Protocol):
    """Loads more of a prompt from elsewhere. C++: KvCacheConnectorManager."""

    def get_num_new_matched_tokens(self, request: LlmRequest, num_computed_tokens: int) -> int:
        """Tokens behind those found here that the connector will fill in."""


class SequenceAdmission:
    """Finds what is cached of prompts and gives them their blocks.

    ``sequences`` is the manager's live map, ``max_num_tokens`` what block tables have columns for. Whoever calls
    holds the manager's lock.
    """

    def __init__(
        self,
        block_manager: BlockManager,
        sequences: dict[RequestId, GenerationRequest],
        connector_manager: KvCacheConnectorManager | None,
        *,
        max_num_tokens: int,
        max_beam_width: int,
        enable_block_reuse: bool,
    ) -> None:
        self._block_manager = block_manager
        self._sequences = sequences
        self._connector_manager = connector_manager
        self._tokens_per_block = block_manager.settings.tokens_per_block
        self._max_num_tokens = max_num_tokens
        self._max_beam_width = max_beam_width
        self._enable_block_reuse = enable_block_reuse
        self._widest_first: list[tuple[WindowSize, WindowBlockManager]] = list(
            reversed(block_manager.window_block_managers.items())
        )
        self._may_depend_on_length = any(
            manager.settings.is_swa or manager.settings.is_recurrent_state for _, manager in self._widest_first
        )
        self._writes_prepopulated = enable_block_reuse and self._tells_of_prompts()

    def _tells_of_prompts(self) -> bool:
        """Whether a match says how much of a prompt is cached; one of encoder tokens does not."""
        return self._block_manager.settings.layers.cache_type is not CacheType.CROSS

    def add_batch(self, request_infos: Sequence[RequestInfo], llm_requests: Sequence[LlmRequest]) -> None:
        """Give every request a sequence, and tell it how much of its prompt is cached.

        Cached blocks whose content is lost leave the tree, and the batch is planned anew without them.
        """
        while not self._try_to_add(request_infos, llm_requests):
            pass

    def _try_to_add(self, request_infos: Sequence[RequestInfo], llm_requests: Sequence[LlmRequest]) -> bool:
        """Add a batch as it is planned; False, with the batch withdrawn, if a block that it found turned out lost."""
        plans, lengths, limits = self._plan_batch(request_infos, llm_requests)
        self._tell_listener(request_infos, llm_requests, limits)
        sequences = [
            self._create_sequence(info, request) for info, request in zip(request_infos, llm_requests, strict=True)
        ]
        try:
            totals = self._place(sequences, plans)
        except LostBlockError as error:
            _LOGGER.warning("a cached block is dropped, and its tokens are computed: %s", error)
            return False
        for request, total, length in zip(llm_requests, totals, lengths, strict=True):
            self._finish(request, total, length)
        return True

    # -- placing --------------------------------------------------------------------------------------

    def _create_sequence(self, info: RequestInfo, request: LlmRequest) -> GenerationRequest:
        request_id, input_length, beam_width = info
        sequence = GenerationRequest(
            request_id,
            input_length,
            beam_width,
            self._block_manager.window_block_managers,
            request.kv_cache_retention_config,
        )
        self._sequences[request_id] = sequence
        return sequence

    def _place(
        self, sequences: Sequence[GenerationRequest], plans: Sequence[list[ClaimResult]]
    ) -> list[list[BatchSeqStats]]:
        """Give the sequences their blocks, window by window; returns what each of them took in each window."""
        totals: list[list[BatchSeqStats]] = [[] for _ in sequences]
        counts = [manager.counters.snapshot() for _, manager in self._widest_first]
        for index, ((_, manager), claims) in enumerate(zip(self._widest_first, plans, strict=True)):
            try:
                stats = manager.loader.add_sequence_batch(sequences, claims, self._enable_block_reuse)
            except Exception:  # a copy engine failed
                self._withdraw(sequences, plans[: index + 1], counts)
                raise
            for total, entry in zip(totals, stats, strict=True):
                total.append(entry)
        return totals

    def _withdraw(
        self,
        sequences: Sequence[GenerationRequest],
        plans: Sequence[Sequence[ClaimResult]],
        counts: Sequence[BlockCounters],
    ) -> None:
        """Take back a batch that was placed in some windows only; what it evicted or moved stays so."""
        for (_, manager), claims, snapshot in zip(self._widest_first, plans, counts, strict=False):
            manager.withdraw(sequences, claims, snapshot)
        for sequence in sequences:
            del self._sequences[sequence.request_id]

    def _finish(self, request: LlmRequest, stats: Sequence[BatchSeqStats], length: int) -> None:
        if self._writes_prepopulated:
            self._write_prepopulated(request, length)
        if self._enable_block_reuse:
            request.set_estimated_reusable_tokens(0)
        request.update_block_counters(
            sum(entry.alloc_total_delta for entry in stats),
            sum(entry.alloc_new_delta for entry in stats),
            sum(entry.reused_delta for entry in stats),
            sum(entry.missed_delta for entry in stats),
        )

    def _write_prepopulated(self, request: LlmRequest, length: int) -> None:
        request.set_prepopulated_prompt_len(length, self._tokens_per_block)

    # -- planning -------------------------------------------------------------------------------------

    def _plan_batch(
        self, request_infos: Sequence[RequestInfo], llm_requests: Sequence[LlmRequest]
    ) -> tuple[list[list[ClaimResult]], list[int], list[int]]:
        """Plan all windows, widest first, and raise whatever would go wrong. Changes nothing.

        Returns the claims by window, the length found for each request, a connector's tokens included, and the length
        at which its look-ups end.
        """
        self._check_batch(request_infos, llm_requests)
        plans, lengths, limits = self._plan_with_room(request_infos, llm_requests)
        if self._writes_prepopulated:
            for index, request in enumerate(llm_requests):
                lengths[index] += self._num_connector_tokens(request, lengths[index])
                request.check_prepopulated_prompt_len(lengths[index], self._tokens_per_block)
        return plans, lengths, limits

    def _plan_with_room(
        self, request_infos: Sequence[RequestInfo], llm_requests: Sequence[LlmRequest]
    ) -> tuple[list[list[ClaimResult]], list[int], list[int]]:
        """``find_cached``, for a batch that fits, and the length at which each look-up ends. Changes nothing.

        A partial match is copied while its source is held, which takes a block more than the prompt needs. Where that
        block is missing the match is given up, the last one first: what a budget promised is kept. So is a match that
        would be copied against the settings, because others of the batch use the block.
        """
        limits = [MAX_INT32] * len(llm_requests)
        while True:
            plans, lengths = self.find_cached(request_infos, llm_requests, limits)
            for (_, manager), claims in zip(self._widest_first, plans, strict=True):
                index = manager.planner.find_copy_to_give_up(claims, self._enable_block_reuse)
                if index is not None:
                    limits[index] = (len(claims[index].matched) - 1) * self._tokens_per_block
                    break
            else:
                return plans, lengths, limits

    def probe(self, request: LlmRequest) -> int:
        """Prompt tokens that admission would find now. Changes nothing."""
        check_content(request)
        info = (request.request_id, request.prompt_len, request.beam_width)
        try:
            _, lengths, _ = self._plan_with_room([info], [request])
        except OutOfBlocksError:
            _, lengths = self.find_cached([info], [request])
        return lengths[0]

    def find_cached(
        self,
        request_infos: Sequence[RequestInfo],
        llm_requests: Sequence[LlmRequest],
        max_matched_tokens: Sequence[int] | None = None,
    ) -> tuple[list[list[ClaimResult]], list[int]]:
        """Claims per window, widest first, and how much of each prompt all windows have. Changes nothing.

        A window may be content with a long match only: a sliding one leaves blocks out that a shorter prefix would
        still see, recurrent states exist at some lengths only. When another window cuts the match, it is asked again.
        """
        batch = list(zip(request_infos, llm_requests, strict=True))
        limits = [MAX_INT32] * len(batch) if max_matched_tokens is None else list(max_matched_tokens)
        caps, plans = [], []
        for window_size, manager in self._widest_first:
            caps.append(limits)
            plans.append(self._plan_window(window_size, manager, batch, limits))
            limits = [claim.prepopulated_len for claim in plans[-1]]
        is_settled = not self._enable_block_reuse or not self._may_depend_on_length
        while not is_settled:
            is_settled = True
            for index, (window_size, manager) in enumerate(self._widest_first):
                is_cut = [
                    claim.depends_on_length and claim.total_matched_tokens > limit
                    for claim, limit in zip(plans[index], limits, strict=True)
                ]
                if any(is_cut):
                    is_settled = False
                    caps[index] = [
                        limit if cut else cap for cut, limit, cap in zip(is_cut, limits, caps[index], strict=True)
                    ]
                    plans[index] = self._plan_window(window_size, manager, batch, caps[index])
                    limits = [
                        min(limit, claim.prepopulated_len) for limit, claim in zip(limits, plans[index], strict=True)
                    ]
        return plans, limits

    def _plan_window(
        self,
        window_size: WindowSize,
        manager: WindowBlockManager,
        batch: Sequence[tuple[RequestInfo, LlmRequest]],
        max_matched_tokens: Sequence[int],
    ) -> list[ClaimResult]:
        max_token_num = self._block_manager.window_sizes_metadata[window_size].max_token_num
        return manager.planner.plan_batch(
            [request for _, request in batch],
            [min(input_length, max_token_num) for (_, input_length, _), _ in batch],
            [beam_width for (_, _, beam_width), _ in batch],
            self._enable_block_reuse,
            max_matched_tokens,
        )

    def _tell_listener(
        self, request_infos: Sequence[RequestInfo], llm_requests: Sequence[LlmRequest], limits: Sequence[int]
    ) -> None:
        """Tell what each window has by itself, which costs a second look-up."""
        listener = self._block_manager.listener
        if listener is None or not self._enable_block_reuse:
            return
        batch = list(zip(request_infos, llm_requests, strict=True))
        for window_size, manager in self._widest_first:
            for claim in self._plan_window(window_size, manager, batch, limits):
                listener.on_match(claim.request.request_id, window_size, claim.matched, claim.prepopulated_len)

    def _num_connector_tokens(self, request: LlmRequest, num_computed_tokens: int) -> int:
        if self._connector_manager is None or request.is_dummy_request:
            return 0
        return self._connector_manager.get_num_new_matched_tokens(request, num_computed_tokens)

    # -- checks ---------------------------------------------------------------------------------------

    def _check_batch(self, request_infos: Sequence[RequestInfo], llm_requests: Sequence[LlmRequest]) -> None:
        seen: set[RequestId] = set()
        for (request_id, input_length, beam_width), request in zip(request_infos, llm_requests, strict=True):
            self._check_new(request_id)
            if request_id in seen:
                raise InvalidInputError(f"request {request_id} appears twice in the batch; give each id once")
            seen.add(request_id)
            check_same_request(request_id, request)
            check_integer("input length", input_length)
            check_integer("number of beams", beam_width)
            if input_length < 1 or not 1 <= beam_width <= self._max_beam_width:
                raise InvalidInputError(
                    f"request {request_id} has input length {input_length} and {beam_width} beams; "
                    f"give at least 1 token and 1 to {self._max_beam_width} beams"
                )
            if input_length > self._max_num_tokens:
                raise InvalidInputError(
                    f"request {request_id} has input length {input_length}, block tables hold {self._max_num_tokens} "
                    "tokens; cut it or raise max_sequence_length"
                )
            if self._enable_block_reuse:
                check_content(request)

    def _check_new(self, request_id: RequestId) -> None:
        if request_id in self._sequences:
            raise InvalidInputError(f"request {request_id} has a sequence already; remove it or use another id")


def check_same_request(request_id: RequestId, llm_request: LlmRequest) -> None:
    """Raise unless a request has the id of the sequence it was given for."""
    if llm_request.request_id != request_id:
        raise InvalidInputError(
            f"request {llm_request.request_id} was given for sequence {request_id}; its tokens would name wrong blocks"
        )
