"""ReplayResult: what a replay counted, and the rates made from it, each with its definition."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import fsum
from typing import TYPE_CHECKING, NamedTuple

from trtkv.common import WindowSize
from trtkv.errors import check
from trtkv.records.rate import Rate
from trtkv.replay.causes.cause_observer import CauseObserver
from trtkv.replay.causes.causes import Cause
from trtkv.replay.causes.explanation import explain as explanation_of
from trtkv.replay.causes.observed_manager import ObservedManager, trace_token_loader
from trtkv.replay.closed_loop import ClosedLoop, PhaseSeconds, Progress, ReplayCounts, Timer

if TYPE_CHECKING:
    from trtkv.manager.kv_cache_manager import KVCacheManager
    from trtkv.records.stats import KvCacheIterationStats
    from trtkv.replay.bounds.bounds import Bounds
    from trtkv.replay.bounds.capacity_curve import CapacityCurve
    from trtkv.replay.causes.explanation import Explanation
    from trtkv.replay.config import ReplayConfig
    from trtkv.traces.trace import RequestTrace

SYSTEM_NAME = "tensorrt-llm"

BLOCK_HIT_RATE = (
    "prompt blocks found in the cache / prompt blocks asked for, summed over windows; "
    "a block found in part counts as found"
)
TOKEN_HIT_RATE = "prompt tokens found in the cache / prompt tokens, of all requests run (ratio of sums)"
MEAN_REQUEST_HIT_RATE = (
    "sum over requests run of (prompt tokens found / prompt tokens of that request) / requests run (mean of ratios)"
)
WINDOW_HIT_RATE = "prompt blocks found in the cache of this window / prompt blocks asked for in it"
ZERO_HIT_SHARE = "requests run of which no prompt token was found / requests run"


class WindowResult(NamedTuple):
    """Counts of one attention window, in blocks."""

    window_size: WindowSize
    full_attention: bool
    primary_blocks: int
    secondary_blocks: int
    alloc_total: int
    reused: int
    full_reused: int
    partial_reused: int
    missed: int
    onboarded: int
    """Blocks brought back from the host tier."""
    offloaded: int
    """Blocks moved to the host tier."""
    copied: int
    """Blocks copied inside the primary tier."""

    @property
    def hit_rate(self) -> Rate:
        """Block hit rate of this window."""
        return Rate("block_hit_rate", WINDOW_HIT_RATE, self.reused, self.reused + self.missed)

    def to_json(self) -> dict[str, object]:
        """All counts in the order of the fields, then the rate."""
        return {**self._asdict(), "rates": [self.hit_rate.to_json()]}


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Counts of a finished replay. Holds no times: equal runs give equal results."""

    trace: RequestTrace
    config: ReplayConfig
    counts: ReplayCounts
    max_sequence_length: int
    alloc_total: int
    """Blocks allocated, summed over windows."""
    reused: int
    """Prompt blocks found in the cache, wholly or in part, summed over windows."""
    missed: int
    """Prompt blocks not found, summed over windows."""
    windows: tuple[WindowResult, ...]
    """In ascending order of the window size."""
    explanation: Explanation | None = None
    """Why tokens were found or not, if that was asked for."""
    bounds: Bounds | None = None
    """What was possible at best, if that was asked for."""
    curve: CapacityCurve | None = None
    """Hit rates at other capacities, if they were asked for."""

    @property
    def rates(self) -> list[Rate]:
        """All rates of the run as a whole."""
        counts = self.counts
        return [
            Rate("block_hit_rate", BLOCK_HIT_RATE, self.reused, self.reused + self.missed),
            Rate("token_hit_rate", TOKEN_HIT_RATE, counts.prepopulated_tokens, counts.prompt_tokens),
            Rate("mean_request_hit_rate", MEAN_REQUEST_HIT_RATE, fsum(counts.token_hit_rates), counts.requests),
            Rate("zero_hit_share", ZERO_HIT_SHARE, counts.zero_hit_requests, counts.requests),
        ]

    def with_bounds(self, bounds: Bounds) -> ReplayResult:
        """The result with bounds of the same run. Raises LogicError if they are none."""
        counts, found = self.counts, self.counts.prepopulated_tokens
        check(
            (bounds.requests, bounds.prompt_tokens) == (counts.requests, counts.prompt_tokens),
            f"bounds of {bounds.requests} requests for a run of {counts.requests}",
        )
        check(
            found <= bounds.clairvoyant_hit_tokens <= bounds.infinite_hit_tokens,
            f"{found} tokens were found, the bounds say {bounds.clairvoyant_hit_tokens} and "
            f"{bounds.infinite_hit_tokens}",
        )
        return replace(self, bounds=bounds)

    def to_json(self) -> dict[str, object]:
        """Everything, in a fixed order: the columns of a reference run first, then settings, details and rates."""
        config, counts = self.config, self.counts
        return {
            "trace": self.trace.name,
            "tokens_per_block": config.tokens_per_block,
            "capacity_tokens": "inf" if config.capacity_tokens is None else config.capacity_tokens,
            "host_tokens": config.host_tokens,
            "live": config.live,
            "partial_reuse": config.partial_reuse,
            "requests": counts.requests,
            "prompt_tokens": counts.prompt_tokens,
            "prompt_blocks": counts.prompt_blocks,
            "decode_calls": counts.decode_calls,
            "alloc_total": self.alloc_total,
            "reused": self.reused,
            "missed": self.missed,
            "prepopulated_tokens": counts.prepopulated_tokens,
            "system": SYSTEM_NAME,
            "format": self.trace.format,
            "block_size": self.trace.block_size,
            "trace_requests": len(self.trace.requests),
            "skipped_requests": counts.skipped_requests,
            "malformed_rows": len(self.trace.faults),
            "zero_hit_requests": counts.zero_hit_requests,
            "copy_on_partial_reuse": config.copy_on_partial_reuse,
            "compatibility": config.compatibility,
            "attention_windows": ["full" if window is None else window for window in config.windows],
            "max_sequence_length": self.max_sequence_length,
            "rates": [rate.to_json() for rate in self.rates],
            "windows": [window.to_json() for window in self.windows],
            **{name: part.to_json() for name, part in self._optional_parts().items() if part is not None},
        }

    def _optional_parts(self) -> dict[str, Explanation | Bounds | CapacityCurve | None]:
        return {"explanation": self.explanation, "bounds": self.bounds, "curve": self.curve}

    def _repr_html_(self) -> str:
        """Tables for a notebook; needs nothing that is not installed."""
        from trtkv.replay.report.html_tables import result_tables

        return result_tables(self)


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
    observer = _observer(trace, config) if explain else None
    manager = config.build_manager(trace.requests, block_listener=observer)
    loop = ClosedLoop(
        manager if observer is None else _observed(manager, observer, trace, config),
        tokens_per_block=config.tokens_per_block,
        num_primary_blocks=config.num_primary_blocks(trace.requests),
        live=config.live,
        num_needed_blocks=config.num_needed_blocks,
        timer=timer,
        progress=progress,
    )
    loop.run(trace.requests)
    result = _result(trace, config, loop.counts, manager)
    if observer is not None:
        explanation = explanation_of(observer, trace.requests)
        check(explanation.tokens[Cause.HIT] == loop.counts.prepopulated_tokens, "hits were counted differently")
        result = replace(result, explanation=explanation)
    return result, loop.seconds


def _observer(trace: RequestTrace, config: ReplayConfig) -> CauseObserver:
    requests = trace.requests
    return CauseObserver(
        config.tokens_per_block,
        trace_token_loader(requests),
        has_constraints=any(request.constraints is not None for request in requests),
    )


def _observed(
    manager: KVCacheManager, observer: CauseObserver, trace: RequestTrace, config: ReplayConfig
) -> ObservedManager:
    observer.watch(manager)
    num_requests = len(trace.requests)
    return ObservedManager(
        manager, observer, config.live, lambda index: index + 1 if index + 1 < num_requests else None
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
            _window_result(window, window >= max_sequence_length, window_stats)
            for window, window_stats in sorted(manager.get_iteration_stats().items())
        ),
    )


def _window_result(window: WindowSize, full_attention: bool, stats: KvCacheIterationStats) -> WindowResult:
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
    )
