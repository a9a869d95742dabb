"""Replays of models with recurrent states: what is found ends where a state was kept."""

from __future__ import annotations

import json
import random
from array import array
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.replay.helpers import DATA
from tests.sizing.models import MODELS, plan_of
from trtkv import cli
from trtkv.errors import ConfigurationError
from trtkv.replay.bounds.bounds import has_bounds
from trtkv.replay.closed_loop.run import replay_trace
from trtkv.replay.config import RecurrentStatesConfig, ReplayConfig
from trtkv.replay.model_capacity import apply_cache_plan, describe_cache_plan
from trtkv.traces.outputs import output_tokens
from trtkv.traces.trace import RequestTrace, TokenIds, TraceRequest

CHAT = str(DATA / "chat_120.jsonl")
REPLAY = ("replay", CHAT, "--block-size", "64", "--tokens-per-block", "64", "--live", "4")
JAMBA = ("--model", str(MODELS / "jamba-v0.1.json"))
WIDTH = 4


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments)


def conversations(seed: int, *, aligned: bool = False) -> RequestTrace:
    """Prompts that go on from earlier ones and their outputs, in several conversations at a time."""
    chance = random.Random(seed)
    texts: list[list[int]] = [[chance.randrange(3)] for _ in range(3)]
    requests = []
    for index in range(40):
        text = chance.choice(texts)
        text += [chance.randrange(2) for _ in range(chance.randint(1, 14))]
        if aligned:
            text += [0] * (-len(text) % WIDTH)
        del text[120:]
        request = TraceRequest(index, 0, len(text), chance.choice([0, 1, 3, 9]), TokenIds(array("i", text)))
        requests.append(request)
        text += output_tokens(request).tolist()
    return RequestTrace("made", "tokens", None, requests)


def config(states: int, interval: int, *, capacity_blocks: int = 10_000, live: int = 1) -> ReplayConfig:
    return ReplayConfig(
        tokens_per_block=WIDTH,
        capacity_tokens=capacity_blocks * WIDTH,
        live=live,
        partial_reuse=False,
        states=RecurrentStatesConfig(states, 0, interval),
    )


def found_with_enough_memory(trace: RequestTrace, interval: int) -> list[int]:
    """Without a manager: the longest prefix after which some earlier prompt kept its state."""
    kept: set[tuple[int, ...]] = set()
    found = []
    for request in trace.requests:
        tokens = request.tokens().tolist()
        ends = [end for end in range(WIDTH, len(tokens), WIDTH) if tuple(tokens[:end]) in kept]
        start = max(ends, default=0)
        found.append(start)
        for end in range(WIDTH, len(tokens) + 1, WIDTH):
            if end > start and ((interval and end % interval == 0) or end == len(tokens)):
                kept.add(tuple(tokens[:end]))
    return found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("interval", [0, 4, 8, 16])
def test_a_prefix_is_found_up_to_its_last_kept_state(seed: int, interval: int) -> None:
    trace = conversations(seed, aligned=seed % 2 == 0)
    result, _ = replay_trace(trace, config(5_000, interval))
    assert [outcome.found_tokens for outcome in result.counts.outcomes] == found_with_enough_memory(trace, interval)
    assert [window.name for window in result.windows] == ["states", "full"]


@pytest.mark.parametrize("seed", range(30))
def test_little_memory_finds_no_more_and_runs_what_fits(seed: int) -> None:
    """Aligned prompts leave states beside those at the interval, which no reservation knows."""
    chance = random.Random(seed)
    trace = conversations(seed, aligned=seed % 3 > 0)
    settings = config(chance.randint(4, 14), 8, capacity_blocks=chance.randint(35, 80), live=chance.randint(1, 4))
    result, _ = replay_trace(trace, settings)
    assert result.num_run + result.num_never_run == 40
    assert result.num_run > 0
    roomy, _ = replay_trace(trace, replace(settings, capacity_tokens=40_000, states=RecurrentStatesConfig(5_000, 0, 8)))
    if not result.num_never_run:
        assert result.counts.prepopulated_tokens <= roomy.counts.prepopulated_tokens + 40 * 14
    assert roomy.num_never_run == 0


def test_requests_that_need_more_states_than_there_are_never_run() -> None:
    result, _ = replay_trace(conversations(1), config(1, 4))
    assert result.num_never_run > 0
    lacking, _ = replay_trace(conversations(3, aligned=True), config(1, 4))
    assert lacking.num_run == 0
    assert "needs 3 recurrent states, the memory holds 1; enlarge --memory" in lacking.why_never_run()


def test_states_need_full_attention_beside_them() -> None:
    with pytest.raises(ConfigurationError, match="need a window with full attention beside them"):
        replace(config(5, 4), windows=(8,))


def test_a_plan_with_states() -> None:
    plan = plan_of("jamba-v0.1", 2**33, host_memory_bytes=2**30, tokens_per_block=64)
    settings = apply_cache_plan(ReplayConfig(tokens_per_block=64), plan)
    states, full = plan.windows
    assert settings.states == (states.primary_blocks, states.secondary_blocks, 256)
    assert settings.window_blocks == ((full.primary_blocks, full.secondary_blocks),)
    assert settings.capacity_tokens == full.primary_tokens
    assert not settings.partial_reuse
    assert "; recurrent states: " in describe_cache_plan(plan)
    assert not has_bounds([], settings)


def report(*arguments: str) -> dict[str, Any]:
    result = run(*REPLAY, *JAMBA, *arguments, "--json", "-")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_command_says_what_states_there_are() -> None:
    found = report("--memory", "900GiB", "--snapshot-interval", "64")
    assert found["recurrent_states"]["snapshot_interval"] == 64
    assert [window["window_size"] is None for window in found["windows"]] == [True, False]
    wider = report("--memory", "900GiB", "--snapshot-interval", "512")
    assert wider["prepopulated_tokens"] < found["prepopulated_tokens"]
    text = run(*REPLAY, *JAMBA, "--memory", "8GiB").stdout
    assert "tokens between two snapshots" in text
    assert "bounds, causes and the curve are not known for" in " ".join(text.split())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--bounds",), "are not known for recurrent states"),
        (("--explain",), "are not known for recurrent states"),
        (("--curve", "2"), "are not known for recurrent states"),
        (("--system", "nano"), "--system nano has no recurrent states"),
        (("--snapshot-interval", "100"), "100"),
    ],
)
def test_what_is_not_known_for_states_is_refused(arguments: tuple[str, ...], told: str) -> None:
    result = run(*REPLAY, *JAMBA, "--memory", "8GiB", *arguments)
    assert result.exit_code == 2
    assert told in result.stderr


def test_the_scheduler_loop_refuses_states() -> None:
    result = run(*REPLAY[:-2], *JAMBA, "--memory", "8GiB", "--scheduler", "guaranteed-no-evict")
    assert result.exit_code == 2
    assert "--scheduler does not end its steps at snapshots" in result.stderr
