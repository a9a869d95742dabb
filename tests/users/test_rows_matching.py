"""Rows 20, 27, 28, 33, 55, 56 and 59 of docs/users_rows.md: what a prompt finds, and what it may not take for found."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from tests.builders import WINDOW, block_ids, make_event_manager, make_kv_cache_manager, make_request
from tests.event_mirror import EventMirror
from tests.replay.causes.explained import explained, rows, trace_of
from tests.users.serving import admit, compute, decode, make_manager_with_memory, serve
from trtkv.inspection.invariants import check_invariants
from trtkv.keys.key_builder import build_block_keys
from trtkv.keys.key_hash import hash_block_key
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.nano import BlockManager, Sequence


def cached_hashes(manager: KVCacheManager) -> set[int]:
    blocks = manager.block_manager.window_block_managers[WINDOW].matcher.list_blocks()
    return {block.hash for block in blocks}


@pytest.mark.parametrize(("partial_reuse", "found"), [(True, 3), (False, 0)])
def test_row_20_a_common_prefix_below_a_block_is_told_from_a_miss(partial_reuse: bool, found: int) -> None:
    """No hit although prompts share a prefix, and no number tells that the prefix is shorter than a block."""
    manager = make_kv_cache_manager(16, enable_partial_reuse=partial_reuse)
    serve(manager, 1, [1, 2, 3, 10, 11, 12])
    assert manager.probe_prefix_match_length(make_request(2, [1, 2, 3, 20, 21, 22])) == found
    result = explained(trace_of([1, 2, 3, 10, 11, 12], [1, 2, 3, 20, 21, 22]), partial_reuse=partial_reuse)
    too_short = {"hit": 3} if partial_reuse else {"partial_block": 3}
    assert rows(result)[1] == {**too_short, "cold": 3}


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_row_27_two_copies_of_a_prefix_in_flight_stay_apart(order: tuple[int, int]) -> None:
    """Two requests compute the same prefix at the same time; the second copy replaces the first, which is in use."""
    manager, memory = make_manager_with_memory(16)
    requests = {index: make_request(index, [*range(8), 100 * index]) for index in (1, 2)}
    admit(manager, *requests.values())
    for request in requests.values():
        compute(manager, request, memory)
        manager.store_context_blocks(request)
    held = {index: set(block_ids(manager, index)) for index in requests}
    assert not held[1] & held[2]
    check_invariants(manager, requests)
    for index in order:
        for other, request in requests.items():
            if other in manager.sequences:
                memory.check_sequence(manager, request, request.prompt_len)
        manager.remove_sequence(index, requests[index])
        memory.check_tree(manager)
    assert manager.probe_prefix_match_length(make_request(3, [*range(8), 3])) == 8
    keys = [block.block_key for block in manager.block_manager.window_block_managers[WINDOW].matcher.list_blocks()]
    assert len(keys) == len(set(keys))
    check_invariants(manager)


def test_row_27_nano_keeps_the_newer_copy_when_the_older_one_is_recycled() -> None:
    """The entry of a hash goes with the first copy that is recycled, although another one lives."""
    manager = BlockManager(6, 4)
    prompts = [Sequence([*range(8), index], block_size=4) for index in (1, 2)]
    for prompt in prompts:
        manager.allocate(prompt, 0)
    for prompt in prompts:
        prompt.num_scheduled_tokens = prompt.num_tokens
        manager.hash_blocks(prompt)
        prompt.num_cached_tokens, prompt.num_scheduled_tokens = prompt.num_tokens, 0
    newer = list(prompts[1].block_table)
    manager.deallocate(prompts[0])
    other = Sequence(range(50, 62), block_size=4)
    manager.allocate(other, 0)  # takes the three blocks of the older copy
    again = Sequence([*range(8), 3], block_size=4)
    assert manager.can_allocate(again) == -1  # nothing is free for its last block
    manager.deallocate(other)
    assert manager.can_allocate(again) == 2
    manager.allocate(again, 2)
    assert again.block_table[:2] == newer[:2]


def test_row_28_a_hash_dies_with_its_content() -> None:
    """A sequence is cut and goes on with other tokens, and the hash of what was cut is reported as stored."""
    manager = make_kv_cache_manager(16, event_manager=make_event_manager())
    mirror = EventMirror()
    request = make_request(1, 8)
    admit(manager, request)
    compute(manager, request)
    manager.store_context_blocks(request)
    decode(manager, request, range(50, 55))  # fills a block behind the prompt
    manager.rewind_kv_cache(1, 5)
    request.set_generated_tokens([[]])
    decode(manager, request, range(60, 65))
    manager.remove_sequence(1, request)
    manager.flush_iteration_events()
    for event in manager.get_latest_events(0):
        mirror.apply(event)
    assert set(mirror.windows[WINDOW]) == cached_hashes(manager)
    assert manager.probe_prefix_match_length(make_request(2, [*range(1, 9), *range(50, 55)])) == 8
    assert manager.probe_prefix_match_length(make_request(3, [*range(1, 9), *range(60, 65)])) == 12


def test_row_28_evicted_hashes_are_reported_once_and_memory_stays_flat() -> None:
    """Hashes of evicted blocks come back with an extra event, and tables of them grow for ever."""
    rng = random.Random(28)
    manager = make_kv_cache_manager(12, event_manager=make_event_manager(4096))
    mirror = EventMirror()

    def run(first: int, count: int) -> None:
        for index in range(first, first + count):
            start = rng.choice((0, 0, 1000 + 30 * index))
            serve(manager, index, [*range(start, start + 8), *(5000 + 20 * index + i for i in range(9))])
            manager.flush_iteration_events()
            for event in manager.get_latest_events(0):
                mirror.apply(event)
            assert set(mirror.windows[WINDOW]) == cached_hashes(manager)

    tracemalloc.start()
    try:
        run(0, 500)
        before = tracemalloc.get_traced_memory()[0]
        run(500, 2500)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert after - before < 50_000, f"{after - before} bytes for 2500 requests more"
    check_invariants(manager)


def test_row_33_the_parent_is_part_of_the_identity() -> None:
    """Blocks of the same tokens behind different prefixes are taken for duplicates."""
    manager = make_kv_cache_manager(32, event_manager=make_event_manager())
    serve(manager, 1, [*range(10, 14), *range(4), 0])
    assert manager.probe_prefix_match_length(make_request(2, [*range(20, 24), *range(4), 0])) == 0
    assert manager.probe_prefix_match_length(make_request(3, [*range(4), 0])) == 0
    serve(manager, 4, [*range(20, 24), *range(4), 0])
    keys = [
        build_block_keys(make_request(5, [*head, *range(4)]), 4, 8, False) for head in (range(10, 14), range(20, 24))
    ]
    assert keys[0][1] == keys[1][1]
    hashes = {hash_block_key(key[1], hash_block_key(key[0])) for key in keys}
    assert len(hashes) == 2
    assert hashes < cached_hashes(manager)
    nano = BlockManager(8, 4)
    assert nano.compute_hash(range(4), nano.compute_hash(range(10, 14))) != nano.compute_hash(
        range(4), nano.compute_hash(range(20, 24))
    )


def test_row_55_blocks_that_hold_nothing_reusable_are_recycled_first() -> None:
    """Two equal requests run at once; when both are done, a cached block goes before copies nobody can find."""
    manager = make_kv_cache_manager(6)
    prompt = [*range(1, 9), 0]
    requests = [make_request(index, prompt) for index in (1, 2)]
    admit(manager, *requests)
    for request in requests:
        compute(manager, request)
        manager.store_context_blocks(request)
    for request in requests:
        manager.remove_sequence(request.request_id, request)
    assert manager.num_free_blocks == 6
    assert manager.block_manager.count_evictable_blocks() == {WINDOW: (2, 0)}
    for index, num_tokens in enumerate((4, 12), start=4):  # one block, then all that hold nothing
        admit(manager, make_request(index, range(100 * index, 100 * index + num_tokens)))
        assert manager.probe_prefix_match_length(make_request(3, prompt)) == 8
    assert manager.num_free_blocks == 2
    check_invariants(manager)


def test_row_56_a_batch_claims_what_it_found_before_anything_is_onboarded() -> None:
    """One request of a batch is onboarded into the place of the block that the other one had found."""
    manager, memory = make_manager_with_memory(6, 6, secondary_offload_min_priority=0)
    prompts = {1: [*range(8), 0], 2: [*range(50, 58), 0]}
    for index, prompt in prompts.items():
        serve(manager, index, prompt, memory)
    serve(manager, 3, range(100, 121), memory)  # pushes both prompts out to the host
    requests = [make_request(10 + index, prompt) for index, prompt in prompts.items()]
    found = [manager.probe_prefix_match_length(request) for request in requests]
    assert found == [8, 8]
    admit(manager, *requests)
    assert [request.prepopulated_prompt_len for request in requests] == found
    assert manager.get_iteration_stats()[WINDOW].iter_onboard_blocks == 4
    for request in requests:
        memory.check_sequence(manager, request, request.prepopulated_prompt_len)
    check_invariants(manager, {request.request_id: request for request in requests})


def test_row_59_nothing_behind_a_missing_block_is_found() -> None:
    """Of three cached blocks the first is evicted, and the other two still count as found."""
    manager = make_kv_cache_manager(16)
    serve(manager, 1, 13)
    manager.truncate_blocks(range(1, 14), 0)
    tree = manager.block_manager.window_block_managers[WINDOW].matcher.list_blocks()
    depth = manager.probe_prefix_match_length(make_request(2, 13))
    assert depth == 4 * len(tree)
    for index in range(2, 12):
        serve(manager, index, range(100 * index, 100 * index + 16))
        summary = manager.analyze_prefix_reuse(make_request(99, 13))
        assert summary.reusable_blocks_all in (0, 1, 2, 3)
    assert manager.probe_prefix_match_length(make_request(99, 13)) == 0
    check_invariants(manager)
