"""Letting go: order in the queues, pins, truncation, and the simulation of removals."""

from __future__ import annotations

import pytest

from tests.builders import (
    add,
    block_ids,
    decode,
    finish_prompt,
    make_kv_cache_manager,
    make_request,
    num_free,
    prefill,
    serve,
)
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.errors import InvalidInputError, LogicError, UnknownIdError
from trtkv.inspection.invariants import check_invariants
from trtkv.keys.block_key import BlockKey
from trtkv.manager.kv_cache_manager import KVCacheManager


def queue(manager: KVCacheManager, priority: int = 35) -> list[int]:
    window = manager.block_manager.window_block_managers[manager.max_attention_window]
    return next((ids for level, p, ids in window.eviction_policy.free_queues() if (level, p) == (0, priority)), [])


def cached(manager: KVCacheManager, window: int = 64) -> dict[tuple[int, ...], KVCacheBlock]:
    blocks = manager.block_manager.window_block_managers[window].block_objects()
    return {BlockKey.unpack(b.block_key).tokens: b for b in blocks if b.lookup_node is not None}


# -- removal ----------------------------------------------------------------------------------------


def test_uncached_blocks_go_to_the_front_and_cached_ones_to_the_back_deepest_first() -> None:
    manager = make_kv_cache_manager(6)
    request = prefill(manager, make_request(1, 13))
    ids = block_ids(manager, 1)
    manager.remove_sequence(1)
    assert ids == [0, 1, 2, 3]
    assert queue(manager) == [3, 4, 5, 2, 1, 0]
    del request


def test_block_without_reusable_state_is_taken_before_one_with() -> None:
    """Two requests compute the same blocks; only those of the one that stored first are worth keeping."""
    manager = make_kv_cache_manager(8)
    requests = [finish_prompt(add(manager, make_request(i, 13))) for i in (1, 2)]
    for request in requests:
        manager.remove_sequence(request.request_id, request)
    assert manager.probe_prefix_match_length(make_request(3, 13)) == 12
    prefill(manager, make_request(4, [77] * 16))
    assert manager.probe_prefix_match_length(make_request(3, 13)) == 12


def test_removed_sequence_is_gone_at_once() -> None:
    manager = make_kv_cache_manager()
    request = prefill(manager, make_request(1, 9))
    manager.remove_sequence(1, request)
    manager.remove_sequence(1, request)
    assert manager.sequences == {}
    assert num_free(manager) == 16
    with pytest.raises(UnknownIdError):
        manager.add_token(1)
    add(manager, make_request(1, 9))
    check_invariants(manager)


# -- pins -------------------------------------------------------------------------------------------


def test_pin_on_a_sequence_holds_every_entry_once_more() -> None:
    manager = make_kv_cache_manager()
    request = prefill(manager, make_request(1, 9))
    ids = block_ids(manager, 1)
    manager.pin_blocks(1)
    manager.pin_blocks(1)
    manager.remove_sequence(1, request)
    assert num_free(manager) == 13
    manager.unpin_blocks_by_id([*ids, ids[0]])
    assert num_free(manager) == 14
    check_invariants(manager, pins={64: {ids[1]: 1, ids[2]: 1}})
    manager.unpin_blocks_by_id(ids[1:])
    assert num_free(manager) == 16


@pytest.mark.parametrize("extra", [[0], [5], [0, 1, 2, 0]])
def test_reference_that_is_no_pin_cannot_be_unpinned(extra: list[int]) -> None:
    manager = make_kv_cache_manager()
    prefill(manager, make_request(1, 9))
    manager.pin_blocks(1)
    with pytest.raises(InvalidInputError, match="cannot remove"):
        manager.unpin_blocks_by_id([0, 1, 2, *extra])
    check_invariants(manager, pins={64: {0: 1, 1: 1, 2: 1}})


@pytest.mark.parametrize("wrong", [16, -1, -(2**31) + 1])
def test_unknown_block_among_those_to_unpin_changes_nothing(wrong: int) -> None:
    manager = make_kv_cache_manager()
    prefill(manager, make_request(1, 9))
    manager.pin_blocks(1)
    with pytest.raises(UnknownIdError, match=f"has no block {wrong}"):
        manager.unpin_blocks_by_id([0, wrong])
    check_invariants(manager, pins={64: {0: 1, 1: 1, 2: 1}})
    manager.unpin_blocks_by_id([])


def test_pinned_block_is_still_found_and_never_evicted() -> None:
    manager = make_kv_cache_manager(4)
    request = prefill(manager, make_request(1, 9))
    manager.store_blocks_for_reuse(1, request, True)
    manager.remove_sequence(1, request)
    serve(manager, make_request(2, [7] * 7))
    serve(manager, make_request(3, [8] * 7))
    assert manager.probe_prefix_match_length(make_request(4, 9)) == 8
    check_invariants(manager)


def test_pins_leave_out_positions_that_left_the_window() -> None:
    manager = make_kv_cache_manager(window=4)
    request = finish_prompt(add(manager, make_request(1, 4)))
    decode(manager, request, [1] * 6)
    manager.pin_blocks(1)
    manager.remove_sequence(1, request)
    assert num_free(manager) == 14
    check_invariants(manager)


# -- truncation -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("keep", "left"), [(0, 4), (3, 4), (4, 8), (7, 8), (8, 12), (12, 16), (15, 16), (16, 16)])
def test_what_lies_behind_the_tokens_to_keep_is_dropped(keep: int, left: int) -> None:
    manager = make_kv_cache_manager()
    serve(manager, make_request(1, 17))
    manager.truncate_blocks(list(range(1, 18)), keep)
    assert manager.probe_prefix_match_length(make_request(2, 17)) == left
    assert num_free(manager) == 16
    check_invariants(manager)


def test_dropped_blocks_are_taken_first_and_those_in_use_stay_with_their_sequence() -> None:
    manager = make_kv_cache_manager(8)
    live = prefill(manager, make_request(1, 9))
    serve(manager, make_request(2, 17))
    dropped = [cached(manager)[key].block_id for key in ((9, 10, 11, 12), (13, 14, 15, 16))]
    manager.truncate_blocks(list(range(1, 18)), 0)
    assert queue(manager)[: len(dropped)] == dropped
    assert manager.block_manager.get_block_by_id(block_ids(manager, 1)[1], 64).is_detached
    assert block_ids(manager, 1) == [0, 1, 2]
    check_invariants(manager, {1: live})
    add(manager, make_request(3, 2))
    assert block_ids(manager, 3) == dropped[:1]


def test_branches_below_are_dropped_and_others_are_not() -> None:
    manager = make_kv_cache_manager(24)
    start = [1, 2, 3, 4, 5, 6, 7, 8]
    for index, tail in enumerate(([9] * 5, [10] * 5, [11] * 5)):
        serve(manager, make_request(index, start + tail))
    serve(manager, make_request(9, [1, 2, 3, 4, 8, 8, 8, 8, 8]))
    manager.truncate_blocks(start, 0)
    assert [manager.probe_prefix_match_length(make_request(5, start + [t] * 5)) for t in (9, 10, 11)] == [4] * 3
    assert manager.probe_prefix_match_length(make_request(5, [1, 2, 3, 4, 8, 8, 8, 8, 8])) == 8
    check_invariants(manager)


def test_truncation_works_twice_and_on_what_was_never_cached() -> None:
    manager = make_kv_cache_manager()
    serve(manager, make_request(1, 13))
    for _ in range(2):
        manager.truncate_blocks(list(range(1, 14)), 0)
        check_invariants(manager)
    manager.truncate_blocks([99] * 20, 0)
    manager.truncate_blocks([], 0)
    assert manager.probe_prefix_match_length(make_request(2, 13)) == 4


def test_constrained_blocks_are_not_those_of_plain_tokens() -> None:
    manager = make_kv_cache_manager()
    serve(manager, make_request(1, 13, cache_salt="s"))
    manager.truncate_blocks(list(range(1, 14)), 0)
    assert manager.probe_prefix_match_length(make_request(2, 13, cache_salt="s")) == 12


def test_truncation_reaches_blocks_below_a_hole_of_a_window() -> None:
    manager = make_kv_cache_manager(8, window=4)
    serve(manager, make_request(1, 17))
    window = manager.block_manager.window_block_managers[4]
    window.claimer.remove_from_tree(cached(manager, 4)[5, 6, 7, 8])
    assert manager.probe_prefix_match_length(make_request(2, 17)) == 16
    manager.truncate_blocks(list(range(1, 18)), 0)
    assert list(cached(manager, 4)) == [(1, 2, 3, 4)]
    assert manager.probe_prefix_match_length(make_request(2, 17)) == 4
    check_invariants(manager)


def test_truncation_covers_all_windows() -> None:
    manager = make_kv_cache_manager(windows={64: (8, 0), 8: (8, 0)})
    serve(manager, make_request(1, 17))
    manager.truncate_blocks(list(range(1, 18)), 4)
    for window in (64, 8):
        assert set(cached(manager, window)) == {(1, 2, 3, 4), (5, 6, 7, 8)}
    check_invariants(manager)


# -- simulation -------------------------------------------------------------------------------------


def test_simulated_removals_free_what_nobody_else_holds() -> None:
    manager = make_kv_cache_manager(16)
    prefill(manager, make_request(1, 9))
    add(manager, make_request(2, 9))
    manager.start_scheduling()
    assert manager.scheduling_num_free_blocks(64) == 12
    manager.scheduling_remove_sequence(1)
    assert manager.scheduling_num_free_blocks(64) == 13
    manager.scheduling_remove_sequence(2)
    assert manager.scheduling_num_free_blocks(64) == 16
    assert manager.scheduling_has_free_blocks(16, 64)
    assert not manager.scheduling_has_free_blocks(17, 64)
    assert num_free(manager) == 12
    manager.start_scheduling()
    assert manager.scheduling_num_free_blocks(64) == 12


def test_sequence_leaves_a_simulation_once_even_if_others_share_all_its_blocks() -> None:
    manager = make_kv_cache_manager(16)
    request = prefill(manager, make_request(1, 9))
    manager.pin_blocks(1)
    add(manager, make_request(2, 9))
    manager.start_scheduling()
    manager.scheduling_remove_sequence(1)
    with pytest.raises(InvalidInputError, match="request 1 was already removed in this simulation"):
        manager.scheduling_remove_sequence(1)
    assert manager.scheduling_num_free_blocks(64) == 12
    manager.scheduling_remove_sequence(2)
    assert manager.scheduling_num_free_blocks(64) == 13  # the pinned ones stay
    manager.start_scheduling()
    manager.scheduling_remove_sequence(1)
    del request


def test_block_that_changes_hands_in_a_simulation_is_free_once() -> None:
    """The holder is removed in the simulation and then really; the next one gets the same block."""
    manager = make_kv_cache_manager(1)
    add(manager, make_request(1, 2))
    manager.start_scheduling()
    manager.scheduling_remove_sequence(1)
    manager.remove_sequence(1)
    add(manager, make_request(2, 2))
    manager.scheduling_remove_sequence(2)
    assert manager.scheduling_num_free_blocks(64) == 1


def test_references_of_a_simulation_can_be_read() -> None:
    manager = make_kv_cache_manager(8)
    prefill(manager, make_request(1, 9))
    add(manager, make_request(2, 9))
    manager.start_scheduling()
    manager.scheduling_remove_sequence(1)
    shared, own = block_ids(manager, 1)[0], block_ids(manager, 1)[2]
    assert [manager.get_scheduling_ref_count(block_id, 64) for block_id in (shared, own, 7)] == [1, 0, 0]
    assert cached(manager)[1, 2, 3, 4].ref_count == 2
    with pytest.raises(UnknownIdError):
        manager.get_scheduling_ref_count(8, 64)


def test_simulation_knows_sequences_and_pins_that_came_after_its_start() -> None:
    manager = make_kv_cache_manager(8)
    manager.scheduling_remove_sequence(add(manager, make_request(1, 4)).request_id)
    manager.start_scheduling()
    add(manager, make_request(2, 4))
    manager.pin_blocks(1)
    manager.scheduling_remove_sequence(1)
    assert manager.scheduling_num_free_blocks(64) == 7
    manager.scheduling_remove_sequence(2)
    assert manager.scheduling_num_free_blocks(64) == 8


def test_recorded_simulation_has_the_references_of_its_start() -> None:
    manager = make_kv_cache_manager(8, compatibility=True)
    add(manager, make_request(1, 4))
    with pytest.raises(LogicError, match="block 0 has no simulated reference"):
        manager.scheduling_remove_sequence(1)
    manager.start_scheduling()
    manager.pin_blocks(1)
    manager.scheduling_remove_sequence(1)
    assert manager.scheduling_num_free_blocks(64) == 8
    manager.unpin_blocks_by_id([0])
    manager.remove_sequence(1)
    manager.start_scheduling()
    add(manager, make_request(2, 4))
    with pytest.raises(LogicError, match="has no simulated reference"):
        manager.scheduling_remove_sequence(2)


def test_unknown_sequence_and_window_are_errors_in_a_simulation() -> None:
    manager = make_kv_cache_manager()
    manager.start_scheduling()
    with pytest.raises(UnknownIdError, match="request 5 holds no blocks"):
        manager.scheduling_remove_sequence(5)
    for call in (lambda: manager.scheduling_has_free_blocks(1, 5), lambda: manager.scheduling_num_free_blocks(5)):
        with pytest.raises(UnknownIdError, match="window 5 is not managed"):
            call()


def test_blocks_that_left_a_window_are_not_counted_again() -> None:
    manager = make_kv_cache_manager(8, window=4)
    request = finish_prompt(add(manager, make_request(1, 4)))
    decode(manager, request, [1] * 8)
    free = num_free(manager)
    manager.start_scheduling()
    manager.scheduling_remove_sequence(1)
    assert manager.scheduling_num_free_blocks(4) == 8
    assert num_free(manager) == free


# -- reset ------------------------------------------------------------------------------------------


def test_reset_forgets_everything_and_leaves_the_blocks_to_their_sequences() -> None:
    manager = make_kv_cache_manager()
    live = prefill(manager, make_request(1, 9))
    serve(manager, make_request(2, [7] * 9))
    manager.reset_reuse_state()
    manager.reset_reuse_state()
    assert cached(manager) == {}
    assert manager.probe_prefix_match_length(make_request(3, 9)) == 0
    check_invariants(manager, {1: live})
    manager.store_context_blocks(live)
    assert manager.probe_prefix_match_length(make_request(3, 9)) == 8
    manager.remove_sequence(1, live)
    check_invariants(manager)
