"""A run of the closed loop: build a manager, drive it, read its counters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkv.common import WindowSize
from trtkv.errors import ConfigurationError, check
from trtkv.replay.causes.cause_observer import CauseObserver
from trtkv.replay.causes.causes import Cause
from trtkv.replay.causes.explanation import explain as explanation_of
from trtkv.replay.causes.observed_manager import ObservedManager, trace_token_loader
from trtkv.replay.closed_loop.closed_loop import (
    ClosedLoop,
    PhaseSeconds,
    Progress,
    ReplayCounts,
    Timer,
)
from trtkv.replay.closed_loop.hybrid_loop import HybridLoop
from trtkv.replay.closed_loop.result import ReplayResult, WindowResult

if TYPE_CHECKING:
    from trtkv.manager.kv_cache_manager import KVCacheManager
    from trtkv.records.stats import KvCacheIterationStats
    from trtkv.replay.config import ReplayConfig
    from trtkv.traces.trace import RequestTrace


def replay_trace(
    trace: RequestTrace,
    config: ReplayConfig,
    *,
    timer: Timer | None = None,
    progress: Progress | None = None,
    explain: bool = False,
) -> tuple[ReplayResult, PhaseSeconds]:
    """Build a manager, run the closed loop over the trace, and read the counters.

    ``timer`` (e.g. time.perf_counter) splits the time by kind of call; ``progress`` is called with the
    number of requests done after each removal. ``explain`` gives every prompt token a cause; the counts are the same.
    """
    if explain and config.states is not None:
        raise ConfigurationError("causes of misses are not known for recurrent states; leave explain out")
    if config.retention is not None and config.retention.has_durations:
        raise ConfigurationError("durations need time, which stands still in the closed loop; run with a scheduler")
    trace = config.with_retention(trace)
    observer = _observer(trace, config) if explain else None
    manager = config.build_manager(trace.requests, block_listener=observer)
    observed = (
        None if observer is None else ObservedManager(manager, observer, config.live, lambda: loop.next_request_id)
    )
    loop = _make_loop(trace, config, manager, observed, timer, progress)
    if observer is not None:
        observer.watch(manager)
    loop.run(trace.requests)
    result = _result(trace, config, loop.counts, manager)
    if observer is not None:
        explanation = explanation_of(observer, trace.requests)
        check(explanation.tokens[Cause.HIT] == loop.counts.prepopulated_tokens, "hits were counted differently")
        result = replace(result, explanation=explanation)
    return result, loop.seconds


def _make_loop(
    trace: RequestTrace,
    config: ReplayConfig,
    manager: KVCacheManager,
    observed: ObservedManager | None,
    timer: Timer | None,
    progress: Progress | None,
) -> ClosedLoop:
    num_blocks = config.num_primary_blocks(trace.requests)
    if config.states is not None:
        return HybridLoop(
            manager,
            config.states,
            tokens_per_block=config.tokens_per_block,
            num_primary_blocks=num_blocks,
            live=config.live,
            num_needed_blocks=config.num_needed_blocks,
            timer=timer,
            progress=progress,
        )
    return ClosedLoop(
        manager if observed is None else observed,
        tokens_per_block=config.tokens_per_block,
        num_primary_blocks=num_blocks,
        live=config.live,
        num_needed_blocks=config.num_needed_blocks,
        timer=timer,
        progress=progress,
    )


def _observer(trace: RequestTrace, config: ReplayConfig) -> CauseObserver:
    requests = trace.requests
    return CauseObserver(
        config.tokens_per_block,
        trace_token_loader(requests),
        has_constraints=any(request.constraints is not None for request in requests),
    )


def _result(trace: RequestTrace, config: ReplayConfig, counts: ReplayCounts, manager: KVCacheManager) -> ReplayResult:
    stats = manager.get_kv_cache_stats()
    max_sequence_length = config.max_sequence_length(trace.requests)
    return ReplayResult(
        trace=trace,
        config=config,
        counts=counts,
        max_sequence_length=max_sequence_length,
        alloc_total=stats.alloc_total_blocks,
        reused=stats.reused_blocks,
        missed=stats.missed_blocks,
        windows=tuple(
            _window_result(window, window >= max_sequence_length, window_stats, _num_orphaning(manager, window))
            for window, window_stats in sorted(manager.get_iteration_stats().items())
        ),
    )


def _num_orphaning(manager: KVCacheManager, window: WindowSize) -> int:
    return manager.block_manager.get_window_block_manager(window).eviction_policy.num_orphaning


def _window_result(
    window: WindowSize, full_attention: bool, stats: KvCacheIterationStats, num_orphaning: int
) -> WindowResult:
    """Counters since the last reading are totals here, since a replay reads them once, at its end."""
    return WindowResult(
        window_size=window,
        full_attention=full_attention,
        primary_blocks=stats.primary_max_num_blocks,
        secondary_blocks=stats.secondary_max_num_blocks,
        alloc_total=stats.iter_alloc_total_blocks,
        reused=stats.iter_reused_blocks,
        full_reused=stats.iter_full_reused_blocks,
        partial_reused=stats.iter_partial_reused_blocks,
        missed=stats.iter_missed_blocks,
        onboarded=stats.iter_onboard_blocks,
        offloaded=stats.iter_offload_blocks,
        copied=stats.iter_intra_device_copy_blocks,
        orphaning=num_orphaning,
    )
