"""Counts of the original manager for public traces; tools/check_reference_runs.py compares all of them."""

from __future__ import annotations

import pytest

from tools.check_reference_runs import describe, load_runs, load_trace, outcomes_of
from trtkv.replay.closed_loop.run import replay_trace
from trtkv.replay.config import ReplayConfig


def differences(shared_dir, mode: str, *selection: str) -> list[str]:
    runs = load_runs(shared_dir, selection)
    assert runs, f"no reference run has {selection}"
    outcomes = [outcomes_of(run, shared_dir, mode) for run in runs]
    return [describe(outcome) for outcome in outcomes if outcome[-1].differences]


def test_token_ids_with_eviction_and_host_tier(shared_dir):
    assert differences(shared_dir, "auto", "trace=sharegpt-llama", "tokens_per_block=32", "live=32") == []


def test_without_partial_reuse_the_plain_mode_has_the_same_counts(shared_dir):
    selection = ("trace=sharegpt-llama", "tokens_per_block=16", "partial_reuse=False", "window=None", "live=32")
    assert differences(shared_dir, "plain", *selection) == []


def test_hash_ids_with_eviction_and_host_tier(shared_dir):
    selection = ("trace=conversation-2000", "tokens_per_block=512", "capacity_tokens=1000000", "live=64")
    assert differences(shared_dir, "auto", *selection) == []


def test_a_sliding_window_alone_and_beside_full_attention(shared_dir):
    selection = ("trace=sharegpt-llama", "window=512", "capacity_tokens=60000", "host_tokens=60000", "live=8")
    assert differences(shared_dir, "auto", *selection) == []


def test_sessions_and_outputs_of_the_trace(shared_dir):
    assert differences(shared_dir, "compatibility", "trace=agentic", "tokens_per_block=64") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "partial_reuse", "reused", "prompt_blocks", "prepopulated_tokens", "prompt_tokens"),
    [
        ("conversation", False, 105_592, 288_500, 54_063_104, 144_793_823),
        ("conversation", True, 105_710, 288_500, 54_098_293, 144_793_823),
        ("synthetic", False, 77_740, 121_877, 39_802_880, 61_194_628),
        ("synthetic", True, 77_952, 121_877, 39_852_448, 61_194_628),
    ],
)
def test_whole_traces_with_an_unlimited_cache(
    shared_dir, name, partial_reuse, reused, prompt_blocks, prepopulated_tokens, prompt_tokens
):
    config = ReplayConfig(tokens_per_block=512, partial_reuse=partial_reuse)
    report = replay_trace(load_trace(shared_dir, name), config)[0].to_json()
    assert (report["reused"], report["prompt_blocks"]) == (reused, prompt_blocks)
    assert (report["prepopulated_tokens"], report["prompt_tokens"]) == (prepopulated_tokens, prompt_tokens)


def test_whole_blocks_of_16_of_the_token_trace(shared_dir):
    """The number that the trace's own publisher reports."""
    config = ReplayConfig(tokens_per_block=16, partial_reuse=False)
    report = replay_trace(load_trace(shared_dir, "sharegpt-llama"), config)[0].to_json()
    assert (report["prepopulated_tokens"], report["prompt_tokens"]) == (19_520, 257_239)
