"""Hit rates and the counters behind them, as a manager fills them in."""

from __future__ import annotations

import pytest

from tests.builders import add, decode, finish_prompt, make_kv_cache_manager, make_request, serve
from trtkv.records.stats import KvCacheIterationStats, KvCacheStats, KvCacheTransferStats, hit_rate


@pytest.mark.parametrize(("reused", "missed", "expected"), [(0, 0, 0.0), (0, 5, 0.0), (3, 1, 0.75), (4, 0, 1.0)])
def test_hit_rate_is_the_share_of_what_was_asked_for(reused: int, missed: int, expected: float) -> None:
    assert hit_rate(reused, missed) == expected


def test_records_start_at_zero_and_share_nothing() -> None:
    assert KvCacheTransferStats() == KvCacheTransferStats(0, 0, 0, 0, 0, 0)
    assert KvCacheIterationStats().iter_cache_hit_rate == 0.0
    first, second = KvCacheStats(), KvCacheStats()
    first.num_free_blocks_per_window_size[4] = 1
    assert second.num_free_blocks_per_window_size == {}


def test_totals_count_hits_misses_and_allocations() -> None:
    manager = make_kv_cache_manager(16, 4)
    serve(manager, make_request(1, 13))
    serve(manager, make_request(2, 13))
    stats = manager.get_kv_cache_stats()
    # Thirteen tokens are four blocks; the second request finds the three full ones.
    assert (stats.reused_blocks, stats.missed_blocks, stats.alloc_total_blocks) == (3, 5, 5)
    assert stats.cache_hit_rate == 3 / 8
    assert (stats.max_num_blocks, stats.free_num_blocks, stats.used_num_blocks) == (16, 16, 0)
    assert (stats.secondary_max_num_blocks, stats.secondary_free_num_blocks) == (4, 4)
    assert stats.tokens_per_block == 4
    assert stats.num_free_blocks_per_window_size == {64: 16}
    assert stats.allocated_bytes == 16 * 4 * 2 * 2  # blocks, tokens, keys and values, bytes of a half


def test_block_is_new_until_it_has_held_tokens() -> None:
    manager = make_kv_cache_manager(4)
    serve(manager, make_request(1, [1] * 14))
    serve(manager, make_request(2, [2] * 14))
    stats = manager.get_kv_cache_stats()
    assert (stats.alloc_total_blocks, stats.alloc_new_blocks) == (8, 4)


def test_recorded_totals_include_the_host_tier() -> None:
    manager = make_kv_cache_manager(16, 4, compatibility=True)
    stats = manager.get_kv_cache_stats()
    assert (stats.max_num_blocks, stats.used_num_blocks) == (20, 4)


def test_iteration_stats_are_those_since_the_last_reading() -> None:
    manager = make_kv_cache_manager(16)
    request = finish_prompt(add(manager, make_request(1, 8)))
    decode(manager, request, [5] * 6)
    (first,) = manager.get_iteration_stats().values()
    assert (first.iter_alloc_total_blocks, first.iter_missed_blocks, first.iter_gen_alloc_blocks) == (4, 2, 2)
    assert (first.primary_max_num_blocks, first.primary_free_num_blocks, first.primary_used_num_blocks) == (16, 12, 4)
    (second,) = manager.get_iteration_stats().values()
    assert second.iter_alloc_total_blocks == second.iter_missed_blocks == second.iter_gen_alloc_blocks == 0
    assert second.primary_used_num_blocks == 4


def test_full_and_partial_hits_are_told_apart() -> None:
    manager = make_kv_cache_manager(16)
    serve(manager, make_request(1, 13))
    manager.get_iteration_stats()
    add(manager, make_request(2, [*range(1, 11), 99]))
    (stats,) = manager.get_iteration_stats().values()
    assert (stats.iter_full_reused_blocks, stats.iter_partial_reused_blocks, stats.iter_reused_blocks) == (2, 1, 3)
    assert stats.iter_missed_blocks == 0
    assert stats.iter_cache_hit_rate == 1.0


def test_transfers_are_counted_by_kind() -> None:
    manager = make_kv_cache_manager(4, 8)
    serve(manager, make_request(1, [1] * 13))
    serve(manager, make_request(2, [2] * 13))  # pushes the first one's blocks to the host
    add(manager, make_request(3, [1] * 9))  # brings two of them back
    (stats,) = manager.get_iteration_stats().values()
    assert stats.iter_offload_blocks > 0
    assert stats.iter_onboard_blocks == 2
    assert stats.iter_onboard_bytes == 2 * 16
    assert stats.iter_intra_device_copy_blocks == 0
