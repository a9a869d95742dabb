"""Replays with an unlimited cache against a model of a few lines that shares no code with the manager."""

from __future__ import annotations

import pytest

from tests.replay.dict_cache import expected_counts
from tests.replay.helpers import DATA
from trtkv.replay.closed_loop.result import ReplayResult
from trtkv.replay.closed_loop.run import replay_trace
from trtkv.replay.config import ReplayConfig
from trtkv.traces.sessions.protocol import OLD_PROTOCOL
from trtkv.traces.trace_reader import read_trace

TRACES = [("chat_120.jsonl", 64), ("rag_100.jsonl", 64), ("agent_60.jsonl", 512)]


def replay_file(name: str, block_size: int, **settings: object) -> ReplayResult:
    """The model knows neither sessions nor outputs of a trace."""
    trace = read_trace(DATA / name, block_size=block_size, **OLD_PROTOCOL.options)
    return replay_trace(trace, ReplayConfig(**settings))[0]


@pytest.mark.parametrize(("name", "block_size"), TRACES)
@pytest.mark.parametrize("tokens_per_block", [64, 256])
@pytest.mark.parametrize("live", [1, 7])
def test_reuse_by_whole_blocks(name, block_size, tokens_per_block, live):
    result = replay_file(name, block_size, tokens_per_block=tokens_per_block, live=live, partial_reuse=False)
    expected = expected_counts(result.trace.requests, tokens_per_block, live, partial_reuse=False)
    assert {key: result.to_json()[key] for key in expected} == expected
    assert expected["reused"] > 0


@pytest.mark.parametrize(("name", "block_size"), TRACES)
@pytest.mark.parametrize("tokens_per_block", [16, 64, 256])
def test_reuse_by_tokens(name, block_size, tokens_per_block):
    result = replay_file(name, block_size, tokens_per_block=tokens_per_block)
    expected = expected_counts(result.trace.requests, tokens_per_block, live=1, partial_reuse=True)
    del expected["alloc_total"]  # depends on which blocks are taken over in place
    assert {key: result.to_json()[key] for key in expected} == expected


@pytest.mark.parametrize("partial_reuse", [False, True])
def test_an_unlimited_cache_equals_a_large_one(partial_reuse):
    unlimited = replay_file("chat_120.jsonl", 64, tokens_per_block=64, live=4, partial_reuse=partial_reuse)
    large = replay_file(
        "chat_120.jsonl", 64, tokens_per_block=64, live=4, partial_reuse=partial_reuse, capacity_tokens=10**7
    )
    keys = ("alloc_total", "reused", "missed", "prepopulated_tokens")
    assert [unlimited.to_json()[key] for key in keys] == [large.to_json()[key] for key in keys]


def test_sums_over_windows_are_the_totals():
    result = replay_file(
        "chat_120.jsonl",
        64,
        tokens_per_block=32,
        capacity_tokens=20_000,
        host_tokens=5_000,
        live=3,
        windows=(256, None),
    )
    assert [window.full_attention for window in result.windows] == [False, True]
    assert sum(window.reused for window in result.windows) == result.reused
    assert sum(window.missed for window in result.windows) == result.missed
    assert sum(window.alloc_total for window in result.windows) == result.alloc_total
    assert all(window.full_reused + window.partial_reused == window.reused for window in result.windows)
    assert result.windows[1].offloaded > 0
    assert [window.secondary_blocks for window in result.windows] == [156, 156]


def test_less_room_means_fewer_hits_and_a_host_tier_brings_some_back():
    small, hosted, large = (
        replay_file("agent_60.jsonl", 512, tokens_per_block=64, capacity_tokens=capacity, host_tokens=host, live=2)
        for capacity, host in ((40_000, 0), (40_000, 300_000), (None, 0))
    )
    assert small.reused < hosted.reused <= large.reused
