"""A run of the scheduler loop: build what it needs, run a trace through it, read the counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkv.replay.scheduler_loop.arrival_queue import ArrivalQueue
from trtkv.replay.scheduler_loop.loop_backend import DirectBackend, LoopBackend
from trtkv.replay.scheduler_loop.loop_result import LoopResult
from trtkv.replay.scheduler_loop.refusal import RefusalCheck
from trtkv.replay.scheduler_loop.scheduler_loop import SchedulerLoop, StepObserver
from trtkv.replay.scheduler_loop.unknown_prompts import replace_unknown_prompts

if TYPE_CHECKING:
    from trtkv.replay.closed_loop.closed_loop import Progress
    from trtkv.replay.scheduler_loop.loop_config import LoopConfig
    from trtkv.traces.trace import RequestTrace


def replay_with_scheduler(
    trace: RequestTrace,
    config: LoopConfig,
    *,
    seconds_per_unit: float | None = None,
    backend: LoopBackend | None = None,
    after_step: StepObserver | None = None,
    progress: Progress | None = None,
) -> LoopResult:
    """Build what the loop needs, run the trace through it, and read the counters.

    ``seconds_per_unit``: of the trace's timestamps, for arrivals by the trace. ``backend``: instead of a fresh one,
    made for the same trace and settings. A trace of lengths only runs without reuse.
    """
    trace, config = replace_unknown_prompts(config.cache.with_retention(trace), config)
    backend = backend or DirectBackend(config, trace.requests)
    loop = SchedulerLoop(
        backend,
        config.step_time,
        max_active=config.max_batch_size,
        max_sequence_length=config.cache.max_sequence_length(trace.requests),
        find_refusal=RefusalCheck(config, backend.manager).find_reason,
        after_step=after_step,
        progress=progress,
    )
    loop.run(ArrivalQueue(trace.requests, config.arrivals, seconds_per_unit))
    return LoopResult(
        trace=trace,
        config=config,
        counts=loop.ledger.counts,
        records=tuple(loop.ledger.records.values()),
        utilisation=loop.ledger.utilisation,
        stats=backend.manager.get_kv_cache_stats(),
    )
