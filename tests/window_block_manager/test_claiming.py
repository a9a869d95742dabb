"""Taking blocks: who is the victim, what is offloaded, what comes back, what listeners are told."""

from __future__ import annotations

import pytest

from tests.builders import add, block_ids, make_event_manager, make_kv_cache_manager, make_request, prefill, serve
from trtkv.common import KvCacheTransferMode
from trtkv.errors import OutOfBlocksError
from trtkv.events.kv_cache_events import KVCacheRemovedData, KVCacheUpdatedData
from trtkv.inspection.invariants import check_invariants
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.retention_config import KvCacheRetentionConfig, TokenRangeRetentionConfig
from trtkv.transfers.copy_engine import OFFLOAD, ONBOARD, RecordingCopyEngine
from trtkv.window_block_manager import WindowBlockManager


def window_of(manager: KVCacheManager, window: int = 64) -> WindowBlockManager:
    return manager.block_manager.window_block_managers[window]


def make_manager(
    num_primary: int = 4, num_secondary: int = 2, **options: object
) -> tuple[KVCacheManager, RecordingCopyEngine]:
    engine = RecordingCopyEngine()
    return make_kv_cache_manager(num_primary, num_secondary, copy_engine=engine, **options), engine


def with_priority(priority: int) -> KvCacheRetentionConfig:
    return KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, priority)])


def test_victim_leaves_the_tree_and_takes_the_new_priority() -> None:
    manager, engine = make_manager(2, 0)
    serve(manager, make_request(1, [1] * 8))
    claimer = window_of(manager).claimer
    block = claimer.get_free_block(70, 5)
    assert block.is_detached
    assert (block.priority, window_of(manager).eviction_policy.get_duration_ms(block)) == (70, 5)
    assert engine.copies == []


def test_no_block_means_no_change() -> None:
    manager, _ = make_manager(2, 0)
    prefill(manager, make_request(1, 8))
    before = window_of(manager).counters.snapshot()
    with pytest.raises(OutOfBlocksError):
        window_of(manager).claimer.get_free_block()
    assert window_of(manager).counters == before


def test_block_counts_as_new_as_long_as_it_never_held_tokens() -> None:
    manager, _ = make_manager(1, 0)
    window = window_of(manager)
    block = window.claimer.get_free_block()
    window.eviction_policy.release_block(block)
    window.claimer.get_free_block()
    assert (window.counters.alloc_total, window.counters.alloc_new) == (2, 2)
    block.set_block_key(make_request().get_tokens().tobytes(), True)
    window.eviction_policy.release_block(block)
    window.claimer.get_free_block()
    assert (window.counters.alloc_total, window.counters.alloc_new) == (3, 2)


def test_cached_victim_moves_to_the_host_and_its_slot_goes_to_the_other_id() -> None:
    manager, engine = make_manager()
    serve(manager, make_request(1, [1] * 16))
    add(manager, make_request(2, [2] * 4))
    # Block 2 was released before 1 and 0; it goes to slot 0 of the host, and block 4 comes out with its slot.
    assert block_ids(manager, 2) == [4]
    (copy,) = engine.copies
    assert (copy.kind, copy.src_block_id, copy.dst_block_id) == (OFFLOAD, copy.src_block_id, 4)
    victim = manager.block_manager.get_block_by_id(copy.src_block_id, 64)
    assert not victim.is_primary
    assert not victim.is_detached
    assert manager.block_manager.get_block_by_id(4, 64).is_primary
    check_invariants(manager)


@pytest.mark.parametrize(
    ("priority", "threshold", "offloads"), [(29, None, 0), (30, None, 1), (29, 20, 1), (35, 36, 0)]
)
def test_only_victims_of_enough_priority_are_offloaded(priority: int, threshold: int | None, offloads: int) -> None:
    manager, engine = make_manager(2, 2, secondary_offload_min_priority=threshold)
    serve(manager, make_request(1, [1] * 8, kv_cache_retention_config=with_priority(priority)))
    add(manager, make_request(2, [2] * 4))
    assert len(engine.copies) == offloads


def test_block_that_never_held_tokens_is_not_offloaded() -> None:
    manager, engine = make_manager(8, 2)
    serve(manager, make_request(1, [1] * 16))
    add(manager, make_request(2, [2] * 16))
    assert engine.copies == []


def test_full_host_drops_its_oldest_block() -> None:
    manager, _ = make_manager(2, 1)
    for request_id in (1, 2, 3):
        serve(manager, make_request(request_id, [request_id] * 8))
    found = {i: manager.probe_prefix_match_length(make_request(9, [i] * 9)) for i in (1, 2, 3)}
    assert found[1] == 0
    assert found[3] == 7
    check_invariants(manager)


def test_matched_host_block_comes_back_into_a_primary_slot() -> None:
    manager, engine = make_manager(4, 4)
    serve(manager, make_request(1, [1] * 16))
    serve(manager, make_request(2, [2] * 16))
    engine.copies.clear()
    add(manager, make_request(3, [1] * 5))
    onboarded = [copy for copy in engine.copies if copy.kind == ONBOARD]
    assert len(onboarded) == 1
    (first, *_) = block_ids(manager, 3)
    assert onboarded[0].src_block_id == first
    assert manager.block_manager.get_block_by_id(first, 64).is_primary
    check_invariants(manager)


def test_onboarding_a_primary_block_or_a_placeholder_is_nothing() -> None:
    manager, engine = make_manager()
    claimer = window_of(manager).claimer
    claimer.onboard_block(claimer.get_free_block(), KvCacheTransferMode.DRAM, "")
    assert engine.copies == []


# -- by hand ----------------------------------------------------------------------------------------


def test_free_block_offloaded_by_hand_moves_to_the_queue_of_the_host() -> None:
    manager, engine = make_manager(4, 2)
    serve(manager, make_request(1, [1] * 8, kv_cache_retention_config=with_priority(60)))
    window = window_of(manager)
    (block, *_) = [b for b in window.block_objects() if b.lookup_node is not None]
    manager.block_manager.get_window_block_manager(64).claimer.offload_block(block)
    assert (engine.copies[-1].kind, block.is_primary, block.priority) == (OFFLOAD, False, 60)
    assert (window.num_free_blocks, window.num_free_secondary_blocks) == (4, 2)
    check_invariants(manager)
    manager.block_manager.get_window_block_manager(64).claimer.offload_block(block)  # it is there already
    assert len(engine.copies) == 1


def test_free_block_offloaded_by_hand_keeps_the_time_for_which_its_priority_holds() -> None:
    manager, _ = make_manager(4, 2)
    config = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 60, 50)])
    serve(manager, make_request(1, [1] * 8, kv_cache_retention_config=config))
    window = window_of(manager)
    policy = window.eviction_policy
    (block, *_) = window.matcher.list_blocks()
    window.claimer.offload_block(block)
    assert (policy.get_duration_ms(block), policy.get_expiration_time(block) is None) == (50, False)
    check_invariants(manager)


def test_host_block_that_makes_room_for_one_offloaded_by_hand_is_not_found_any_more() -> None:
    manager, _ = make_manager(4, 1)
    window = window_of(manager)
    serve(manager, make_request(1, [1] * 5))
    block = next(b for b in window.block_objects() if b.lookup_node is not None)
    manager.block_manager.get_window_block_manager(64).claimer.offload_block(block)
    serve(manager, make_request(2, [2] * 5))
    other = next(b for b in window.block_objects() if b.lookup_node is not None and b.is_primary)
    manager.block_manager.get_window_block_manager(64).claimer.offload_block(other)
    assert manager.probe_prefix_match_length(make_request(9, [1] * 6)) == 0
    assert manager.probe_prefix_match_length(make_request(9, [2] * 6)) == 4
    check_invariants(manager)


def test_offloading_by_hand_needs_room_on_the_host() -> None:
    manager, _ = make_manager(4, 0)
    prefill(manager, make_request(1, 8))
    block = manager.block_manager.get_block_by_id(0, 64)
    with pytest.raises(OutOfBlocksError):
        manager.block_manager.get_window_block_manager(64).claimer.offload_block(block)
    check_invariants(manager)


# -- what listeners are told ------------------------------------------------------------------------


def events_of(manager: KVCacheManager, kind: type) -> list[object]:
    manager.flush_iteration_events()
    return [event.data for event in manager.get_latest_events() if isinstance(event.data, kind)]


def test_evicted_block_is_reported_even_when_its_parent_is_gone() -> None:
    manager = make_kv_cache_manager(3, event_manager=make_event_manager())
    request = prefill(manager, make_request(1, [1] * 8 + [2]))
    hashes = [manager.block_manager.get_block_by_id(i, 64).hash for i in block_ids(manager, 1)[:2]]
    manager.remove_sequence(1)  # the second block is free before the first: it goes first
    del request
    window = window_of(manager)
    parent = next(b for b in window.block_objects() if b.hash == hashes[0])
    window.claimer.remove_from_tree(parent)
    child = next(b for b in window.block_objects() if b.hash == hashes[1])
    window.claimer.remove_from_tree(child)
    (removed,) = events_of(manager, KVCacheRemovedData)
    assert removed == KVCacheRemovedData(hashes)


def test_moves_between_levels_are_reported() -> None:
    manager = make_kv_cache_manager(4, 4, event_manager=make_event_manager())
    serve(manager, make_request(1, [1] * 16))
    add(manager, make_request(2, [2] * 4))
    updates = events_of(manager, KVCacheUpdatedData)
    assert [update.cache_level for update in updates] == [(0, 1)]
