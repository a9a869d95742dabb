"""RecordingBackend: the scheduler loop's manager, schedulers and requests, written as a program while they work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TextIO, cast

from trtkv.common import DataType
from trtkv.records.llm_request import LlmRequest, LlmRequestState
from trtkv.resource_manager import KVCacheResourceManager
from trtkv.scheduler.capacity_scheduler import CapacityScheduleResult
from trtkv.scheduler.micro_batch_scheduler import MicroBatchScheduleResult
from trtkv.verify.clock import NS_PER_MS
from trtkv.verify.recorder import TraceRecorder

if TYPE_CHECKING:
    from trtkv.manager.kv_cache_manager import KVCacheManager
    from trtkv.replay.scheduler_loop.loop_config import LoopConfig
    from trtkv.traces.trace import TraceRequest
    from trtkv.verify.json_kinds import Args

GROUP: Final = "scheduler_replay"


class RecordingBackend:
    """A LoopBackend whose every change goes through a TraceRecorder, so that the run can be verified.

    Decides and counts as the loop does without recording. The stream stays the caller's to close.
    """

    def __init__(self, config: LoopConfig, requests: Sequence[TraceRequest], stream: TextIO) -> None:
        self._config = config
        self._now_ms = 0
        self._recorder = TraceRecorder(stream, GROUP, _manager_config(config, requests))
        self._recorder.execute("create_capacity_scheduler", _capacity_scheduler_args(config))
        self._recorder.execute("create_micro_batch_scheduler", _micro_batch_scheduler_args(config))
        self._resources = KVCacheResourceManager(
            cast("KVCacheManager", self._recorder.manager),
            max_num_tokens=config.max_num_tokens,
            enable_chunked_prefill=config.chunking is not None,
        )

    @property
    def manager(self) -> KVCacheManager:
        """The manager itself; what is done to it directly would not be recorded."""
        return self._recorder.machine.state.manager

    @property
    def resources(self) -> KVCacheResourceManager:
        """The resource manager around the recorded manager."""
        return self._resources

    @property
    def num_deferred_requests(self) -> int:
        """Requests that the last capacity schedule held back for a common prefix."""
        scheduler = self._recorder.machine.state.capacity_scheduler
        return 0 if scheduler is None else scheduler.num_deferred_requests

    def new_request(self, trace_request: TraceRequest, num_new_tokens: int) -> LlmRequest:
        """A recorded request at the start of its prompt."""
        return self._recorder.new_request(trace_request.index, trace_request.tokens().tolist(), num_new_tokens)

    def drop_request(self, request: LlmRequest) -> None:
        """Forget a finished request."""
        self._recorder.drop_request(request.request_id)

    def schedule_capacity(self, active: Sequence[LlmRequest]) -> CapacityScheduleResult:
        """Choose by blocks."""
        ids = [request.request_id for request in active]
        answer = cast("dict[str, list[int]]", self._recorder.execute("capacity_schedule", {"ids": ids}))
        lists = (self._get_requests(answer[key]) for key in ("scheduled", "disagg_init", "paused"))
        return CapacityScheduleResult(*lists)

    def schedule_micro_batch(self, fitting: Sequence[LlmRequest]) -> MicroBatchScheduleResult:
        """Choose by tokens, and set chunks."""
        args = {
            "ids": [request.request_id for request in fitting],
            "inflight": [],
            "max_batch_size": self._config.max_batch_size,
            "max_num_tokens": self._config.max_num_tokens,
        }
        answer = cast("dict[str, list[int]]", self._recorder.execute("micro_batch_schedule", args))
        return MicroBatchScheduleResult(*(self._get_requests(answer[key]) for key in ("context", "generation")))

    def set_time(self, now_ns: int) -> None:
        """Move the clock on by whole milliseconds, as the format does; the rest is carried over."""
        now_ms = now_ns // NS_PER_MS
        if now_ms > self._now_ms:
            self._recorder.advance_clock_ms(now_ms - self._now_ms)
            self._now_ms = now_ms

    def _get_requests(self, ids: list[int]) -> list[LlmRequest]:
        requests = self._recorder.machine.state.requests
        return [requests[request_id] for request_id in ids]


def _manager_config(config: LoopConfig, requests: Sequence[TraceRequest]) -> Args:
    """The manager that ReplayConfig builds, as the header of a program."""
    cache = config.cache
    windows = cache.layer_windows(requests)
    num_primary, num_secondary = cache.num_primary_blocks(requests), cache.num_secondary_blocks
    longest = cache.max_sequence_length(requests)
    return {
        "tokens_per_block": cache.tokens_per_block,
        "num_kv_heads_per_layer": [1] * len(windows),
        "size_per_head": 1,
        "blocks_per_window": [[window, num_primary, num_secondary] for window in sorted(set(windows))],
        "max_num_sequences": cache.live,
        "max_beam_width": 1,
        "max_attention_window_vec": windows,
        "max_sequence_length": longest,
        "chunk_size": longest,
        "dtype": DataType.INT8.value,
        "enable_partial_reuse": cache.partial_reuse,
        "copy_on_partial_reuse": cache.copy_on_partial_reuse,
        "clock_start_ms": 0,
        **_mode(config),
    }


def _capacity_scheduler_args(config: LoopConfig) -> Args:
    return {
        "max_num_requests": config.max_batch_size,
        "policy": config.policy.value,
        "has_kv_cache_manager": True,
        "two_steps_look_ahead": False,
        **_state_limits(LlmRequestState.GENERATION_COMPLETE),
        **_mode(config),
    }


def _micro_batch_scheduler_args(config: LoopConfig) -> Args:
    chunking = config.chunking
    return {
        "ctx_chunk_config": (
            None if chunking is None else {"policy": chunking.policy.value, "unit_size": chunking.chunk_unit_size}
        ),
        "max_context_length": None,
        **_state_limits(LlmRequestState.GENERATION_TO_COMPLETE),
        **_mode(config),
    }


def _state_limits(no_schedule_after: LlmRequestState) -> Args:
    return {
        "no_schedule_until_state": LlmRequestState.CONTEXT_INIT.name.lower(),
        "no_schedule_after_state": no_schedule_after.name.lower(),
    }


def _mode(config: LoopConfig) -> Args:
    """Nothing in compatibility mode, so that such a program is one of the plain format."""
    return {} if config.cache.compatibility else {"compatibility": False}
