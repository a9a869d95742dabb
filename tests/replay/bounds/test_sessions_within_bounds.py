"""Random small traces with sessions and outputs that occur again: no bound is beaten, and causes sum to the prompts."""

from __future__ import annotations

import random
from array import array

import pytest

from trtkv.replay.bounds.bounds import bounds_of
from trtkv.replay.causes.causes import Cause
from trtkv.replay.closed_loop.run import replay_trace
from trtkv.replay.config import ReplayConfig
from trtkv.traces.trace import KnownOutput, RequestTrace, TokenIds, TraceRequest

NUM_TRACES = 10_000
SHARE = 100


def draw_tokens(rng: random.Random, texts: list[list[int]], alphabet: int) -> list[int]:
    """The beginning of an earlier text, often a whole one, and a few tokens more."""
    start: list[int] = []
    if texts and rng.random() < 0.7:
        text = rng.choice(texts)
        start = text if rng.random() < 0.5 else text[: rng.randint(0, len(text))]
    return [*start[:60], *(rng.randrange(alphabet) for _ in range(rng.randint(1, 15)))]


def draw_trace(rng: random.Random) -> RequestTrace:
    """Prompts that go on from earlier prompts with their outputs; outputs that are generated twice, or never known."""
    alphabet = rng.choice((2, 3, 50))
    requests: list[TraceRequest] = []
    texts: list[list[int]] = []
    for index in range(rng.randint(1, 14)):
        prompt = draw_tokens(rng, texts, alphabet)
        output = draw_tokens(rng, [text[-20:] for text in texts], alphabet)[-rng.randint(1, 20) :]
        known = rng.random() < 0.8
        waits = bool(requests) and rng.random() < 0.5
        requests.append(
            TraceRequest(
                index,
                float(index),
                len(prompt),
                len(output),
                TokenIds(array("i", prompt)),
                output=KnownOutput(TokenIds(array("i", output)), len(output)) if known else None,
                predecessors=(rng.randrange(index),) if waits else (),
            )
        )
        texts.append(prompt + output if known else prompt)
    return RequestTrace("t", "tokens", None, requests)


def draw_config(rng: random.Random) -> ReplayConfig:
    return ReplayConfig(
        tokens_per_block=rng.choice((1, 2, 4, 8)),
        capacity_tokens=rng.choice((100, 130, 160, 240, None)),
        host_tokens=rng.choice((0, 0, 0, 40, 100)),
        live=rng.choice((1, 1, 2, 4)),
        partial_reuse=rng.random() < 0.7,
        copy_on_partial_reuse=rng.random() < 0.7,
        windows=rng.choice(((None,), (None,), (None, 8))),
        compatibility=rng.random() < 0.3,
    )


def check_trace(seed: int) -> int:
    """Tokens found in the trace of a seed."""
    rng = random.Random(seed)
    trace, config = draw_trace(rng), draw_config(rng)
    result, _ = replay_trace(trace, config, explain=True)
    bounds = bounds_of(trace.requests, config)
    assert bounds is not None
    found = result.counts.prepopulated_tokens
    assert found <= bounds.clairvoyant_hit_tokens <= bounds.infinite_hit_tokens, f"seed {seed}"
    assert result.explanation is not None
    assert result.explanation.table.sum(axis=1).tolist() == [request.input_length for request in trace.requests]
    assert result.explanation.tokens[Cause.HIT] == found, f"seed {seed}"
    return found


def test_no_bound_is_beaten() -> None:
    assert sum(check_trace(seed) > 0 for seed in range(SHARE)) > SHARE // 2


@pytest.mark.slow
def test_no_bound_is_beaten_in_many_traces() -> None:
    assert sum(check_trace(seed) > 0 for seed in range(SHARE, NUM_TRACES)) > NUM_TRACES // 2
