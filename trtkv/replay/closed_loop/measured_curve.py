"""The measured part of a capacity curve: a run for each capacity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from trtkv.checks import check_count
from trtkv.replay.bounds.capacity_curve import CapacityCurve, CurvePoint, model_curve, spread
from trtkv.replay.closed_loop.run import replay_trace

if TYPE_CHECKING:
    from trtkv.replay.closed_loop.closed_loop import Progress
    from trtkv.replay.config import ReplayConfig
    from trtkv.traces.trace import RequestTrace


def measure_curve(
    trace: RequestTrace, config: ReplayConfig, num_points: int, *, jobs: int = 1, progress: Progress | None = None
) -> CapacityCurve:
    """The model, and a run of the manager for each of ``num_points`` capacities on up to ``jobs`` processes.

    The capacities go in equal ratios from that of the largest request to that at which nothing is evicted.
    ``progress`` is called with the number of runs done.
    """
    check_count("num_points", num_points, 1)
    check_count("jobs", jobs, 1)
    curve = model_curve(trace.requests, config.tokens_per_block)
    most_blocks = replace(config, capacity_tokens=None).num_primary_blocks(trace.requests)
    least_blocks = max(config.num_needed_blocks(request) for request in trace.requests)
    most_blocks = max(least_blocks, min(most_blocks, 2 * curve.model[-1].capacity_tokens // config.tokens_per_block))
    configs = [
        replace(config, capacity_tokens=blocks * config.tokens_per_block, window_blocks=())
        for blocks in spread(least_blocks, most_blocks, num_points)
    ]
    measured = []
    for point in _run_all(trace, configs, min(jobs, len(configs))):
        measured.append(point)
        if progress is not None:
            progress(len(measured))
    return replace(curve, measured=tuple(measured))


def _run_all(trace: RequestTrace, configs: Sequence[ReplayConfig], jobs: int) -> Iterator[CurvePoint]:
    if jobs == 1:
        yield from (_run(trace, config) for config in configs)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_run, [trace] * len(configs), configs)


def _run(trace: RequestTrace, config: ReplayConfig) -> CurvePoint:
    result, _ = replay_trace(trace, config)
    return result.curve_point()
