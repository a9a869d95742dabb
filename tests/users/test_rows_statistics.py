"""Rows 47 to 52 and 60 of docs/users_rows.md: what numbers count, and what a trace says and does not say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders import WINDOW, make_kv_cache_manager, make_request
from tests.replay.causes.explained import explained, rows, trace_of
from tests.replay.trace_builders import token_request
from tests.users.serving import admit, compute, serve
from trtkv.blocks.block_listener import RemovalReason
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import SECONDARY_LEVEL
from trtkv.errors import InvalidInputError, TraceFormatError
from trtkv.eviction.eviction_policy import get_cache_level
from trtkv.replay.closed_loop.result import ReplayResult
from trtkv.replay.closed_loop.run import replay_trace
from trtkv.replay.config import ReplayConfig
from trtkv.traces.trace import RequestTrace, TraceRequest
from trtkv.traces.trace_reader import read_trace


def replay(requests: list[TraceRequest], **settings: object) -> ReplayResult:
    config = ReplayConfig(**{"tokens_per_block": 4, **settings})  # type: ignore[arg-type]
    return replay_trace(RequestTrace("t", "tokens", None, requests), config)[0]


def rates(result: ReplayResult) -> dict[str, float | None]:
    return {rate.name: rate.value for rate in result.rates}


def test_row_47_a_warm_up_can_be_left_out() -> None:
    """Requests of a warm-up stay in the hit rate of the measurement."""
    manager = make_kv_cache_manager(32)
    for index in range(5):
        serve(manager, index, 17)
    before, warm_up = manager.get_kv_cache_stats(), manager.get_iteration_stats()[WINDOW]
    assert (warm_up.iter_reused_blocks, warm_up.iter_missed_blocks) == (before.reused_blocks, before.missed_blocks)
    assert warm_up.iter_cache_hit_rate > 0.5
    manager.reset_reuse_state()
    for index in range(5, 8):
        serve(manager, index, range(100 * index, 100 * index + 16))
    measured, after = manager.get_iteration_stats()[WINDOW], manager.get_kv_cache_stats()
    assert (measured.iter_reused_blocks, measured.iter_missed_blocks, measured.iter_cache_hit_rate) == (0, 12, 0.0)
    assert after.missed_blocks - before.missed_blocks == 12
    assert after.reused_blocks == before.reused_blocks


def test_row_48_ratio_of_sums_and_mean_of_ratios_have_two_names() -> None:
    """One long request that is found and one short one that is not: 0.5 or 0.98, under one name."""
    long = list(range(401))
    found = rates(replay([token_request(0, long), token_request(1, long), token_request(2, range(500, 508))]))
    assert found["token_hit_rate"] == pytest.approx(400 / 810)
    assert found["mean_request_hit_rate"] == pytest.approx(400 / 401 / 3)
    definitions = {rate.name: rate.definition for rate in replay([token_request(0, long)]).rates}
    assert "ratio of sums" in definitions["token_hit_rate"]
    assert "mean of ratios" in definitions["mean_request_hit_rate"]


@pytest.mark.parametrize("host_tokens", [0, 400])
def test_row_49_a_request_counts_once_however_many_tiers_are_asked(host_tokens: int) -> None:
    """Each tier counts a query of its own, so the denominator is the sum over tiers."""
    prompts = [[*range(100 * group, 100 * group + 16), 7] for group in (1, 2, 3, 1, 2, 3)]
    result = replay(
        [token_request(index, prompt) for index, prompt in enumerate(prompts)],
        capacity_tokens=40,
        host_tokens=host_tokens,
    )
    assert result.counts.prompt_tokens == sum(map(len, prompts))
    assert result.reused + result.missed == result.counts.prompt_blocks == 6 * 5
    found = 3 * 16 if host_tokens else 0
    assert result.counts.prepopulated_tokens == found
    assert rates(result)["token_hit_rate"] == found / (6 * 17)


def test_row_50_the_block_size_of_a_trace_is_never_guessed(tmp_path: Path) -> None:
    """A trace of 512 tokens a hash id is replayed as one of 64, or has rows whose ids do not fit their length."""
    path = tmp_path / "t.jsonl"
    lengths = {2: (513, 1024), 1: (1, 512)}
    wrong = {2: (512, 1025), 1: (513,)}
    good = [(ids, length) for ids, both in lengths.items() for length in both]
    bad = [(ids, length) for ids, both in wrong.items() for length in both]
    written = [
        json.dumps({"timestamp": 0, "input_length": length, "output_length": 1, "hash_ids": list(range(ids))})
        for ids, length in (*good, *bad)
    ]
    path.write_text("\n".join(written) + "\n")
    with pytest.raises(InvalidInputError, match="do not say how many tokens a hash id stands for"):
        read_trace(path)
    with pytest.raises(TraceFormatError, match=r"t.jsonl:1: hash_ids holds 2 ids, .* at block size 64 needs 9"):
        read_trace(path, block_size=64)
    with pytest.raises(TraceFormatError, match=r"t.jsonl:5: hash_ids holds 2 ids, .* needs 1"):
        read_trace(path, block_size=512)
    trace = read_trace(path, block_size=512, lenient=True)
    assert [request.input_length for request in trace.requests] == [length for _, length in good]
    assert [fault.line_number for fault in trace.faults] == [5, 6, 7]
    assert trace.block_size == 512


def test_row_51_the_ids_of_the_next_turn_decide_what_generated_text_becomes(tmp_path: Path) -> None:
    """The answer of a turn is part of the next prompt, but the trace has no identity for it."""
    path = tmp_path / "chat.jsonl"
    turns = [(8, 4, [1, 2]), (16, 4, [1, 2, 3, 4]), (24, 4, [1, 2, 3, 4, 5, 6])]
    written = [
        json.dumps({"timestamp": 0, "input_length": length, "output_length": output, "hash_ids": ids})
        for length, output, ids in turns
    ]
    path.write_text("\n".join(written) + "\n")
    trace = read_trace(path, block_size=4)
    result, _ = replay_trace(trace, ReplayConfig(tokens_per_block=4), explain=True)
    # What a prompt held is found; the answer behind it (the first new id) was never a prompt before, so it is computed.
    assert rows(result) == [{"cold": 8}, {"hit": 8, "cold": 8}, {"hit": 16, "cold": 8}]


def test_row_52_what_the_host_tier_did_can_be_read() -> None:
    """Asked for: hits by tier, what the host lost before it was used again, what can be evicted, all by iteration."""
    lost: list[tuple[int, RemovalReason]] = []

    class Listener:
        def on_match(self, request_id: int, window_size: int, blocks: object, num_tokens: int) -> None: ...

        def on_allocation(self, request_id: int, window_size: int) -> None: ...

        def on_removed(self, block: KVCacheBlock, window_size: int, reason: RemovalReason) -> None:
            lost.append((get_cache_level(block), reason))

        def on_moved(self, block: KVCacheBlock, window_size: int, level: int) -> None: ...

    manager = make_kv_cache_manager(5, 3, secondary_offload_min_priority=0, block_listener=Listener())
    count = manager.block_manager.count_evictable_blocks
    serve(manager, 1, range(17))
    assert count() == {WINDOW: (4, 0)}
    serve(manager, 2, range(100, 117))
    stats = manager.get_iteration_stats()[WINDOW]
    primary, secondary = count()[WINDOW]
    assert (stats.primary_used_num_blocks, stats.secondary_max_num_blocks) == (0, 3)
    assert (primary, secondary, stats.iter_offload_blocks) == (4, 3, 4)
    assert lost == [(SECONDARY_LEVEL, RemovalReason.EVICTED)]  # the host has room for three of the four
    request = make_request(3, range(17))
    admit(manager, request)
    stats = manager.get_iteration_stats()[WINDOW]
    assert (stats.iter_reused_blocks, stats.iter_onboard_blocks) == (3, 3)  # all hits came from the host
    assert (stats.primary_used_num_blocks, stats.secondary_used_num_blocks) == (5, 0)
    compute(manager, request)
    causes = explained(
        trace_of([*range(16), 7], range(100, 117), range(200, 217), [*range(16), 7]),
        blocks=8,
        host_tokens=8,
    )
    assert rows(causes)[3]["evicted"] > 0
    assert causes.explanation is not None
    assert "host" in json.dumps(causes.explanation.to_json())


def test_row_60_tokens_found_are_the_ones_that_need_not_be_computed() -> None:
    """Usage reports what matched, although a rule (the last token, a window) cut it down."""
    for windows in (None, {16: (16, 0), WINDOW: (16, 0)}):
        manager = make_kv_cache_manager(16, windows=windows)
        serve(manager, 1, 16)
        request = make_request(2, 16)
        probed = manager.probe_prefix_match_length(request)
        admit(manager, request)
        skipped = request.context_current_position
        assert request.prepopulated_prompt_len == probed == skipped
        assert request.context_remaining_length == 16 - skipped >= 1
    result = replay([token_request(0, range(16)), token_request(1, range(16))])
    assert result.counts.prepopulated_tokens == 15
    assert rates(result)["token_hit_rate"] == 15 / 32
