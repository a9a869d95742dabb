"""Rows 34 to 39 of docs/users_rows.md: the secondary level in host memory."""

from __future__ import annotations

import random

import pytest

from tests.builders import WINDOW, make_event_manager, make_kv_cache_manager, make_request
from tests.users.serving import admit, compute, decode, make_manager_with_memory, serve
from trtkv.errors import OutOfBlocksError
from trtkv.events.kv_cache_event_consumer import KVCacheEventConsumer
from trtkv.events.kv_cache_events import KVCacheRemovedData, KVCacheUpdatedData
from trtkv.inspection.invariants import check_invariants


def test_row_34_without_a_host_block_cached_blocks_are_dropped() -> None:
    """A host tier is configured but too small for a single block, or full, and nothing can be evicted any more."""
    for num_host_blocks in (0, 1):
        manager, memory = make_manager_with_memory(4, num_host_blocks)
        for index in range(6):
            serve(manager, index, range(20 * index, 20 * index + 16), memory)
            memory.check_tree(manager)
        stats = manager.get_kv_cache_stats()
        assert (stats.free_num_blocks, stats.secondary_max_num_blocks) == (4, num_host_blocks)
        check_invariants(manager)


def test_row_35_onboarded_content_is_right_even_if_its_slot_is_reused_at_once() -> None:
    """A block comes back from the host while another one takes its slot there: foreign tokens appear."""
    rng = random.Random(35)
    manager, memory = make_manager_with_memory(6, 6, secondary_offload_min_priority=0)
    prompts = [[10 * p + rng.randint(0, 1) for _ in range(13)] for p in range(5)]
    num_onboarded = 0
    for index in range(200):
        request = make_request(index, rng.choice(prompts))
        admit(manager, request)
        memory.check_sequence(manager, request, request.prepopulated_prompt_len)
        compute(manager, request, memory)
        memory.check_tree(manager)
        manager.remove_sequence(index, request)
        num_onboarded += manager.get_iteration_stats()[WINDOW].iter_onboard_blocks
    assert num_onboarded > 50
    check_invariants(manager)


@pytest.mark.parametrize("num_host_blocks", [1, 3])
def test_row_36_a_host_smaller_than_the_device_starves_nobody(num_host_blocks: int) -> None:
    """Writing to a full host counts as done, or requests wait for room there."""
    manager, memory = make_manager_with_memory(10, num_host_blocks, secondary_offload_min_priority=0)
    for index in range(60):
        request = make_request(index, range(7 * index, 7 * index + 21))
        admit(manager, request)
        compute(manager, request, memory)
        manager.remove_sequence(index, request)
        memory.check_tree(manager)
        blocks = manager.block_manager.window_block_managers[WINDOW].matcher.list_blocks()
        assert sum(not block.is_primary for block in blocks) <= num_host_blocks
    assert manager.num_free_blocks == 10


def test_row_36_a_host_full_of_held_blocks_means_dropping() -> None:
    """No host block can be taken because all are held there; the device block is dropped, not waited for."""
    manager, memory = make_manager_with_memory(6, 1, secondary_offload_min_priority=0)
    holder = make_request(1, 4)
    admit(manager, holder)
    compute(manager, holder, memory)
    block = manager.block_manager.get_block_by_id(manager.get_cache_block_ids(1, WINDOW)[0][0], WINDOW)
    manager.block_manager.get_window_block_manager(WINDOW).claimer.offload_block(block)
    assert manager.get_kv_cache_stats().secondary_free_num_blocks == 0
    for index in range(2, 8):
        serve(manager, index, range(20 * index, 20 * index + 20), memory)
    memory.check_tree(manager)
    assert not block.is_primary


def test_row_38_totals_count_the_device_only() -> None:
    """The blocks of the host are part of the totals, so usage looks too low and free too high."""
    manager = make_kv_cache_manager(8, 20)
    request = make_request(1, 16)
    admit(manager, request)
    stats = manager.get_kv_cache_stats()
    assert (stats.max_num_blocks, stats.used_num_blocks, stats.free_num_blocks) == (8, 4, 4)
    assert (stats.secondary_max_num_blocks, stats.secondary_free_num_blocks) == (20, 20)
    entry = manager.get_iteration_stats()[WINDOW]
    assert (entry.primary_max_num_blocks, entry.primary_used_num_blocks) == (8, 4)
    assert (entry.secondary_max_num_blocks, entry.secondary_used_num_blocks) == (20, 0)


def test_row_39_a_block_is_removed_for_listeners_only_when_its_last_copy_goes() -> None:
    """A block that moves to the host is reported as removed, or one that is advertised cannot be had any more."""
    manager = make_kv_cache_manager(4, 4, event_manager=make_event_manager(), secondary_offload_min_priority=0)
    consumer = KVCacheEventConsumer()
    serve(manager, 1, [*range(8), 0])
    manager.flush_iteration_events()
    consumer.apply(manager.get_latest_events(0))
    cached = set(consumer.get_tree(WINDOW).blocks)
    serve(manager, 2, range(50, 66))  # takes all four, so both cached blocks move to the host
    manager.flush_iteration_events()
    events = manager.get_latest_events(0)
    moved = [e.data for e in events if isinstance(e.data, KVCacheUpdatedData)]
    assert {data.block_hash for data in moved} == cached
    assert {data.cache_level for data in moved} == {(0, 1)}
    assert not any(isinstance(e.data, KVCacheRemovedData) for e in events)
    consumer.apply(events)
    # Everything advertised can be had.
    request = make_request(3, [*range(8), 0])
    assert manager.probe_prefix_match_length(request) == 8
    admit(manager, request)
    manager.flush_iteration_events()
    events = manager.get_latest_events(0)
    consumer.apply(events)
    back = [e.data for e in events if isinstance(e.data, KVCacheUpdatedData) and e.data.cache_level == (1, 0)]
    assert {data.block_hash for data in back} == cached
    compute(manager, request)
    decode(manager, request, [])
    manager.remove_sequence(3, request)
    for index in range(4, 12):
        serve(manager, index, range(100 * index, 100 * index + 16))
        manager.flush_iteration_events()
        consumer.apply(manager.get_latest_events(0))
        blocks = manager.block_manager.window_block_managers[WINDOW].matcher.list_blocks()
        assert set(consumer.get_tree(WINDOW).blocks) == {block.hash for block in blocks}
    assert not cached & set(consumer.get_tree(WINDOW).blocks)
    assert consumer.num_unknown_blocks == 0


def test_row_39_nothing_is_advertised_that_a_failed_admission_would_have_moved() -> None:
    """Events of a call that fails half-way describe what never happened."""
    manager = make_kv_cache_manager(4, 2, event_manager=make_event_manager())
    serve(manager, 1, [*range(8), 0])
    manager.flush_iteration_events()
    manager.get_latest_events(0)
    with pytest.raises(OutOfBlocksError):
        admit(manager, make_request(2, 40))
    manager.flush_iteration_events()
    assert manager.get_latest_events(0) == []
