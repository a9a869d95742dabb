"""CapacityCurve: how the hit rate of a trace depends on the size of the cache.

Three curves over one axis. The least-recently-used model is exact for all capacities in one pass, but it is a model:
one request at a time, whole blocks, prompts only. What the manager does at a capacity under the settings of the run,
and what a clairvoyant cache could, take a run for each capacity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from trtkv.checks import check_count
from trtkv.records.rate import Rate
from trtkv.replay.bounds.bounds import bounds_of, found_units
from trtkv.replay.result import replay_trace
from trtkv.traces.prefixes.prefix_tree import PrefixTree
from trtkv.traces.prefixes.reuse_distance import ReuseDistances, measure_reuse
from trtkv.traces.prefixes.symbols import BlockSymbols, prompt_tokens

if TYPE_CHECKING:
    from trtkv.replay.closed_loop import Progress
    from trtkv.replay.config import ReplayConfig
    from trtkv.traces.trace import RequestTrace, TraceRequest

LRU_MODEL_RATE: Final = (
    "prompt tokens in full blocks of {0} tokens found by a least-recently-used cache of this size that serves one "
    "request at a time and keeps prompts only, never the last token / prompt tokens of all requests"
)
NUM_MODEL_POINTS: Final = 48


class CurvePoint(NamedTuple):
    """One capacity, run."""

    capacity_tokens: int
    requests: int
    skipped_requests: int
    prompt_tokens: int
    """Of the requests run."""
    found_tokens: int
    """By the manager."""
    clairvoyant_tokens: int | None
    """At best; None without a full-attention window."""

    def to_json(self) -> dict[str, object]:
        """The fields in their order, then the rate."""
        rate = self.found_tokens / self.prompt_tokens if self.prompt_tokens else None
        return {**self._asdict(), "token_hit_rate": rate}


class ModelPoint(NamedTuple):
    """One capacity of the least-recently-used model."""

    capacity_tokens: int
    found_tokens: int


@dataclass(frozen=True, slots=True)
class CapacityCurve:
    """Points in ascending order of capacity."""

    tokens_per_block: int
    prompt_tokens: int
    """Of all requests; the model never skips one."""
    model: tuple[ModelPoint, ...]
    measured: tuple[CurvePoint, ...]

    def model_rate(self, point: ModelPoint) -> Rate:
        """A point of the model as a rate."""
        definition = LRU_MODEL_RATE.format(self.tokens_per_block)
        return Rate("lru_model_token_hit_rate", definition, point.found_tokens, self.prompt_tokens)

    def to_json(self) -> dict[str, object]:
        """Definition, then both curves."""
        return {
            "lru_model": {
                "definition": LRU_MODEL_RATE.format(self.tokens_per_block),
                "prompt_tokens": self.prompt_tokens,
                "points": [point._asdict() for point in self.model],
            },
            "measured": [point.to_json() for point in self.measured],
        }


def prompt_reuse_distances(requests: Sequence[TraceRequest], tokens_per_block: int) -> ReuseDistances:
    """Reuse distances of the full blocks that a prompt may find, all but the one with its last token, in blocks."""
    symbols = BlockSymbols(requests, prompt_tokens, tokens_per_block)
    tree = PrefixTree(symbols.load)
    for position in range(len(requests)):
        tree.insert(symbols.load(position))
    findable = [found_units(request, tokens_per_block) for request in requests]
    distances, _ = measure_reuse(tree, len(requests), num_findable=findable)
    return distances


def model_curve(
    requests: Sequence[TraceRequest], tokens_per_block: int, *, num_points: int = NUM_MODEL_POINTS
) -> CapacityCurve:
    """The model's curve alone, from one pass; its last capacity is that of all different blocks."""
    check_count("tokens_per_block", tokens_per_block, 1)
    check_count("num_points", num_points, 1)
    distances = prompt_reuse_distances(requests, tokens_per_block)
    sizes = _spread(1, max(distances.num_distinct, 1), num_points)
    return CapacityCurve(
        tokens_per_block=tokens_per_block,
        prompt_tokens=sum(request.input_length for request in requests),
        model=tuple(ModelPoint(size * tokens_per_block, distances.num_hits(size) * tokens_per_block) for size in sizes),
        measured=(),
    )


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
        for blocks in _spread(least_blocks, most_blocks, num_points)
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
    bounds = bounds_of(trace.requests, config)
    return CurvePoint(
        config.capacity_tokens or 0,
        result.counts.requests,
        result.counts.skipped_requests,
        result.counts.prompt_tokens,
        result.counts.prepopulated_tokens,
        None if bounds is None else bounds.clairvoyant_hit_tokens,
    )


def _spread(first: int, last: int, count: int) -> list[int]:
    """Different whole numbers from first to last, in equal ratios as far as rounding allows."""
    if count == 1 or first == last:
        return [last]
    ratio = last / first
    return sorted({round(first * ratio ** (step / (count - 1))) for step in range(count)})
