"""Bounds: exact on small cases found by trying everything, never below what a real manager reaches."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from tests.replay.nano.nano_runs import run_nano
from tests.replay.trace_builders import random_requests, token_request
from trtkv.errors import InvalidInputError
from trtkv.replay.bounds.bounds import compute_bounds
from trtkv.replay.closed_loop.run import replay_trace
from trtkv.replay.config import ReplayConfig
from trtkv.traces.prefixes.infinite_matches import infinite_hit_tokens, infinite_matches
from trtkv.traces.trace import RequestTrace, TraceRequest
from trtkv.traces.trace_reader import read_trace

Unit = tuple[int, ...]


def stored_units(request: TraceRequest, unit: int) -> list[Unit]:
    """Full units of a prompt without output, each as the whole prefix up to its end."""
    tokens = request.tokens().tolist()
    return [tuple(tokens[:end]) for end in range(unit, len(tokens) + 1, unit)]


def subsets(units: frozenset[Unit], most: int) -> Iterator[frozenset[Unit]]:
    for size in range(min(most, len(units)) + 1):
        yield from map(frozenset, combinations(sorted(units), size))


def most_hits(requests: list[TraceRequest], unit: int, capacity: int) -> int:
    """The most hits of one request at a time, by trying every choice of what to keep."""
    states: dict[frozenset[Unit], int] = {frozenset(): 0}
    for request in requests:
        units = stored_units(request, unit)
        num_held = -(-request.input_length // unit)
        findable = units[: (request.input_length - 1) // unit]
        following: dict[frozenset[Unit], int] = {}
        for kept, hits in states.items():
            found = next((i for i, prefix in enumerate(findable) if prefix not in kept), len(findable))
            for rest in subsets(kept - set(units), capacity - num_held):
                for after in subsets(rest | set(units), capacity):
                    following[after] = max(following.get(after, 0), hits + found)
        states = following
    return max(states.values())


@pytest.mark.parametrize("seed", range(60))
def test_clairvoyant_bound_is_the_best_of_all_choices(seed: int) -> None:
    rng = random.Random(seed)
    unit = rng.choice((1, 2))
    requests = random_requests(rng, 5, max_length=4 * unit, max_output=0, alphabet=2)
    largest = max(-(-request.input_length // unit) for request in requests)
    capacity = rng.randint(max(largest, 7), 8)  # the closed loop reserves up to 4 + 3 blocks for each
    bounds = compute_bounds(requests, tokens_per_block=unit, capacity_tokens=capacity * unit)
    assert bounds.skipped_requests == 0
    # A started block is found whole by a prompt that, but for its last token, is all that an earlier one left.
    prompts = [request.tokens().tolist() for request in requests]
    rests = sum((len(prompt) - 1) % unit for i, prompt in enumerate(prompts) if prompt[:-1] in prompts[:i])
    assert bounds.clairvoyant_hit_tokens == most_hits(requests, unit, capacity) * unit + rests


def test_capacity_below_which_something_has_to_go() -> None:
    a, b, c = [1, 1, 1, 1, 1], [2, 2, 2, 2, 2], [3, 3, 3, 3, 3]
    requests = [token_request(i, tokens) for i, tokens in enumerate([a, b, c, a, b, c])]
    hits = {
        capacity: compute_bounds(requests, tokens_per_block=1, capacity_tokens=capacity).clairvoyant_hit_tokens
        for capacity in (8, 9, 10, 12, 15)
    }
    # A live request holds 5 units, so C - 5 others can be kept meanwhile. Of each prompt 4 can be found again. While
    # the first c is live, units of a and b share that room; while the second a is live, units of b and c do.
    # Best: all of a and c first, then b with what is left beside them.
    assert hits == {8: 3 + 0 + 3, 9: 4 + 0 + 4, 10: 4 + 1 + 4, 12: 4 + 3 + 4, 15: 4 + 4 + 4}


def test_last_prompt_token_is_never_found_and_parts_of_blocks_only_with_partial_reuse() -> None:
    requests = [token_request(0, [1] * 10), token_request(1, [1] * 10), token_request(2, [1] * 7 + [2])]
    full = compute_bounds(requests, tokens_per_block=4)
    assert (full.infinite_hit_tokens, full.clairvoyant_hit_tokens) == (8 + 4, 8 + 4)
    partial = compute_bounds(requests, tokens_per_block=4, partial_reuse=True)
    assert (partial.infinite_hit_tokens, partial.clairvoyant_hit_tokens) == (9 + 7, 9 + 7)
    assert partial.prompt_tokens == 28


def test_generated_text_can_be_found_once_its_request_is_done() -> None:
    # Request 0 generates 4 3 2 1, of which the last is never stored.
    requests = [token_request(0, [7, 8], 4), token_request(1, [7, 8, 4, 3, 2, 1, 5])]
    assert compute_bounds(requests, tokens_per_block=1).infinite_hit_tokens == 5
    assert compute_bounds(requests, tokens_per_block=1).clairvoyant_hit_tokens == 5


def test_requests_admitted_together_share_only_what_the_bound_lets_them() -> None:
    requests = [token_request(i, [1] * 9, 2) for i in range(3)]
    bounds = compute_bounds(requests, tokens_per_block=2, live=3)
    assert bounds.clairvoyant_hit_tokens == 16  # an upper bound: a real manager finds nothing here
    assert run_nano(requests, tokens_per_block=2, capacity_tokens=None, live=3)["prepopulated_tokens"] == 0


def test_skipped_requests_neither_count_nor_leave_anything() -> None:
    requests = [token_request(0, [1] * 50), token_request(1, [1] * 5), token_request(2, [1] * 5)]
    bounds = compute_bounds(requests, tokens_per_block=2, capacity_tokens=12)
    assert (bounds.requests, bounds.skipped_requests, bounds.prompt_tokens) == (2, 1, 10)
    assert bounds.infinite_hit_tokens == 4


def test_host_tier_adds_to_the_capacity_but_not_to_admission() -> None:
    requests = random_requests(random.Random(4), 60, max_length=30)
    tight = compute_bounds(requests, tokens_per_block=2, capacity_tokens=60)
    hosted = compute_bounds(requests, tokens_per_block=2, capacity_tokens=60, host_tokens=60)
    wide = compute_bounds(requests, tokens_per_block=2, capacity_tokens=120)
    assert tight.clairvoyant_hit_tokens < hosted.clairvoyant_hit_tokens
    assert (hosted.requests, hosted.clairvoyant_hit_tokens) == (wide.requests, wide.clairvoyant_hit_tokens)
    with pytest.raises(InvalidInputError, match="host_tokens is -1"):
        compute_bounds(requests, tokens_per_block=2, host_tokens=-1)


@pytest.mark.parametrize("seed", range(30))
def test_managers_stay_below_the_clairvoyant_bound_and_it_below_the_infinite_one(seed: int) -> None:
    rng = random.Random(seed)
    requests = random_requests(rng, 60, max_output=rng.choice((0, 8)))
    tokens_per_block, live = rng.choice((1, 2, 4)), rng.choice((1, 3))
    capacity = rng.choice((80, 120, 200))
    loop = {"tokens_per_block": tokens_per_block, "capacity_tokens": capacity, "live": live}
    full = compute_bounds(requests, **loop)  # type: ignore[arg-type]
    partial = compute_bounds(requests, **loop, partial_reuse=True)  # type: ignore[arg-type]
    nano = run_nano(requests, **loop)
    assert nano["prepopulated_tokens"] <= full.clairvoyant_hit_tokens <= full.infinite_hit_tokens
    assert full.clairvoyant_hit_tokens <= partial.clairvoyant_hit_tokens <= partial.infinite_hit_tokens
    trace = RequestTrace("t", "tokens", None, requests)
    for bounds, partial_reuse in ((full, False), (partial, True)):
        result, _ = replay_trace(trace, ReplayConfig(**loop, partial_reuse=partial_reuse))  # type: ignore[arg-type]
        assert result.counts.prepopulated_tokens <= bounds.clairvoyant_hit_tokens
        assert (result.counts.requests, result.counts.prompt_tokens) == (bounds.requests, bounds.prompt_tokens)


@pytest.mark.parametrize("seed", range(10))
def test_bound_grows_with_the_capacity_up_to_the_infinite_one(seed: int) -> None:
    requests = random_requests(random.Random(seed), 50)
    hits = [
        compute_bounds(requests, tokens_per_block=2, capacity_tokens=capacity, live=2).clairvoyant_hit_tokens
        for capacity in (100, 120, 160, 240, 10_000)
    ]
    assert hits == sorted(hits)
    assert hits[-1] == compute_bounds(requests, tokens_per_block=2).infinite_hit_tokens


def test_rates_say_what_they_are() -> None:
    requests = [token_request(0, [1] * 5), token_request(1, [1] * 5)]
    report = compute_bounds(requests, tokens_per_block=2, capacity_tokens=20).to_json()
    rates = {rate["name"]: rate for rate in report["rates"]}  # type: ignore[attr-defined]
    assert set(rates) == {"infinite_token_hit_rate", "clairvoyant_token_hit_rate"}
    for rate in rates.values():
        assert (rate["numerator"], rate["denominator"], rate["value"]) == (4, 10, 0.4)
        assert "full blocks of 2 tokens only" in rate["definition"]
    assert report["capacity_tokens"] == 20


def test_public_token_trace_gives_the_known_integers(shared_dir: Path) -> None:
    trace = read_trace(shared_dir / "traces" / "sharegpt" / "sharegpt-llama-3.1-8b-300-sps10.jsonl")
    matches = infinite_matches(trace.requests)
    known = {1: 20_067, 16: 19_520, 32: 19_328, 64: 18_880}
    assert {size: infinite_hit_tokens(trace.requests, matches, size) for size in known} == known
    for size, hit_tokens in known.items():
        bounds = compute_bounds(trace.requests, tokens_per_block=size)
        assert (bounds.infinite_hit_tokens, bounds.clairvoyant_hit_tokens) == (hit_tokens, hit_tokens)


def test_public_hash_id_traces_give_the_known_integers(shared_dir: Path) -> None:
    known = {
        "conversation": (144_793_823, 54_098_411, 54_098_293, 54_063_104),
        "synthetic": (61_194_628, 39_852_661, 39_852_448, 39_802_880),
    }
    for name, (prompt_tokens, whole, capped, full) in known.items():
        trace = read_trace(shared_dir / "traces" / "mooncake" / f"{name}_trace.jsonl", block_size=512)
        matches = infinite_matches(trace.requests)
        assert sum(request.input_length for request in trace.requests) == prompt_tokens
        assert sum(matches) == whole
        assert infinite_hit_tokens(trace.requests, matches, 1) == capped
        assert infinite_hit_tokens(trace.requests, matches, 512) == full
        assert infinite_hit_tokens(trace.requests, matches, 512, keep_last=False) == full


@pytest.mark.slow
def test_recorded_runs_stay_below_the_bounds(shared_dir: Path) -> None:
    runs = json.loads((shared_dir / "reference" / "reference_runs.json").read_text())
    traces = {
        "sharegpt-llama": read_trace(shared_dir / "traces" / "sharegpt" / "sharegpt-llama-3.1-8b-300-sps10.jsonl"),
        "conversation-2000": read_trace(
            shared_dir / "traces" / "mooncake" / "conversation_trace.jsonl", block_size=512, limit=2000
        ),
    }
    num_checked = num_tight = 0
    for run in runs:
        if run["trace"] not in traces or run["tokens_per_block"] < 32:
            continue
        capacity = None if run["capacity_tokens"] in (None, "inf") else run["capacity_tokens"]
        bounds = compute_bounds(
            traces[run["trace"]].requests,
            tokens_per_block=run["tokens_per_block"],
            capacity_tokens=capacity,
            host_tokens=run["host_tokens"],
            live=run["live"],
            partial_reuse=run["partial_reuse"],
        )
        assert (bounds.requests, bounds.prompt_tokens) == (run["requests"], run["prompt_tokens"])
        assert run["prepopulated_tokens"] <= bounds.clairvoyant_hit_tokens <= bounds.infinite_hit_tokens
        num_checked += 1
        num_tight += run["prepopulated_tokens"] == bounds.infinite_hit_tokens
    assert num_checked > 50
    assert num_tight > 0
