"""Schedulers and the helpers around them, as the bindings show them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from trtkv.bindings import executor
from trtkv.bindings._border import CONFIGURATION, bound_class
from trtkv.bindings._manager import BaseKVCacheManager
from trtkv.bindings._request import LlmRequest, unwrap, wrap
from trtkv.bindings._types import expect
from trtkv.manager.kv_cache_manager import KVCacheManager as CoreManager
from trtkv.records.llm_request import LlmRequest as CoreLlmRequest
from trtkv.records.llm_request import LlmRequestState
from trtkv.scheduler import capacity_scheduler, micro_batch_scheduler, scheduler_config


class ReqIdsSet:
    """A set of request ids."""

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._ids = set(ids)

    def clear(self) -> None:
        """Remove all."""
        self._ids.clear()

    def size(self) -> int:
        """How many there are."""
        return len(self._ids)

    def insert(self, request_id: int) -> None:
        """Add one."""
        self._ids.add(request_id)

    def erase(self, request_id: int) -> int:
        """Remove one; returns how many were removed."""
        size = len(self._ids)
        self._ids.discard(request_id)
        return size - len(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._ids

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._ids))

    def __eq__(self, other: object) -> bool:
        return self._ids == other._ids if isinstance(other, ReqIdsSet) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equal by value and mutable


class ContextChunkingConfig:
    """Chunked prefill: a policy, and the unit in tokens."""

    def __init__(self, chunking_policy: executor.ContextChunkingPolicy, chunk_unit_size: int) -> None:
        self.chunking_policy = expect("chunking_policy", chunking_policy, executor.ContextChunkingPolicy)
        self.chunk_unit_size = chunk_unit_size

    def to_core(self) -> scheduler_config.ContextChunkingConfig:
        """The record that schedulers take."""
        policy = scheduler_config.ChunkingPolicy[self.chunking_policy.name]
        return scheduler_config.ContextChunkingConfig(policy, self.chunk_unit_size)


class BasePeftCacheManager:
    """Base class of adapter caches written in Python."""

    def add_request_peft(self, request: LlmRequest, try_gpu_cache: bool = True) -> None:
        """A request brings an adapter."""

    def ensure_batch(
        self,
        context_requests: Sequence[LlmRequest],
        generation_requests: Sequence[LlmRequest],
        reset_gpu_cache: bool = False,
    ) -> dict[int, list[object]]:
        """Adapters of a batch by request."""
        return {}

    def reset_device_cache(self) -> None:
        """Forget what is on the device."""

    def mark_request_done(self, request: LlmRequest, pause: bool = False) -> None:
        """A request needs its adapter no more."""

    max_device_pages = 0
    """Adapter pages on the device."""
    max_host_pages = 0
    """Adapter pages on the host."""
    enabled = False
    """Whether adapters are cached."""

    def determine_num_pages(self, request: LlmRequest) -> int:
        """Pages that the adapter of a request takes."""
        return 0


class NoOpPeftCacheManager(BasePeftCacheManager):
    """An adapter cache for models without adapters."""


class PeftCacheManager(BasePeftCacheManager):
    """The adapter cache of the runtime, which needs a device."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError(
            "PeftCacheManager keeps adapters on a device and is not part of trtkv; use NoOpPeftCacheManager"
        )


class PeftTaskNotCachedException(RuntimeError):  # noqa: N818 (the name of the bindings)
    """An adapter was not there."""


class LoraCacheFullException(RuntimeError):  # noqa: N818 (the name of the bindings)
    """There is no room for an adapter."""


class _Peft:
    """Asks the caller's adapter cache with the caller's requests."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    @property
    def max_device_pages(self) -> int:
        pages: Any = self._manager.max_device_pages
        return int(pages() if callable(pages) else pages)

    def determine_num_pages(self, request: CoreLlmRequest) -> int:
        return int(self._manager.determine_num_pages(wrap(request)))


def _core_manager(manager: Any) -> CoreManager | None:
    if manager is None:
        return None
    inner = manager if isinstance(manager, BaseKVCacheManager) else getattr(manager, "impl", None)
    if not isinstance(inner, BaseKVCacheManager):
        raise TypeError(f"expected a KVCacheManager, not {manager!r}")
    return inner.core


def _peft(manager: object) -> _Peft | None:
    return None if manager is None or isinstance(manager, NoOpPeftCacheManager) else _Peft(manager)


class _WithoutReuse:
    """A manager whose cached prefixes a scheduler does not see."""

    enable_block_reuse = False

    def __init__(self, manager: CoreManager) -> None:
        self._manager = manager

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


@bound_class
class CapacityScheduler:
    """Chooses the requests whose blocks fit."""

    def __init__(
        self,
        max_num_requests: int,
        capacity_scheduler_policy: executor.CapacitySchedulerPolicy,
        has_kv_cache_manager: bool,
        two_step_lookahead: bool = False,
        no_schedule_until_state: LlmRequestState = LlmRequestState.CONTEXT_INIT,
        no_schedule_after_state: LlmRequestState = LlmRequestState.GENERATION_COMPLETE,
        *,
        enable_prefix_aware_scheduling: bool = True,
    ) -> None:
        policy = expect("capacity_scheduler_policy", capacity_scheduler_policy, executor.CapacitySchedulerPolicy)
        self._is_prefix_aware = enable_prefix_aware_scheduling
        self._core = capacity_scheduler.CapacityScheduler(
            max_num_requests,
            scheduler_config.CapacitySchedulerPolicy[policy.name],
            has_kv_cache_manager,
            two_step_lookahead,
            no_schedule_until_state,
            no_schedule_after_state,
            compatibility=CONFIGURATION.compatibility,
        )

    @staticmethod
    def name() -> str:
        """Name of the class."""
        return "CapacityScheduler"

    def schedule(
        self,
        active_requests: Sequence[LlmRequest],
        kv_cache_manager: object = None,
        peft_cache_manager: object = None,
        cross_kv_cache_manager: object = None,
    ) -> tuple[list[LlmRequest], list[LlmRequest], list[LlmRequest]]:
        """Fitting requests, those that wait for a remote prompt, and those to be paused."""
        managers: list[Any] = [_core_manager(manager) for manager in (kv_cache_manager, cross_kv_cache_manager)]
        if not self._is_prefix_aware:
            managers = [None if manager is None else _WithoutReuse(manager) for manager in managers]
        result = self._core.schedule(
            [unwrap(request) for request in active_requests], managers[0], _peft(peft_cache_manager), managers[1]
        )
        fitting, waiting, paused = ([wrap(request) for request in part] for part in result)
        return fitting, waiting, paused

    __call__ = schedule


@bound_class
class MicroBatchScheduler:
    """Fills a step up to a number of requests and tokens."""

    def __init__(
        self,
        ctx_chunk_config: ContextChunkingConfig | None = None,
        max_context_length: int | None = None,
        no_schedule_until_state: LlmRequestState = LlmRequestState.CONTEXT_INIT,
        no_schedule_after_state: LlmRequestState = LlmRequestState.GENERATION_COMPLETE,
    ) -> None:
        self._core = micro_batch_scheduler.MicroBatchScheduler(
            None if ctx_chunk_config is None else ctx_chunk_config.to_core(),
            max_context_length,
            no_schedule_until_state,
            no_schedule_after_state,
            compatibility=CONFIGURATION.compatibility,
        )

    @staticmethod
    def name() -> str:
        """Name of the class."""
        return "MicroBatchScheduler"

    def schedule(
        self,
        active_requests: Sequence[LlmRequest],
        inflight_req_ids: Any,
        max_batch_size_runtime: int,
        max_num_tokens_runtime: int | None = None,
    ) -> tuple[list[LlmRequest], list[LlmRequest]]:
        """Context requests and generating ones of the step."""
        result = self._core.schedule(
            [unwrap(request) for request in active_requests],
            inflight_req_ids,
            max_batch_size_runtime,
            max_num_tokens_runtime,
        )
        contexts, generation = ([wrap(request) for request in part] for part in result)
        return contexts, generation

    __call__ = schedule


class SequenceSlotManager:
    """Slots of sequences in the runtime's buffers, the lowest free one first."""

    def __init__(self, max_num_slots: int, max_sequence_idle_microseconds: int) -> None:
        self._free = set(range(max_num_slots))
        self._slots: dict[int, int] = {}

    def get_sequence_slot(self, start_flag: bool, sequence_id: int) -> int | None:
        """The slot of a sequence; a free one if it starts, None if there is none."""
        if sequence_id not in self._slots:
            if not start_flag or not self._free:
                return None
            self._slots[sequence_id] = min(self._free)
            self._free.remove(self._slots[sequence_id])
        return self._slots[sequence_id]

    def free_sequence_slot(self, sequence_id: int) -> None:
        """Give a slot back."""
        if sequence_id in self._slots:
            self._free.add(self._slots.pop(sequence_id))

    def free_idle_sequence_slots(self) -> None:
        """Sequences end when they are freed; none is idle."""


@bound_class
class PauseRequests:
    """Ends paused requests: those not under way at once, the others when their step is over."""

    def __init__(self, max_input_len: int) -> None:
        self._max_input_len = max_input_len

    @staticmethod
    def name() -> str:
        """Name of the class."""
        return "PauseRequests"

    def pause(
        self,
        requests_to_pause: Sequence[LlmRequest],
        inflight_req_ids: ReqIdsSet,
        req_ids_to_pause: ReqIdsSet,
        pause_flagged: bool,
        seq_slot_manager: SequenceSlotManager,
        kv_cache_manager: Any = None,
        cross_kv_cache_manager: Any = None,
        peft_cache_manager: Any = None,
    ) -> None:
        """Pause the requests; both sets are changed in place."""
        others = (kv_cache_manager, cross_kv_cache_manager, peft_cache_manager)
        for request in requests_to_pause:
            request_id = request.request_id
            if pause_flagged:
                inflight_req_ids.erase(request_id)
                if request_id in req_ids_to_pause:
                    self._end(request, seq_slot_manager, *others)
                    req_ids_to_pause.erase(request_id)
            elif request_id in inflight_req_ids:
                req_ids_to_pause.insert(request_id)
            else:
                self._end(request, seq_slot_manager, *others)

    __call__ = pause

    def _end(self, request: LlmRequest, slots: SequenceSlotManager, *managers: Any) -> None:
        *caches, peft = managers
        slots.free_sequence_slot(request.request_id)
        for cache in caches:
            if cache is not None:
                cache.remove_sequence(request.request_id, request, False)
        is_complete = request.is_generation_complete_state
        if not is_complete:
            request.pause(self._max_input_len)
        if peft is not None:
            peft.mark_request_done(request, not is_complete)


@bound_class
class AllocateKvCache:
    """Gives a scheduled step its blocks."""

    @staticmethod
    def name() -> str:
        """Name of the class."""
        return "AllocateKvCache"

    def allocate(
        self,
        kv_cache_manager: BaseKVCacheManager,
        context_requests: Sequence[LlmRequest],
        generation_requests: Sequence[LlmRequest],
        model_config: object,
        cross_kv_cache_manager: BaseKVCacheManager | None = None,
    ) -> None:
        """Admit first chunks one by one, then make room for the tokens of the step."""
        kv_cache_manager.sync_transfer_manager_with_buffer_manager()
        for request in context_requests:
            if request.is_first_context_chunk:
                beams = request.sampling_config.beam_width
                info = (request.request_id, request.prompt_len, beams)
                kv_cache_manager.add_sequence_batch([info], [request])
                for _ in range(_keep_step_drafts(kv_cache_manager, request)):
                    kv_cache_manager.add_token(request.request_id)
                if cross_kv_cache_manager is not None:
                    cross_info = (request.request_id, request.encoder_output_len, beams)
                    cross_kv_cache_manager.add_sequence_batch([cross_info], [request])
        for request in generation_requests:
            for _ in range(1 + _keep_step_drafts(kv_cache_manager, request)):
                kv_cache_manager.add_token(request.request_id)
        kv_cache_manager.refresh_blocks()

    __call__ = allocate


def _keep_step_drafts(kv_cache_manager: BaseKVCacheManager, request: LlmRequest) -> int:
    """Drop drafts that budgets do not count, as they cannot become tokens; how many are left."""
    manager = _core_manager(kv_cache_manager)
    if manager is not None:
        num_drafts = request.num_draft_tokens
        request.discard_draft_tokens(num_drafts - manager.get_num_step_drafts(unwrap(request), num_drafts))
    return request.num_draft_tokens


def add_new_tokens_to_requests(requests: Sequence[LlmRequest], tokens: Sequence[int], beam_idx: int) -> None:
    """One token for each request."""
    if len(requests) != len(tokens):
        raise RuntimeError(f"{len(tokens)} tokens for {len(requests)} requests; give one for each")
    for request, token in zip(requests, tokens, strict=True):
        request.add_new_token(token, beam_idx)
