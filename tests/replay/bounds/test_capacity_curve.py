"""The curve over capacities: the model against a cache written out, runs against replays."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.replay.trace_builders import random_requests, token_request
from trtkv.errors import InvalidInputError
from trtkv.replay.bounds.bounds import bounds_of
from trtkv.replay.bounds.capacity_curve import model_curve
from trtkv.replay.closed_loop.measured_curve import measure_curve
from trtkv.replay.closed_loop.run import replay_trace
from trtkv.replay.config import ReplayConfig
from trtkv.traces.prefixes.infinite_matches import infinite_hit_tokens, infinite_matches
from trtkv.traces.prefixes.symbols import prompt_tokens
from trtkv.traces.trace import RequestTrace, TraceRequest


def lru_hits(requests: Sequence[TraceRequest], size: int, num_blocks: int) -> int:
    """Blocks found by a cache of so many blocks: a request touches its blocks, the deepest first."""
    cache: OrderedDict[tuple[int, ...], None] = OrderedDict()
    hits = 0
    for request in requests:
        tokens = request.tokens().tolist()
        path = [tuple(tokens[:end]) for end in range(size, len(tokens) + 1, size)]
        for prefix in path[: (len(tokens) - 1) // size]:
            if prefix not in cache:
                break
            hits += 1
        for prefix in reversed(path):
            cache[prefix] = None
            cache.move_to_end(prefix)
        while len(cache) > num_blocks:
            cache.popitem(last=False)
    return hits


@pytest.mark.parametrize("seed", range(20))
def test_model_is_a_cache_for_each_capacity(seed: int) -> None:
    rng = random.Random(seed)
    requests = random_requests(rng, 50, max_length=30)
    size = rng.choice((1, 2, 4))
    curve = model_curve(requests, size, num_points=12)
    capacities = [point.capacity_tokens for point in curve.model]
    assert capacities == sorted(set(capacities))
    for point in curve.model:
        assert point.found_tokens == size * lru_hits(requests, size, point.capacity_tokens // size)
    infinite = infinite_hit_tokens(requests, infinite_matches(requests, prompt_tokens), size)
    assert curve.model[-1].found_tokens == infinite


def test_points_are_replays_and_the_same_on_several_processes() -> None:
    requests = random_requests(random.Random(1), 60)
    trace = RequestTrace("t", "tokens", None, requests)
    config = ReplayConfig(tokens_per_block=2, live=2)
    seen: list[int] = []
    curve = measure_curve(trace, config, 4, progress=seen.append)
    assert seen == [1, 2, 3, 4][: len(curve.measured)]
    assert len(curve.measured) == 4
    for point in curve.measured:
        at = replace(config, capacity_tokens=point.capacity_tokens)
        result, _ = replay_trace(trace, at)
        bounds = bounds_of(requests, at)
        assert point.found_tokens == result.counts.prepopulated_tokens <= point.clairvoyant_tokens
        assert point.clairvoyant_tokens == bounds.clairvoyant_hit_tokens
        assert (point.requests, point.skipped_requests) == (result.counts.requests, 0)
    assert measure_curve(trace, config, 4, jobs=2) == curve


def test_without_a_full_window_there_is_no_clairvoyant_line() -> None:
    trace = RequestTrace("t", "tokens", None, random_requests(random.Random(2), 20))
    curve = measure_curve(trace, ReplayConfig(tokens_per_block=2, windows=(8,)), 2)
    assert [point.clairvoyant_tokens for point in curve.measured] == [None] * len(curve.measured)


def test_shortest_traces_have_a_curve() -> None:
    trace = RequestTrace("t", "tokens", None, [token_request(0, [1])])
    curve = measure_curve(trace, ReplayConfig(tokens_per_block=4), 5)
    assert [point.found_tokens for point in curve.measured] == [0]
    assert curve.to_json()["lru_model"]["prompt_tokens"] == 1  # type: ignore[index]


@pytest.mark.parametrize(("points", "jobs"), [(0, 1), (1, 0)])
def test_no_points_or_no_processes_are_refused(points: int, jobs: int) -> None:
    trace = RequestTrace("t", "tokens", None, [token_request(0, [1])])
    with pytest.raises(InvalidInputError, match="give at least 1"):
        measure_curve(trace, ReplayConfig(), points, jobs=jobs)
