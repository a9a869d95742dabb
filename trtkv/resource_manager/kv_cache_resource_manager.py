"""KVCacheResourceManager: drives a KVCacheManager through the steps of a PyTorch executor."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from trtkv.checks import check_count, check_integer
from trtkv.common import MAX_INT32, RECURRENT_STATES, BlockId, CacheType, RequestId, TokenId, WindowSize, ceil_div
from trtkv.errors import ConfigurationError, InvalidInputError, OutOfBlocksError, UnknownIdError
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.events.kv_cache_events import KVCacheEvent
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.pools.memory import CacheMemory, calculate_blocks_per_window
from trtkv.records.config import KvCacheConfig, ModelConfig, SchedulerConfig
from trtkv.records.llm_request import LlmRequest, LlmRequestState, MultimodalInput
from trtkv.records.stats import KvCacheIterationStats, KvCacheStats
from trtkv.resource_manager.base_resource_manager import BaseResourceManager, KvBlockBudget
from trtkv.resource_manager.context_admission import ContextAdmission, check_drafts, drop_drafts
from trtkv.resource_manager.dummy_requests import make_dummy_request, start_generation
from trtkv.resource_manager.recorded_context_admission import RecordedContextAdmission
from trtkv.scheduler.capacity_scheduler import CapacityScheduler
from trtkv.scheduler.request_fit import check_blocks_can_ever_fit
from trtkv.scheduler.scheduled_requests import ScheduledRequests
from trtkv.scheduler.token_budget import trim_context_chunks
from trtkv.transfers.copy_engine import CopyEngine

if TYPE_CHECKING:
    import torch

_LOGGER: Final = logging.getLogger(__name__)


class KVCacheResourceManager(BaseResourceManager):
    """Drives a KVCacheManager, its ``impl``, through the steps of an executor.

    ``max_num_tokens``: tokens a forward pass may compute; None is no limit. ``enable_chunked_prefill``:
    whether the attention kernels can go on inside a prompt, which trimming needs. ``num_extra_kv_tokens``:
    slots behind every prompt that a drafting model needs. ``draft_token_reserve``: drafts that slots are
    prepared for at least in each step; give the largest number. Both are set in the manager; None keeps what
    it has. ``must_keep_chunk``: says which requests must not be cut elsewhere (images with attention in both
    directions).
    """

    def __init__(
        self,
        kv_cache_manager: KVCacheManager,
        *,
        max_num_tokens: int | None = 8192,
        enable_chunked_prefill: bool = False,
        num_extra_kv_tokens: int | None = None,
        draft_token_reserve: int | None = None,
        must_keep_chunk: Callable[[LlmRequest], bool] | None = None,
    ) -> None:
        num_extra = kv_cache_manager.num_extra_kv_tokens if num_extra_kv_tokens is None else num_extra_kv_tokens
        reserve = kv_cache_manager.draft_token_reserve if draft_token_reserve is None else draft_token_reserve
        check_count("num_extra_kv_tokens", num_extra, error=ConfigurationError)
        check_count("draft_token_reserve", reserve, error=ConfigurationError)
        if max_num_tokens is not None:
            check_count("max_num_tokens", max_num_tokens, 1, error=ConfigurationError)
        if (num_extra, reserve) != (kv_cache_manager.num_extra_kv_tokens, kv_cache_manager.draft_token_reserve):
            kv_cache_manager.set_spec_decoding_budget(num_extra, reserve)
        self._impl = kv_cache_manager
        self._max_num_tokens = max_num_tokens
        self._enable_chunked_prefill = enable_chunked_prefill
        self._num_extra_kv_tokens = num_extra
        self._draft_token_reserve = reserve
        self._must_keep_chunk = must_keep_chunk
        self._dummy_request_ids: set[RequestId] = set()
        admission_class = RecordedContextAdmission if kv_cache_manager.compatibility else ContextAdmission
        self._contexts = admission_class(kv_cache_manager, num_extra)

    @classmethod
    def from_config(
        cls,
        kv_cache_config: KvCacheConfig,
        model_config: ModelConfig,
        scheduler_config: SchedulerConfig,
        memory: CacheMemory,
        *,
        max_beam_width: int = 1,
        num_extra_kv_tokens: int = 0,
        draft_token_reserve: int = 0,
        across_ranks: bool = False,
        copy_engine: CopyEngine | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> KVCacheResourceManager:
        """Manager of a model in the bytes given; ``across_ranks`` makes it a collective call, so that ranks agree."""
        # Slots after the last token are part of the longest sequence, or its window would start to slide.
        num_behind = num_extra_kv_tokens + draft_token_reserve
        longest = {"max_sequence_length": model_config.max_sequence_length + num_behind}
        model_config = model_config.model_copy(update=longest)
        max_batch_size = scheduler_config.max_batch_size
        blocks_per_window = calculate_blocks_per_window(
            kv_cache_config, model_config, memory, max_batch_size=max_batch_size, across_ranks=across_ranks
        )
        max_sequence_length = model_config.max_sequence_length
        max_num_tokens = scheduler_config.max_num_tokens
        num_event_entries = kv_cache_config.event_buffer_max_size
        manager = KVCacheManager(
            kv_cache_config.to_settings(
                model_config,
                blocks_per_window,
                max_num_sequences=max_batch_size,
                max_beam_width=max_beam_width,
                chunk_size=min(max_num_tokens or max_sequence_length, max_sequence_length),
            ),
            clock=clock,
            copy_engine=copy_engine,
            event_manager=KVCacheEventManager(num_event_entries) if num_event_entries else None,
        )
        return cls(
            manager,
            max_num_tokens=max_num_tokens,
            enable_chunked_prefill=scheduler_config.enable_chunked_prefill,
            num_extra_kv_tokens=num_extra_kv_tokens,
            draft_token_reserve=draft_token_reserve,
        )

    @property
    def impl(self) -> KVCacheManager:
        """The manager that is driven."""
        return self._impl

    @property
    def tokens_per_block(self) -> int:
        """Tokens of one block."""
        return self._impl.tokens_per_block

    @property
    def max_num_tokens(self) -> int | None:
        """Tokens a forward pass may compute; None is no limit."""
        return self._max_num_tokens

    # -- one step -----------------------------------------------------------------------------------

    def prepare_resources(self, scheduled_batch: ScheduledRequests) -> None:
        """Add the sequences of first chunks, and one slot (and those of drafts) to every generating request.

        New requests that do not fit after all (a capacity scheduler lets none of those through) move to
        ``deferred_requests`` and stay as they were. Raises OutOfBlocksError when that leaves an empty batch, or when a
        generating request finds no block; then none has grown.
        """
        self._impl.sync_transfer_manager_with_buffer_manager()
        # Contexts claim what is cached before anybody takes blocks.
        self._contexts.admit(scheduled_batch, self._dummy_request_ids)
        self._extend_generation(scheduled_batch)
        self._impl.refresh_blocks()
        scheduled_batch.reset_context_requests()

    def update_resources(
        self, scheduled_batch: ScheduledRequests, num_accepted_draft_tokens: Mapping[RequestId, int] | None = None
    ) -> None:
        """Take back the slots of rejected drafts and store the computed blocks of contexts for reuse.

        Call it when positions and states of the batch have moved on. Without ``num_accepted_draft_tokens`` every draft
        counts as rejected. Finished and paused requests are left alone.
        """
        accepted = num_accepted_draft_tokens or {}
        self._check_accepted(scheduled_batch, accepted)
        for request in scheduled_batch.generation_requests:
            num_reserved = scheduled_batch.num_reserved_draft_tokens.get(request.request_id, 0)
            if request.state not in (LlmRequestState.GENERATION_COMPLETE, LlmRequestState.CONTEXT_INIT):
                self._rewind(request, num_reserved - accepted.get(request.request_id, 0))
        for request in scheduled_batch.context_requests:
            if request.context_remaining_length <= 0 and request.request_id in self._contexts.num_draft_tokens:
                num_drafts = self._contexts.num_draft_tokens.pop(request.request_id)
                self._rewind(request, num_drafts - accepted.get(request.request_id, 0))
            self._impl.store_context_blocks(request)

    def free_resources(self, request: LlmRequest, pin_on_release: bool = False) -> list[BlockId]:
        """Store the blocks of a request for reuse and drop its sequence; unknown requests are ignored.

        With ``pin_on_release`` the stored blocks keep a reference, in every window; returns what
        ``unpin_blocks_by_id`` takes back. A call that raises has pinned nothing.
        """
        pinned: list[BlockId] = []
        if pin_on_release and request.request_id in self._impl.sequences:
            if not self._impl.enable_block_reuse:
                raise InvalidInputError("blocks can be pinned with block reuse only; switch enable_block_reuse on")
            pinned = self._impl.store_blocks_for_reuse(request.request_id, request, pin_blocks=True)
        try:
            self._impl.remove_sequence(request.request_id, request)
        except Exception:
            if pinned:
                self._impl.unpin_blocks_by_id(pinned)
            raise
        self._dummy_request_ids.discard(request.request_id)
        self._contexts.num_draft_tokens.pop(request.request_id, None)
        return pinned

    def _extend_generation(self, batch: ScheduledRequests) -> None:
        """One slot, and those of drafts, for every generating request, in one call of the manager.

        Drafts that cannot become tokens any more get no slot and are dropped.
        """
        if self._impl.cross_kv:
            return
        request_ids: list[RequestId] = []
        for request in batch.generation_requests:
            num_drafts = max(request.num_draft_tokens, self._draft_token_reserve)
            check_drafts(request, num_drafts)
            num_drafts = self._impl.get_num_step_drafts(request, num_drafts)
            batch.num_reserved_draft_tokens[request.request_id] = num_drafts
            request_ids += [request.request_id] * (1 + num_drafts)
        for request in batch.generation_requests:
            self._impl.get_sequence(request.request_id).holds_window = False
        self._impl.add_tokens(request_ids)
        for request in batch.generation_requests:
            drop_drafts(request, batch.num_reserved_draft_tokens[request.request_id])

    def _rewind(self, request: LlmRequest, num_tokens: int) -> None:
        if num_tokens > 0:
            self._impl.rewind_kv_cache(request.request_id, num_tokens)

    def _check_accepted(self, batch: ScheduledRequests, accepted: Mapping[RequestId, int]) -> None:
        for request_id, num_accepted in accepted.items():
            num_reserved = batch.num_reserved_draft_tokens.get(request_id, 0)
            num_reserved = max(num_reserved, self._contexts.num_draft_tokens.get(request_id, 0))
            if not 0 <= num_accepted <= num_reserved:
                raise InvalidInputError(
                    f"{num_accepted} drafts of request {request_id} accepted, slots were prepared for {num_reserved}"
                )

    # -- token budget ---------------------------------------------------------------------------------

    def fit_token_budget(self, scheduled_batch: ScheduledRequests) -> None:
        """Shorten chunks of a prepared batch, from its end, so that it computes at most ``max_num_tokens``.

        For batches whose real reuse is below the estimate they were scheduled with. No request leaves the
        batch. Warns when the tokens still do not fit, or when chunks cannot be cut at all.
        """
        if self._max_num_tokens is None or not scheduled_batch.context_requests:
            return
        result = trim_context_chunks(
            scheduled_batch, self._max_num_tokens, self.tokens_per_block, self._may_trim_context_chunk
        )
        num_left = result.num_tokens - result.num_trimmed_tokens
        if num_left > self._max_num_tokens:
            _LOGGER.warning(
                "the batch computes %d tokens, max_num_tokens is %d%s",
                num_left,
                self._max_num_tokens,
                "" if self._enable_chunked_prefill else "; chunks cannot be shortened without chunked prefill",
            )

    def _may_trim_context_chunk(self, request: LlmRequest) -> bool:
        if not self._enable_chunked_prefill:
            return False
        return self._must_keep_chunk is None or not self._must_keep_chunk(request)

    # -- budgets ----------------------------------------------------------------------------------------

    def get_max_resource_count(self) -> int:
        """Primary blocks of the pool that limits requests.

        That is the one of full attention beside recurrent states, otherwise the smallest.
        """
        counts = {window: entry.allotted_primary_blocks for window, entry in self._impl.window_sizes_metadata.items()}
        return self._select_limiting(counts)

    def get_num_free_blocks(self) -> int:
        """Free primary blocks, cached ones included, of the pool that limits requests."""
        return self._select_limiting(self._impl.num_free_blocks_per_window_size)

    def get_num_available_tokens(self, token_num_upper_bound: int, max_num_draft_tokens: int = 0) -> int:
        """Tokens one more sequence could have now, up to a bound; extra slots and drafts are taken off."""
        check_integer("token_num_upper_bound", token_num_upper_bound)
        check_count("max_num_draft_tokens", max_num_draft_tokens)
        num_tokens = self.get_num_free_blocks() * self.tokens_per_block
        num_tokens -= self._num_extra_kv_tokens + max_num_draft_tokens
        return max(min(token_num_upper_bound, num_tokens), 0)

    def get_num_kv_blocks(self, num_tokens: int) -> int:
        """Blocks of that many tokens."""
        return ceil_div(check_count("num_tokens", num_tokens), self.tokens_per_block)

    def get_needed_resource_to_completion(self, request: LlmRequest) -> int:
        """Blocks of the whole request under full attention: shared ones of the prompt, the rest for every beam."""
        return self._count_blocks_to_completion(request, request.max_new_tokens)

    def kv_block_budget_applies(self) -> bool:
        """Whether one pair of numbers decides: a cross cache, or one window of full attention for every layer.

        Not for subclasses, whose sequences may hold more or less than all their tokens, until they say so.
        """
        if type(self) is not KVCacheResourceManager:
            return False
        if self._impl.cache_type is CacheType.CROSS:
            return True
        windows = self._impl.window_sizes_metadata
        has_full_attention = len(windows) == 1 and min(windows) >= self._impl.max_sequence_length
        return self._impl.cache_type is CacheType.SELF and has_full_attention

    def get_request_kv_block_budget(self, request: LlmRequest) -> KvBlockBudget | None:
        """Blocks a request needs and primary blocks there are; None where ``kv_block_budget_applies`` is False.

        None also for a cross cache and a request without encoder output. A request with more required than capacity
        can never be served.
        """
        if not self.kv_block_budget_applies():
            return None
        capacity = self.get_max_resource_count()
        if self._impl.cross_kv:
            if request.encoder_output_len < 1:
                _LOGGER.warning(
                    "request %d has no encoder output length; its blocks are not checked", request.request_id
                )
                return None
            return KvBlockBudget(self.get_num_kv_blocks(request.encoder_output_len), capacity)
        num_drafts = self._impl.get_num_final_drafts(request, self._draft_token_reserve)
        num_behind_prompt = request.max_new_tokens + self._num_extra_kv_tokens + num_drafts
        return KvBlockBudget(self._count_blocks_to_completion(request, num_behind_prompt), capacity)

    def check_can_ever_fit(self, request: LlmRequest, capacity_scheduler: CapacityScheduler | None = None) -> None:
        """Raise OutOfBlocksError, with the numbers, for a request that the empty pools could not serve.

        Works with any windows. With the scheduler in use, also for one that its policy would never admit.
        To be called when a request arrives; changes nothing.
        """
        budget = self.get_request_kv_block_budget(request)
        if budget is not None and budget.required_blocks > budget.capacity_blocks:
            raise OutOfBlocksError(
                f"request {request.request_id} needs {budget.required_blocks} blocks of "
                f"{self.tokens_per_block} tokens, the whole pool has {budget.capacity_blocks}; "
                "shorten the request or enlarge the cache"
            )
        if capacity_scheduler is None:
            check_blocks_can_ever_fit(request, self._impl, to_completion=False)
        else:
            capacity_scheduler.check_can_ever_fit(request, self._impl)

    def _count_blocks_to_completion(self, request: LlmRequest, num_behind_prompt: int) -> int:
        num_shared, num_unshared_tokens = divmod(request.prompt_len, self.tokens_per_block)
        per_beam = self.get_num_kv_blocks(num_unshared_tokens + num_behind_prompt)
        return num_shared + per_beam * request.beam_width

    def _select_limiting(self, counts: Mapping[WindowSize, int]) -> int:
        attention = {window: count for window, count in counts.items() if window != RECURRENT_STATES}
        if len(attention) < len(counts):
            return attention[max(attention)]
        return min(attention.values())

    # -- dummies ------------------------------------------------------------------------------------------

    def add_dummy_requests(
        self,
        request_ids: Sequence[RequestId],
        token_nums: Sequence[int] | None = None,
        is_gen: bool = False,
        prepare_resource: bool = True,
        max_num_draft_tokens: int = 0,
        max_beam_width: int = 1,
        encoder_output_lens: Sequence[int] | None = None,
    ) -> list[LlmRequest] | None:
        """Requests for warm-up or padding; they are never stored for reuse. None when no block is free.

        ``token_nums``: tokens of each, drafts not counted (default 1 + drafts, at least 2 when generating).
        ``is_gen``: in generation with the last token just generated, else at the start of their prompt.
        ``prepare_resource``: add their sequences now; ``prepare_resources`` then leaves them alone. If there is too
        little room, nothing is kept and OutOfBlocksError is raised. Free them with ``free_resources``.
        """
        check_count("max_num_draft_tokens", max_num_draft_tokens)
        check_count("max_beam_width", max_beam_width, 1)
        if self.get_num_free_blocks() < 1:
            return None
        lengths = list(token_nums) if token_nums is not None else [1 + max_num_draft_tokens] * len(request_ids)
        encoder_lengths = list(encoder_output_lens) if encoder_output_lens is not None else [0] * len(request_ids)
        if not len(lengths) == len(encoder_lengths) == len(request_ids):
            raise InvalidInputError(
                f"{len(lengths)} token numbers and {len(encoder_lengths)} encoder lengths "
                f"for {len(request_ids)} dummy requests; give one of each per request"
            )
        requests = [
            make_dummy_request(request_id, max(length, 2) if is_gen else length, is_gen, max_beam_width, encoder_length)
            for request_id, length, encoder_length in zip(request_ids, lengths, encoder_lengths, strict=True)
        ]
        if prepare_resource:
            self._prepare_dummies(requests, is_gen, max_num_draft_tokens if is_gen else 0)
        for request in requests:
            if is_gen:
                start_generation(request)
            request.set_num_draft_tokens(max_num_draft_tokens)
        return requests

    def _prepare_dummies(self, requests: Sequence[LlmRequest], is_gen: bool, num_drafts: int) -> None:
        num_slots = self._num_extra_kv_tokens + int(is_gen) + num_drafts
        if self._impl.cross_kv:
            num_slots = 0
        self._impl.add_sequence_batch([self._contexts.request_info(request) for request in requests], requests)
        try:
            for request in requests:
                for _ in range(num_slots):
                    self._impl.add_token(request.request_id)
        except OutOfBlocksError:
            for request in requests:
                self._impl.remove_sequence(request.request_id)
            raise
        self._dummy_request_ids.update(request.request_id for request in requests)

    # -- memory and hashes --------------------------------------------------------------------------------

    def get_buffers(self, layer_idx: int, kv_layout: str | None = None) -> torch.Tensor:
        """View of a layer's primary blocks, which the rows of ``get_batch_cache_indices`` index."""
        return self._impl.get_buffers(layer_idx, kv_layout)

    def commit_and_get_block_hashes(self, request: LlmRequest, window_size: WindowSize | None = None) -> list[int]:
        """Chain hashes of a request's full blocks, the newest token included, in a window or the widest one.

        See ``KVCacheManager.commit_and_get_block_hashes_for_request``.
        """
        window = self._impl.max_attention_window if window_size is None else window_size
        return self._impl.commit_and_get_block_hashes_for_request(request, window)

    # -- block tables -------------------------------------------------------------------------------------

    def get_cache_indices(self, request: LlmRequest, window_size: WindowSize | None = None) -> list[int]:
        """Primary slots of a request's blocks in order; one beam only. See ``get_batch_cache_indices``."""
        return self.get_batch_cache_indices([request.request_id], window_size=window_size)[0]

    def get_batch_cache_indices(
        self,
        request_ids: Iterable[RequestId],
        layer_idx: int | None = None,
        window_size: WindowSize | None = None,
        beam_width: int = 1,
        num_blocks_per_seq: Sequence[int] | None = None,
    ) -> list[list[int]]:
        """Rows of a page table: for each request the primary pool slots of its blocks, in order.

        These index the tensors of ``get_buffers``. Without a host level they equal the block ids; with one a
        block may lie in another slot than its id says. The window is given, or that of a layer, or the only
        one. Positions that left a sliding window are NULL_ENTRY (-1). With several beams the row is beam
        0's, followed by the last block of each other beam that has its own. ``num_blocks_per_seq`` cuts the rows.
        """
        window = self._resolve_window(layer_idx, window_size)
        request_ids = list(request_ids)
        if num_blocks_per_seq is not None and len(num_blocks_per_seq) != len(request_ids):
            raise InvalidInputError(
                f"{len(num_blocks_per_seq)} numbers of blocks for {len(request_ids)} requests; give one for each"
            )
        for num_blocks in num_blocks_per_seq or ():
            check_count("an entry of num_blocks_per_seq", num_blocks)
        rows = []
        for request_id in request_ids:
            beams = self._impl.get_sequence(request_id).get_rows(window)
            if len(beams) != beam_width:
                raise InvalidInputError(
                    f"request {request_id} has {len(beams)} beams, the table is asked for {beam_width}"
                )
            row = list(beams[0])
            row.extend(beam[-1] for beam in beams[1:] if len(beam) and beam[-1] != row[-1])
            rows.append(row)
        if num_blocks_per_seq is None:
            return rows
        return [row[:num_blocks] for row, num_blocks in zip(rows, num_blocks_per_seq, strict=True)]

    def _resolve_window(self, layer_idx: int | None, window_size: WindowSize | None) -> WindowSize:
        if window_size is not None:
            return window_size
        windows = self._impl.window_sizes_metadata
        if layer_idx is None:
            if len(windows) > 1:
                raise InvalidInputError(f"there are windows {list(windows)}; say which by window_size or layer_idx")
            return next(iter(windows))
        check_integer("layer_idx", layer_idx)
        if not 0 <= layer_idx < self._impl.block_manager.num_layers:
            raise UnknownIdError(f"layer {layer_idx} is not among {self._impl.block_manager.num_layers} layers")
        pool = self._impl.block_manager.get_pool(self._impl.block_manager.get_layer_pool_idx(layer_idx))
        return pool.window_size

    # -- statistics, events, end ------------------------------------------------------------------------------

    def get_num_tokens(self, request: LlmRequest) -> int:
        """Slots of a request's sequence; ahead of its tokens by what was prepared."""
        return self._impl.get_token_count(request.request_id)

    def probe_prefix_match_length(
        self,
        input_tokens: Iterable[TokenId],
        lora_task_id: int | None = None,
        cache_salt: str | None = None,
        *,
        input_token_extra_ids: Iterable[int] | None = None,
        multimodal_input: MultimodalInput | None = None,
    ) -> int:
        """Tokens of a prompt that admission would find cached now. Changes and holds nothing.

        Give everything that constrains the request: blocks of other images or extra ids are not the same blocks.
        """
        request = LlmRequest(
            MAX_INT32,
            input_tokens,
            input_token_extra_ids=input_token_extra_ids,
            lora_task_id=lora_task_id,
            cache_salt=cache_salt,
            multimodal_input=multimodal_input,
        )
        return self._impl.probe_prefix_match_length(request) if request.prompt_len else 0

    def rewind_kv_cache(self, request: LlmRequest, rewind_len: int) -> None:
        """Drop the last slots of a request's sequence; unknown requests are ignored."""
        self._impl.rewind_kv_cache(request.request_id, rewind_len)

    def unpin_blocks_by_id(self, block_ids: Sequence[BlockId], window_size: WindowSize | None = None) -> None:
        """Drop one reference of blocks pinned by ``free_resources``; ids given one by one need their window."""
        self._impl.unpin_blocks_by_id(block_ids, window_size)

    def get_kv_cache_stats(self) -> KvCacheStats:
        """Totals since construction."""
        return self._impl.get_kv_cache_stats()

    def get_iteration_stats(self) -> dict[WindowSize, KvCacheIterationStats]:
        """Gauges, and counters since the last call, by window."""
        return self._impl.get_iteration_stats()

    def flush_iteration_events(self) -> None:
        """Hand the events of the step over to readers."""
        self._impl.flush_iteration_events()

    def get_latest_events(self, timeout_ms: float | None = None) -> list[KVCacheEvent]:
        """Events handed over since the last call; waits up to the timeout if there are none."""
        return self._impl.get_latest_events(timeout_ms)

    def shutdown(self) -> None:
        """Drop all sequences, wait for transfers and let go of the pools' memory. May be called twice."""
        for request_id in list(self._impl.sequences):
            self._impl.remove_sequence(request_id)
        self._dummy_request_ids.clear()
        self._contexts.num_draft_tokens.clear()
        self._impl.release_pools()
