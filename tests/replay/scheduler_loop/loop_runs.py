"""Runs of the scheduler loop that are small enough to follow by hand: blocks of four tokens, round step times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtkv.replay.config import ReplayConfig
from trtkv.replay.scheduler_loop.arrival_queue import ArrivalMode
from trtkv.replay.scheduler_loop.loop_backend import LoopBackend
from trtkv.replay.scheduler_loop.loop_config import LoopConfig
from trtkv.replay.scheduler_loop.loop_result import LoopResult
from trtkv.replay.scheduler_loop.run import replay_with_scheduler
from trtkv.replay.scheduler_loop.scheduler_loop import StepObserver
from trtkv.replay.scheduler_loop.step_time import StepTimeModel
from trtkv.scheduler.scheduler_config import CapacitySchedulerPolicy, ChunkingPolicy, ContextChunkingConfig
from trtkv.traces.trace import RequestTrace, TraceRequest

ROUND_TIMES = StepTimeModel(base_ns=1000, context_ns=10, generation_ns=5, cached_ns=1)
POLICIES = list(CapacitySchedulerPolicy)


def make_trace(requests: Sequence[TraceRequest]) -> RequestTrace:
    return RequestTrace("trace", "tokens", None, requests)


def make_config(
    policy: CapacitySchedulerPolicy | str = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT,
    *,
    num_blocks: int | None = None,
    chunk_unit: int | None = None,
    chunk_policy: ChunkingPolicy | str = ChunkingPolicy.FIRST_COME_FIRST_SERVED,
    max_batch_size: int = 8,
    max_num_tokens: int = 64,
    arrivals: ArrivalMode = ArrivalMode.ASAP,
    step_time: StepTimeModel = ROUND_TIMES,
    tokens_per_block: int = 4,
    **cache: Any,
) -> LoopConfig:
    capacity = None if num_blocks is None else num_blocks * tokens_per_block
    return LoopConfig(
        ReplayConfig(tokens_per_block, capacity, **cache),
        CapacitySchedulerPolicy(policy),
        max_batch_size,
        max_num_tokens,
        None if chunk_unit is None else ContextChunkingConfig(ChunkingPolicy(chunk_policy), chunk_unit),
        arrivals,
        step_time,
    )


def run_loop(
    requests: Sequence[TraceRequest],
    config: LoopConfig,
    *,
    backend: LoopBackend | None = None,
    after_step: StepObserver | None = None,
) -> LoopResult:
    """Timestamps are nanoseconds."""
    return replay_with_scheduler(
        make_trace(requests), config, seconds_per_unit=1e-9, backend=backend, after_step=after_step
    )
