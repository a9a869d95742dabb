"""Eviction policies in replays: none finds more than is possible, all find the same where nothing is evicted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.replay.trace_builders import random_requests
from trtkv.cli import app
from trtkv.errors import ConfigurationError
from trtkv.eviction.eviction_choice import EvictionChoice, parse_eviction_options
from trtkv.eviction.registry import EVICTIONS
from trtkv.replay.bounds.bounds import compute_bounds
from trtkv.replay.closed_loop.run import replay_trace
from trtkv.replay.config import ReplayConfig
from trtkv.traces.trace import RequestTrace

NUM_TRACES = 1000
SHARE = 30


def check_trace(seed: int) -> int:
    """Policies that find another number of tokens than the original's, in the random trace of a seed."""
    rng = random.Random(seed)
    requests = random_requests(rng, 40, max_output=rng.choice((0, 6)))
    loop: dict[str, Any] = {
        "tokens_per_block": rng.choice((1, 2, 4)),
        "capacity_tokens": rng.choice((80, 120, 160)),
        "live": rng.choice((1, 2)),
        "partial_reuse": rng.random() < 0.5,
    }
    bounds = compute_bounds(requests, **loop)
    found = {}
    for name in EVICTIONS:
        for leaves_only in (True, False) if name not in ("priority-lru", "lru") else (True,):
            choice = EvictionChoice(name, leaves_only=leaves_only, seed=seed)
            config = ReplayConfig(**loop, eviction=choice)
            result, _ = replay_trace(RequestTrace("t", "tokens", None, requests), config)
            found[choice] = result.counts.prepopulated_tokens
            assert 0 <= found[choice] <= bounds.clairvoyant_hit_tokens, choice
    assert found[EvictionChoice("lru", seed=seed)] == found[EvictionChoice("priority-lru", seed=seed)]
    return sum(value != found[EvictionChoice("lru", seed=seed)] for value in found.values())


def test_no_policy_beats_the_bound() -> None:
    assert sum(check_trace(seed) for seed in range(SHARE)) > 5 * SHARE


@pytest.mark.slow
def test_no_policy_beats_the_bound_in_many_traces() -> None:
    for seed in range(SHARE, NUM_TRACES):
        check_trace(seed)


@pytest.mark.parametrize("name", EVICTIONS)
def test_without_evictions_all_policies_find_the_same(name: str) -> None:
    requests = random_requests(random.Random(5), 60)
    trace = RequestTrace("t", "tokens", None, requests)
    counts = []
    for choice in (EvictionChoice(), EvictionChoice(name)):
        result, _ = replay_trace(trace, ReplayConfig(tokens_per_block=2, eviction=choice))
        counts.append((result.counts.prepopulated_tokens, result.reused))
    assert counts[0] == counts[1]


def test_equal_seeds_draw_the_same_and_others_do_not() -> None:
    trace = RequestTrace("t", "tokens", None, random_requests(random.Random(5), 200))
    found = []
    for seed in (1, 1, 2):
        config = ReplayConfig(tokens_per_block=2, capacity_tokens=90, eviction=EvictionChoice("random", seed=seed))
        found.append(replay_trace(trace, config)[0].counts.prepopulated_tokens)
    assert found[0] == found[1] != found[2]


def test_a_report_names_the_policy() -> None:
    choice = EvictionChoice("slru", (("protected", 0.5),), leaves_only=False)
    assert choice.label == "slru, protected=0.5, any block"
    result, _ = replay_trace(
        RequestTrace("t", "tokens", None, random_requests(random.Random(5), 4)), ReplayConfig(eviction=choice)
    )
    assert result.to_json()["eviction"] == {
        "name": "slru",
        "options": {"protected": 0.5},
        "leaves_only": False,
        "seed": 0,
    }


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        (EvictionChoice("nope"), "'nope' is not known; choose from lru"),
        (EvictionChoice("arc", (("size", 1.0),)), "arc has no option 'size'; it has none"),
        (EvictionChoice("lru", (("size", 1.0),)), "lru takes blocks in the order of their release and has no options"),
        (EvictionChoice("priority-lru", leaves_only=False), "has no options; leave them out"),
        (EvictionChoice("nowhere:Policy"), "nowhere:Policy cannot be imported"),
        (EvictionChoice("trtkv.eviction.lru:NONE"), "cannot be imported"),
        (EvictionChoice("trtkv.eviction.lru:LRU", leaves_only=False), "give it its options in Python"),
    ],
)
def test_choices_that_are_none_are_refused(choice: EvictionChoice, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        ReplayConfig(eviction=choice)


def test_a_policy_of_ones_own_is_named_by_its_module() -> None:
    assert EvictionChoice("trtkv.eviction.lru:LRU").make() == EVICTIONS["lru"]


def test_options_are_numbers() -> None:
    assert parse_eviction_options(["a=1", "b=0.5"]) == (("a", 1.0), ("b", 0.5))
    with pytest.raises(ConfigurationError, match="'a=x' is not NAME=NUMBER"):
        parse_eviction_options(["a=x"])


def run(*arguments: str) -> tuple[int, str]:
    outcome = CliRunner().invoke(app, list(arguments))
    return outcome.exit_code, outcome.output + str(outcome.exception or "")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 8, "output_length": 2, "hash_ids": [1, 2]}\n' * 3)
    return str(path)


def test_the_command_takes_policies_and_options(trace: str) -> None:
    code, text = run(
        "replay", trace, "--block-size", "4", "--eviction", "slru", "--eviction-option", "protected=0.8", "--any-block"
    )
    assert code == 0, text
    assert "slru, protected=0.8, any block" in " ".join(text.split())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--eviction", "arc", "--compatibility"), "incompatible with compatibility=True"),
        (
            ("--eviction", "arc", "--scheduler", "max-utilization", "--record", "r.jsonl"),
            "has no eviction policy 'arc'",
        ),
        (("--eviction", "arc", "--system", "nano"), "knows none of"),
        (("--eviction", "belady"), "'belady' is not known"),
    ],
)
def test_the_command_refuses_what_cannot_be(trace: str, options: tuple[str, ...], reason: str) -> None:
    code, text = run("replay", trace, "--block-size", "4", *options)
    assert code != 0
    assert reason in " ".join(text.split())


def test_a_sweep_takes_all_policies(trace: str, tmp_path: Path) -> None:
    csv = tmp_path / "rows.csv"
    code, text = run("sweep", trace, "--set", "block-size=4", "--set", "eviction=all", "--csv", str(csv), "--jobs", "1")
    assert code == 0, text
    assert len(csv.read_text().splitlines()) == 1 + len(EVICTIONS)
