"""Counts of the original manager for public traces; tools/check_reference_runs.py compares all of them."""

from __future__ import annotations

import pytest

from tools.check_reference_runs import compare, load_runs, load_trace
from trtkv.replay.replay_config import ReplayConfig
from trtkv.replay.replay_result import replay_trace


def differences(shared_dir, *selection: str) -> list[str]:
    runs = load_runs(shared_dir, selection)
    assert runs, f"no reference run has {selection}"
    outcomes = [compare(run, shared_dir) for run in runs]
    return [f"{outcome.run}: {'; '.join(outcome.differences)}" for outcome in outcomes if outcome.differences]


def test_token_ids_with_eviction_and_host_tier(shared_dir):
    assert differences(shared_dir, "trace=sharegpt-llama", "tokens_per_block=32", "window=None") == []


def test_hash_ids_with_eviction_and_host_tier(shared_dir):
    assert differences(shared_dir, "trace=conversation-2000", "tokens_per_block=512", "capacity_tokens=1000000") == []


def test_a_sliding_window_alone_and_beside_full_attention(shared_dir):
    assert differences(shared_dir, "trace=sharegpt-llama", "window=512", "live=8", "capacity_tokens=60000") == []


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
