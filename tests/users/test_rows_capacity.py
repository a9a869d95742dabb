"""Rows 1 to 18 of docs/users_rows.md: capacity, free queues, release."""

from __future__ import annotations

import random
import sys
import threading

import pytest

from tests.builders import WINDOW, make_event_manager, make_kv_cache_manager, make_request
from tests.stress.random_program import RandomProgram
from tests.users.serving import (
    admit,
    compute,
    count_queued,
    decode,
    get_state,
    make_manager_with_memory,
    serve,
)
from trtkv.errors import InvalidInputError, LogicError, OutOfBlocksError, UnknownIdError
from trtkv.events.kv_cache_events import KVCacheRemovedData
from trtkv.inspection.invariants import check_invariants
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.retention_config import KvCacheRetentionConfig, TokenRangeRetentionConfig
from trtkv.scheduler.capacity_scheduler import CapacityScheduler
from trtkv.scheduler.scheduler_config import CapacitySchedulerPolicy


def test_row_1_a_block_released_twice_has_one_place_in_the_queue() -> None:
    """A second release puts the block into the queue again, and later two sequences get it."""
    manager = make_kv_cache_manager(8)
    request = make_request(1, 8)
    admit(manager, request)
    compute(manager, request)
    manager.pin_blocks(1)
    ids = manager.get_cache_block_ids(1, WINDOW)[0]
    manager.remove_sequence(1, request)
    manager.remove_sequence(1, request)  # the other code path: nothing happens
    manager.unpin_blocks_by_id(ids)
    with pytest.raises(InvalidInputError, match="it has 0"):
        manager.unpin_blocks_by_id(ids)
    policy = manager.block_manager.window_block_managers[WINDOW].eviction_policy
    block = manager.block_manager.get_block_by_id(ids[0], WINDOW)
    with pytest.raises(LogicError, match="released twice"):
        policy.release_block(block)
    assert sorted(count_queued(manager)) == list(range(8))
    admit(manager, make_request(2, 16), make_request(3, range(50, 66)))
    held = manager.get_cache_block_ids(2, WINDOW)[0] + manager.get_cache_block_ids(3, WINDOW)[0]
    assert sorted(held) == list(range(8))
    check_invariants(manager)


def test_row_2_evicting_a_block_whose_descendants_are_on_the_host() -> None:
    """Its children live in the host tier only and it cannot follow them there: eviction fails, or they get lost."""
    events = make_event_manager()
    manager = make_kv_cache_manager(6, 2, event_manager=events)
    low = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, 4, 10)])  # the first block, below the offload threshold
    serve(manager, 1, 12, kv_cache_retention_config=low)
    window = manager.block_manager.window_block_managers[WINDOW]
    first, *below = window.matcher.list_blocks()
    for block in below:
        manager.block_manager.get_window_block_manager(WINDOW).claimer.offload_block(block)
    assert [block.is_primary for block in below] == [False, False]
    manager.flush_iteration_events()
    manager.get_latest_events(0)
    removed_hash = first.hash
    admit(manager, make_request(2, range(50, 74)))  # takes all blocks, last the one of the lowest priority
    manager.remove_sequence(2, None)
    manager.flush_iteration_events()
    assert [event.data for event in manager.get_latest_events(0)] == [KVCacheRemovedData([removed_hash])]
    # Those on the host are out of reach, and found again when their parent is computed anew.
    assert manager.probe_prefix_match_length(make_request(3, 12)) == 0
    check_invariants(manager)
    serve(manager, 4, 5)
    assert manager.probe_prefix_match_length(make_request(3, 12)) == 11
    # In the end each of them leaves with a removal of its own.
    hashes = {block.hash for block in below}
    for index in range(10):
        serve(manager, 10 + index, range(100 * index + 100, 100 * index + 112))
    manager.flush_iteration_events()
    removed = [event.data for event in manager.get_latest_events(0) if isinstance(event.data, KVCacheRemovedData)]
    assert hashes <= {value for data in removed for value in data.block_hashes}
    check_invariants(manager)


def test_row_3_long_stress_with_a_tiny_pool_and_a_host_tier() -> None:
    """Under load a victim turns out to have children, or a map of children is not empty when it should be."""
    for seed in (2, 13, 40):
        program = RandomProgram(seed, None)
        for step in range(1200):
            program.step()
            if step % 60 == 0:
                check_invariants(program.manager, program.requests, rewound=program.rewound)
        assert program.manager.num_alloc_total_blocks > 100


def test_row_4_clearing_an_empty_tree_returns_at_once_and_twice() -> None:
    """Clearing a tree whose root has no children never returns."""
    manager = make_kv_cache_manager(8)
    thread = threading.Thread(target=lambda: [manager.reset_reuse_state() for _ in range(2)], daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    serve(manager, 1, 12)
    manager.reset_reuse_state()
    manager.reset_reuse_state()
    assert manager.probe_prefix_match_length(make_request(2, 12)) == 0
    assert manager.num_free_blocks == 8
    check_invariants(manager)


def test_row_5_a_request_cancelled_before_its_first_step_leaves_nothing_behind() -> None:
    """Its blocks stay orphaned in the host tier, or content that was never computed becomes reusable."""
    manager = make_kv_cache_manager(8, 2)
    request = make_request(1, 12)
    admit(manager, request)
    manager.remove_sequence(1, request)
    assert manager.num_free_blocks == 8
    assert manager.probe_prefix_match_length(make_request(2, 12)) == 0
    assert manager.get_kv_cache_stats().secondary_free_num_blocks == 2
    assert count_queued(manager)[:3] == [0, 1, 2]  # without content, so they are the first to be taken
    check_invariants(manager)


def test_row_6_links_of_recycled_blocks_do_not_grow_with_history() -> None:
    """Each sequence leaves a link to the blocks before it, until following or freeing the chain overflows the stack."""
    manager = make_kv_cache_manager(6, window=20, windows={20: (6, 0)}, max_sequence_length=64)
    for index in range(1500):
        request = make_request(index, [index, 1, 2, 3, index, 5])
        admit(manager, request)
        compute(manager, request)
        decode(manager, request, range(5))
        manager.remove_sequence(index, request if index % 3 else None)
    for block in manager.block_manager.window_block_managers[20].block_objects():
        depth, link = 0, block.hash_link
        while isinstance(link, tuple):
            depth, link = depth + 1, link[1]
        assert depth <= 20
        seen = set()
        previous = block.prev_block_in_seq
        while previous is not None and previous not in seen:
            seen.add(previous)
            previous = previous.prev_block_in_seq
        assert len(seen) <= 6 + 2


def test_row_6_one_very_long_sequence_needs_no_recursion() -> None:
    """Hashing, storing and freeing walk along the sequence, not down the stack."""
    length = 5 * sys.getrecursionlimit()
    manager = make_kv_cache_manager(length, tokens_per_block=1, max_sequence_length=length + 8, window=length + 8)
    request = serve(manager, 1, length)
    *_, last = manager.block_manager.window_block_managers[length + 8].matcher.list_blocks()
    assert last.hash == last.hash != 0
    assert manager.probe_prefix_match_length(make_request(2, length)) == length - 1
    manager.truncate_blocks(request.get_tokens(), 5)
    manager.reset_reuse_state()
    assert manager.num_free_blocks == length


def test_row_7_source_of_a_partial_copy_stays_until_it_is_copied() -> None:
    """A partially matched block that nobody holds is evicted to make room for its own copy."""
    manager, memory = make_manager_with_memory(4)
    serve(manager, 1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], memory)  # three blocks, so the second has to be copied
    admit(manager, make_request(2, [50]))
    # One block is found, one copied into the third, and the source itself is the last to be taken.
    request = make_request(3, [1, 2, 3, 4, 5, 6, 0, 0, 0, 0])
    admit(manager, request)
    assert request.prepopulated_prompt_len == 6
    assert manager.num_free_blocks == 0
    memory.check_sequence(manager, request, 6)
    check_invariants(manager)


def test_row_7_one_block_too_few_for_a_partial_copy_changes_nothing() -> None:
    """The room for a copy is not checked, and the request ends up with half of its blocks."""
    manager, memory = make_manager_with_memory(4)
    serve(manager, 1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], memory)
    admit(manager, make_request(2, [50]))
    before = get_state(manager)
    with pytest.raises(OutOfBlocksError):
        admit(manager, make_request(3, [1, 2, 3, 4, 5, 6, *range(7)]))
    assert get_state(manager) == before
    memory.check_tree(manager)


def test_row_8_beams_that_share_nothing_are_counted() -> None:
    """With 32 beams and a short prompt the pool is sized by the shared context, and there is no block left."""
    request = make_request(1, 6, beam_width=32)
    manager = make_kv_cache_manager(33, max_beam_width=32)
    assert manager.get_needed_blocks_one_step(request, False, WINDOW) == 33
    admit(manager, request)
    assert manager.num_free_blocks == 0
    smaller = make_kv_cache_manager(32, max_beam_width=32)
    before = get_state(smaller)
    with pytest.raises(OutOfBlocksError, match="32 beam"):
        admit(smaller, make_request(1, 6, beam_width=32))
    assert get_state(smaller) == before


def test_row_9_a_rewind_over_a_block_boundary_shortens_the_list_of_ids() -> None:
    """After drafts are taken back the sequence still reports ids of blocks that are free."""
    manager = make_kv_cache_manager(8)
    request = make_request(1, 7)
    admit(manager, request)
    compute(manager, request)
    decode(manager, request, [1, 2, 3])
    assert len(manager.get_cache_block_ids(1, WINDOW)[0]) == 3
    last = manager.get_cache_block_ids(1, WINDOW)[0][2]
    manager.rewind_kv_cache(1, 3)
    assert len(manager.get_cache_block_ids(1, WINDOW)[0]) == 2
    assert manager.get_token_count(1) == 7
    assert manager.num_free_blocks == 6
    assert count_queued(manager)[0] == last
    check_invariants(manager)


def test_row_10_a_request_larger_than_the_pool_is_refused_when_it_arrives() -> None:
    """It fits the model but not the pool, so the scheduler waits for it without end."""
    manager = make_kv_cache_manager(4)
    scheduler = CapacityScheduler(4, CapacitySchedulerPolicy.GUARANTEED_NO_EVICT)
    with pytest.raises(OutOfBlocksError, match="4"):
        scheduler.check_can_ever_fit(make_request(1, 20), manager)
    scheduler.check_can_ever_fit(make_request(2, 8, max_new_tokens=4), manager)
    with pytest.raises(OutOfBlocksError, match="5 context blocks"):
        admit(manager, make_request(1, 20))


def test_row_11_a_request_does_not_evict_the_prefix_it_is_about_to_use() -> None:
    """The pool is full of unreferenced blocks, and the oldest of them, the prefix, is evicted before the lookup."""
    manager, memory = make_manager_with_memory(6)
    serve(manager, 1, [*range(12), 0], memory)  # 3 cached blocks, the oldest
    serve(manager, 2, range(50, 59), memory)  # 2 more, and one block that is empty
    request = make_request(3, [*range(12), *range(70, 80)])
    admit(manager, request)
    assert request.prepopulated_prompt_len == 12
    memory.check_sequence(manager, request, 12)
    assert manager.num_free_blocks == 0


def test_row_12_storing_after_the_release_cannot_push_utilisation_above_one() -> None:
    """A sequence is put into the cache after its blocks were given back, and counted twice."""
    manager = make_kv_cache_manager(8)
    request = make_request(1, 16)
    admit(manager, request)
    compute(manager, request)
    manager.remove_sequence(1)
    before = get_state(manager)
    manager.store_context_blocks(request)
    with pytest.raises(UnknownIdError):
        manager.store_blocks_for_reuse(1, request)
    with pytest.raises(UnknownIdError):
        manager.pin_blocks(1)
    assert get_state(manager) == before
    stats = manager.get_kv_cache_stats()
    assert (stats.used_num_blocks, stats.free_num_blocks, stats.max_num_blocks) == (0, 8, 8)


def test_row_13_a_hit_on_a_free_block_is_charged() -> None:
    """Cached blocks that nobody holds count as free capacity and as a hit at the same time."""
    manager = make_kv_cache_manager(6)
    serve(manager, 1, [*range(8), 0])
    request = make_request(2, [*range(8), *range(60, 76)])  # 6 blocks, 2 of them cached and free
    assert manager.get_needed_blocks_one_step(request, False, WINDOW) == 6  # nothing is credited
    assert request.estimated_reusable_tokens == 8  # though it need not be computed
    too_long = make_request(3, [*range(8), *range(60, 77)])
    before = get_state(manager)
    with pytest.raises(OutOfBlocksError):
        admit(manager, too_long)
    assert get_state(manager) == before
    admit(manager, request)
    assert request.prepopulated_prompt_len == 8
    assert manager.num_free_blocks == 0


def test_row_13_blocks_can_be_found_only_once_they_are_computed() -> None:
    """A hash that is registered at allocation lets another request read what is not there yet."""
    manager = make_kv_cache_manager(12)
    first, second = make_request(1, 12), make_request(2, 12)
    admit(manager, first)
    admit(manager, second)
    assert second.prepopulated_prompt_len == 0
    manager.store_context_blocks(first)
    assert manager.probe_prefix_match_length(make_request(3, 12)) == 0
    compute(manager, first)
    manager.store_context_blocks(first)
    assert manager.probe_prefix_match_length(make_request(3, 12)) == 8


def test_row_14_pinned_blocks_are_neither_free_nor_subtracted_twice() -> None:
    """Matched blocks are evictable, some of them pinned by another request: the budget is wrong in both directions."""
    manager = make_kv_cache_manager(8)
    first = make_request(1, [*range(16), 0])
    admit(manager, first)
    compute(manager, first)
    manager.store_context_blocks(first)
    pinned = manager.store_blocks_for_reuse(1, first, pin_blocks=True)[:2]
    manager.remove_sequence(1, first)
    manager.unpin_blocks_by_id([i for i in manager_pins(manager) if i not in pinned])
    assert manager.num_free_blocks == 6
    request = make_request(2, [*range(16), *range(60, 76)])  # 8 blocks: 2 pinned, 2 cached and free, 4 new
    assert manager.get_needed_blocks_one_step(request, False, WINDOW) == 6
    admit(manager, request)
    assert manager.num_free_blocks == 0
    manager.remove_sequence(2, request)
    assert manager.num_free_blocks == 6
    manager.unpin_blocks_by_id(pinned)
    assert manager.num_free_blocks == 8


def manager_pins(manager: KVCacheManager) -> list[int]:
    return [b.block_id for b in manager.block_manager.window_block_managers[WINDOW].block_objects() if b.has_refs]


def test_row_15_shared_blocks_count_once() -> None:
    """Two leaves share their first pages, and the evictable size counts those twice."""
    manager = make_kv_cache_manager(16)
    serve(manager, 1, [*range(8), 0])
    requests = [make_request(index, [*range(8), 10 * index, 1, 2, 3, 4]) for index in (2, 3)]
    admit(manager, *requests)
    assert manager.num_free_blocks == 16 - (2 + 2 + 2)
    manager.start_scheduling()
    manager.scheduling_remove_sequence(2)
    assert manager.scheduling_num_free_blocks(WINDOW) == 10 + 2
    manager.scheduling_remove_sequence(3)
    assert manager.scheduling_num_free_blocks(WINDOW) == 16
    for request in requests:
        manager.remove_sequence(request.request_id, request)
    assert sorted(count_queued(manager)) == list(range(16))


def test_row_16_looking_does_not_hold() -> None:
    """A lookup pins blocks for a request that never comes, and they can never be evicted again."""
    manager = make_kv_cache_manager(8)
    serve(manager, 1, 16)
    before = get_state(manager)
    request = make_request(2, 16)
    assert manager.probe_prefix_match_length(request) == 15
    assert manager.analyze_prefix_reuse(request).reusable_blocks_all == 3
    manager.get_needed_blocks_one_step(request, False, WINDOW)
    manager.get_remaining_blocks_to_completion(request, WINDOW)
    assert manager.find_blocks_in_reuse_tree_by_block_key(b"\x01\0\0\0", WINDOW) is not None
    assert get_state(manager) == before
    admit(manager, make_request(3, range(40, 72)))  # all 8 blocks can be taken
    assert manager.num_free_blocks == 0


def test_row_17_a_full_pool_is_reported_at_once() -> None:
    """Nothing can be evicted, and the allocator tries for ever."""
    manager = make_kv_cache_manager(4)
    holder = make_request(1, 16)
    admit(manager, holder)
    compute(manager, holder)
    before = get_state(manager)
    errors: list[type[BaseException]] = []

    def ask() -> None:
        for call in (lambda: admit(manager, make_request(2, 1)), lambda: manager.add_token(1)):
            try:
                call()
            except OutOfBlocksError as error:
                errors.append(type(error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert errors == [OutOfBlocksError, OutOfBlocksError]
    assert get_state(manager) == before


def test_row_18_after_all_requests_everything_is_free() -> None:
    """References leak with every request until nothing is free and nothing can be evicted."""
    rng = random.Random(18)
    manager = make_kv_cache_manager(24, 8)
    for index in range(400):
        batch = [
            make_request(2 * index + i, [rng.randint(0, 1) for _ in range(rng.randint(1, 30))], beam_width=1 + 3 * i)
            for i in range(2)
        ]
        try:
            admit(manager, *batch)
        except OutOfBlocksError:
            continue
        for request in batch:
            compute(manager, request)
            manager.remove_sequence(request.request_id, request)
    assert manager.num_free_blocks == 24
    assert manager.get_kv_cache_stats().secondary_free_num_blocks == 8
    assert manager.get_kv_cache_stats().used_num_blocks == 0
    assert manager.num_reused_blocks > 100
    check_invariants(manager)
