"""What of a sequence goes into the tree, when, and under which keys."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import (
    add,
    block_ids,
    decode,
    finish_prompt,
    make_event_manager,
    make_kv_cache_manager,
    make_request,
    num_free,
    prefill,
    serve,
)
from tests.event_mirror import EventMirror
from tests.stress.manager_tree import read_trees
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import CacheType
from trtkv.errors import InvalidInputError
from trtkv.events.kv_cache_event_consumer import CachedBlock
from trtkv.events.kv_cache_events import KVCacheRemovedData, KVCacheStoredData
from trtkv.inspection.invariants import check_invariants
from trtkv.keys.block_key import BlockKey
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest, LlmRequestState
from trtkv.records.retention_config import KvCacheRetentionConfig, TokenRangeRetentionConfig
from trtkv.window_block_manager.storing import num_usable_tokens, usable_tokens

State = LlmRequestState


def held(manager: KVCacheManager, request_id: int) -> list[KVCacheBlock]:
    return manager.get_sequence(request_id).get_window(manager.max_attention_window).held


def cached(manager: KVCacheManager, request_id: int) -> list[bool]:
    return [block.lookup_node is not None for block in held(manager, request_id)]


def found(manager: KVCacheManager, tokens: list[int] | int, **options: Any) -> int:
    """Tokens that a new request of these tokens would find."""
    return manager.probe_prefix_match_length(make_request(999, tokens, **options))


# -- what is computed -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "position", "num_generated", "expected", "recorded"),
    [
        (State.CONTEXT_INIT, 0, 0, 0, 9),
        (State.CONTEXT_INIT, 1, 0, 0, 0),
        (State.CONTEXT_INIT, 8, 0, 7, 7),
        (State.CONTEXT_INIT, 10, 0, 9, 9),
        (State.GENERATION_IN_PROGRESS, 0, 0, 9, 9),
        (State.GENERATION_IN_PROGRESS, 10, 3, 12, 12),
        (State.GENERATION_COMPLETE, 10, 3, 12, 12),
        (State.ENCODER_INIT, 0, 0, 0, 9),
        (State.DISAGG_GENERATION_INIT, 0, 0, 0, 9),
        (State.DISAGG_GENERATION_TRANS_IN_PROGRESS, 0, 0, 0, 9),
        (State.DISAGG_GENERATION_TRANS_COMPLETE, 0, 1, 10, 10),
    ],
)
def test_tokens_whose_state_is_in_the_cache(
    state: State, position: int, num_generated: int, expected: int, recorded: int
) -> None:
    request = make_request(1, 10, state=state)
    request.set_context_current_position(position)
    request.add_new_tokens([[5] * num_generated])
    assert usable_tokens(request) == expected
    assert num_usable_tokens(request) == recorded


def test_unfinished_prompt_is_stored_as_far_as_it_is_computed() -> None:
    manager = make_kv_cache_manager()
    request = make_request(1, 14)
    request.set_context_chunk_size(4)
    add(manager, request)
    stored = []
    for _ in range(4):
        manager.store_context_blocks(request)
        stored.append(sum(cached(manager, 1)))
        request.move_to_next_context_chunk()
        request.set_context_chunk_size(4)
    manager.store_context_blocks(request)
    stored.append(sum(cached(manager, 1)))
    assert stored == [0, 0, 1, 2, 3]
    check_invariants(manager, {1: request})


@pytest.mark.parametrize(
    "state",
    [State.CONTEXT_INIT, State.DISAGG_GENERATION_INIT, State.DISAGG_GENERATION_TRANS_IN_PROGRESS],
)
def test_request_removed_before_its_first_step_leaves_nothing(state: State) -> None:
    manager = make_kv_cache_manager()
    request = add(manager, make_request(1, 9))
    request.set_state(state)
    manager.store_context_blocks(request)
    manager.store_new_block(request)
    assert manager.store_blocks_for_reuse(1, request, True) == []
    manager.remove_sequence(1, request)
    assert (found(manager, 9), num_free(manager)) == (0, 16)
    check_invariants(manager)


def test_no_more_is_stored_than_the_sequence_has() -> None:
    """Tokens that a request got ahead of its sequence have no state yet."""
    manager = make_kv_cache_manager()
    request = prefill(manager, make_request(1, 6))
    request.add_new_tokens([[7, 8, 9]])
    manager.store_blocks_for_reuse(1, request)
    assert found(manager, 9) == 6
    check_invariants(manager, {1: request})


def test_newest_token_is_never_stored() -> None:
    manager = make_kv_cache_manager()
    serve(manager, make_request(1, 6), [7, 8])
    assert found(manager, 9) == 7


def test_full_blocks_are_stored_early_and_the_last_part_at_the_end() -> None:
    manager = make_kv_cache_manager()
    request = prefill(manager, make_request(1, 7))
    assert cached(manager, 1) == [True, False]
    manager.remove_sequence(1, request)
    assert found(manager, [1, 2, 3, 4, 5, 6, 99]) == 6


def test_removal_without_the_request_stores_nothing_more() -> None:
    manager = make_kv_cache_manager()
    prefill(manager, make_request(1, 7))
    manager.remove_sequence(1)
    assert found(manager, 7) == 4


@pytest.mark.parametrize("options", [{"is_dummy_request": True}, {"beam_width": 2}])
def test_dummies_and_beams_store_nothing_when_they_leave(options: dict[str, Any]) -> None:
    manager = make_kv_cache_manager()
    request = finish_prompt(add(manager, make_request(1, 9, **options)))
    manager.remove_sequence(1, request)
    assert found(manager, 9) == 0


def test_dummies_store_no_context_either() -> None:
    manager = make_kv_cache_manager()
    prefill(manager, make_request(1, 9, is_dummy_request=True))
    assert not any(cached(manager, 1))


def test_sequence_and_request_must_be_the_same() -> None:
    manager = make_kv_cache_manager()
    prefill(manager, make_request(1, 9))
    other = finish_prompt(make_request(2, [9] * 9))
    for call in (
        lambda: manager.remove_sequence(1, other),
        lambda: manager.store_blocks_for_reuse(1, other),
        lambda: manager.add_sequence_batch([(3, 9, 1)], [other]),
    ):
        with pytest.raises(InvalidInputError, match="request 2 was given for sequence"):
            call()
    assert found(manager, [9] * 9) == 0
    assert list(manager.sequences) == [1]


# -- beams ------------------------------------------------------------------------------------------


def test_of_several_beams_only_the_prompt_is_stored() -> None:
    manager = make_kv_cache_manager()
    request = prefill(manager, make_request(1, 6, beam_width=2))
    for step in range(8):
        manager.add_token(1)
        for beam in range(2):
            request.add_new_token(10 * beam + step, beam)
    manager.store_context_blocks(request)
    manager.store_blocks_for_reuse(1, request)
    assert found(manager, [*range(1, 7), 0, 1, 2, 3, 4, 5]) == 6
    check_invariants(manager, {1: request})


# -- occupied slots, moves --------------------------------------------------------------------------


def test_slot_that_is_taken_is_left_alone_and_what_follows_hangs_below_it() -> None:
    manager = make_kv_cache_manager()
    first = add(manager, make_request(1, 9))
    second = add(manager, make_request(2, 13))
    manager.store_context_blocks(finish_prompt(first))
    manager.store_context_blocks(finish_prompt(second))
    assert cached(manager, 2) == [False, False, True, False]
    assert held(manager, 2)[2].prev_block is held(manager, 1)[1]
    assert held(manager, 2)[2].prev_block_in_seq is held(manager, 1)[1]
    check_invariants(manager, {1: first, 2: second})


def test_partly_filled_block_moves_when_it_is_stored_again() -> None:
    manager = make_kv_cache_manager()
    request = finish_prompt(add(manager, make_request(1, 6)))
    manager.store_blocks_for_reuse(1, request)
    block = held(manager, 1)[1]
    assert found(manager, [1, 2, 3, 4, 5, 99]) == 5
    decode(manager, request, [7, 8, 9])
    manager.store_context_blocks(request)
    assert held(manager, 1)[1] is block
    assert manager.block_manager.lookup_tree.count_number_of_nodes() == 2
    assert found(manager, 9) == 8
    check_invariants(manager, {1: request})


def test_storing_twice_is_storing_once() -> None:
    manager = make_kv_cache_manager(event_manager=make_event_manager())
    request = prefill(manager, make_request(1, 9))
    manager.flush_iteration_events()
    manager.get_latest_events()
    manager.store_context_blocks(request)
    manager.flush_iteration_events()
    assert manager.get_latest_events() == []


# -- the newest block -------------------------------------------------------------------------------


def test_newest_block_is_stored_when_the_newest_token_opens_the_next() -> None:
    manager = make_kv_cache_manager()
    request = prefill(manager, make_request(1, 6))
    stored = []
    for token in (7, 8, 9, 10):
        decode(manager, request, [token])
        manager.store_new_block(request)
        stored.append(sum(cached(manager, 1)))
    assert stored == [1, 1, 2, 2]
    check_invariants(manager, {1: request})


def test_whole_chain_is_stored_with_the_newest_block_where_it_is_missing() -> None:
    manager = make_kv_cache_manager()
    request = finish_prompt(add(manager, make_request(1, 9)))
    manager.store_new_block(request)
    assert cached(manager, 1) == [True, True, False]


def test_newest_block_of_a_prompt_that_is_not_computed_is_not_stored() -> None:
    manager = make_kv_cache_manager()
    request = make_request(1, 9)
    request.set_context_chunk_size(4)
    add(manager, request)
    request.move_to_next_context_chunk()
    manager.store_new_block(request)
    assert cached(manager, 1) == [False] * 3


# -- pins -------------------------------------------------------------------------------------------


def test_pinned_blocks_outlive_their_sequence_until_they_are_unpinned() -> None:
    manager = make_kv_cache_manager()
    request = prefill(manager, make_request(1, 9))
    pinned = manager.store_blocks_for_reuse(1, request, True)
    assert pinned == block_ids(manager, 1)[:2]
    manager.remove_sequence(1, request)
    assert num_free(manager) == 14
    check_invariants(manager, pins={64: dict.fromkeys(pinned, 1)})
    manager.unpin_blocks_by_id(pinned)
    assert num_free(manager) == 16
    assert found(manager, 9) == 8
    check_invariants(manager)


def test_a_free_block_that_is_pinned_keeps_its_retention() -> None:
    manager = make_kv_cache_manager()
    config = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 80, 50)])
    first, second = (
        finish_prompt(add(manager, make_request(i, 8, kv_cache_retention_config=config if i == 1 else None)))
        for i in (1, 2)
    )
    manager.remove_sequence(1, first)
    (block_id, *_) = manager.store_blocks_for_reuse(2, second, True)
    block = manager.block_manager.get_block_by_id(block_id, 64)
    policy = manager.block_manager.window_block_managers[64].eviction_policy
    assert (block.ref_count, block.priority, policy.get_duration_ms(block)) == (1, 80, 50)
    check_invariants(manager)


def test_pin_takes_the_block_that_occupies_the_slot_even_from_the_host() -> None:
    manager = make_kv_cache_manager(16, 4)
    serve(manager, make_request(1, 5))
    occupant = next(b for b in manager.block_manager.window_block_managers[64].block_objects() if b.lookup_node)
    second = add(manager, make_request(2, 5))
    manager.remove_sequence(2)
    manager.block_manager.get_window_block_manager(64).claimer.offload_block(occupant)
    del second
    third = make_request(3, 5)
    manager.block_manager.lookup_tree.root.find_matching_node(occupant.block_key)
    add(manager, third, input_length=1)  # one token: nothing is looked up, the block is its own
    decode(manager, finish_prompt(third), [])
    assert occupant.ref_count == 0
    check_invariants(manager)


# -- other caches -----------------------------------------------------------------------------------


def cross_request(request_id: int, decoder: list[int], encoder: list[int]) -> LlmRequest:
    return make_request(request_id, decoder, encoder_tokens=encoder)


def add_cross(manager: KVCacheManager, request: LlmRequest) -> LlmRequest:
    manager.add_sequence_batch([(request.request_id, request.encoder_output_len, 1)], [request])
    return request


def test_cross_cache_is_found_by_encoder_tokens_only() -> None:
    manager = make_kv_cache_manager(cache_type=CacheType.CROSS)
    encoder, decoder = [21, 22, 23, 24, 25, 26, 27, 28, 29], [1, 2, 3, 4, 5, 6, 7, 8, 9]
    request = add_cross(manager, cross_request(1, decoder, encoder))
    manager.store_context_blocks(finish_prompt(request))
    check_invariants(manager, {1: request})
    manager.remove_sequence(1, request)
    blocks = manager.block_manager.window_block_managers[64].block_objects()
    assert sum(b.lookup_node is not None for b in blocks) == 3
    same_encoder = add_cross(manager, cross_request(2, [8, 8], encoder))
    assert same_encoder.reused_blocks_per_request == 2  # the last token stands alone in its block
    other = add_cross(manager, cross_request(3, [8, 8], decoder))
    assert other.reused_blocks_per_request == 0
    check_invariants(manager, {2: same_encoder, 3: other})


def test_short_decoder_prompt_does_not_mind_a_long_encoder_match() -> None:
    manager = make_kv_cache_manager(cache_type=CacheType.CROSS)
    first = add_cross(manager, cross_request(1, [1], [2] * 9))
    manager.remove_sequence(1, finish_prompt(first))
    second = add_cross(manager, cross_request(2, [1], [2] * 9))
    assert (second.prepopulated_prompt_len, second.reused_blocks_per_request) == (0, 2)


def test_encoder_states_of_a_request_that_never_ran_are_not_stored() -> None:
    """A hit in the other cache moves the position; that computes no encoder states."""
    manager = make_kv_cache_manager(cache_type=CacheType.CROSS)
    request = add_cross(manager, cross_request(1, [1] * 9, [2] * 9))
    request.set_prepopulated_prompt_len(8, 4)
    manager.store_context_blocks(request)
    manager.remove_sequence(1, request)
    assert add_cross(manager, cross_request(2, [1] * 9, [2] * 9)).reused_blocks_per_request == 0


def test_recorded_cross_cache_is_filed_under_the_decoder_tokens() -> None:
    manager = make_kv_cache_manager(cache_type=CacheType.CROSS, compatibility=True)
    request = add_cross(manager, cross_request(1, [1, 2, 3, 4, 5, 6], [9] * 6))
    manager.remove_sequence(1, finish_prompt(request))
    stranger = add_cross(manager, cross_request(2, [7] * 9, [1, 2, 3, 4, 5, 6]))
    assert stranger.reused_blocks_per_request > 0  # encoder states of other tokens


# -- events -----------------------------------------------------------------------------------------


def events_of(manager: KVCacheManager, mirror: EventMirror) -> list[Any]:
    manager.flush_iteration_events()
    events = manager.get_latest_events()
    for event in events:
        mirror.apply(event)
    mirror.check(manager)
    return [event.data for event in events]


def test_chain_that_is_interrupted_is_reported_in_pieces_that_name_their_parents() -> None:
    manager, mirror = make_kv_cache_manager(event_manager=make_event_manager()), EventMirror()
    requests = [add(manager, make_request(i, n)) for i, n in ((1, 9), (2, 13))]
    manager.store_context_blocks(finish_prompt(requests[0]))
    first, second = held(manager, 1)[:2]
    manager.block_manager.window_block_managers[64].claimer.remove_from_tree(first)
    events_of(manager, mirror)
    manager.store_context_blocks(finish_prompt(requests[1]))
    own = held(manager, 2)
    stored = [data for data in events_of(manager, mirror) if isinstance(data, KVCacheStoredData)]
    assert [(data.parent_hash, [b.block_hash for b in data.blocks]) for data in stored] == [
        (None, [own[0].hash]),
        (second.hash, [own[2].hash]),
    ]


def test_moved_block_is_reported_as_removed_from_its_old_place() -> None:
    manager, mirror = make_kv_cache_manager(event_manager=make_event_manager()), EventMirror()
    request = finish_prompt(add(manager, make_request(1, 6)))
    manager.store_blocks_for_reuse(1, request)
    old = held(manager, 1)[1].hash
    events_of(manager, mirror)
    decode(manager, request, [7, 8, 9])
    manager.store_context_blocks(request)
    data = events_of(manager, mirror)
    assert data[0] == KVCacheRemovedData([old])
    assert isinstance(data[1], KVCacheStoredData)


def test_hash_in_a_sliding_window_chains_positions_without_a_block_too() -> None:
    """Prompts that differ only outside of the window have blocks of equal keys, but not of equal hashes."""
    manager, mirror = make_kv_cache_manager(32, window=4, event_manager=make_event_manager()), EventMirror()
    for request_id, start in ((1, [1] * 8), (2, [2] * 8)):
        serve(manager, make_request(request_id, [*start, 5, 5, 5, 5]), [6, 7, 8])
    hashes = {
        block.block_hash
        for data in events_of(manager, mirror)
        if isinstance(data, KVCacheStoredData)
        for block in data.blocks
    }
    assert len(hashes) == sum(len(known) for known in mirror.windows.values())
    check_invariants(manager)


# -- corner cases that random programs reach too seldom ---------------------------------------------


def trees(manager: KVCacheManager) -> dict[int, CachedBlock]:
    (tree,) = read_trees(manager).values()
    return tree


def test_only_the_computed_part_of_a_prompt_is_stored_when_it_is_removed() -> None:
    manager = make_kv_cache_manager()
    request = add(manager, make_request(1, 20))
    request.set_context_chunk_size(8)
    request.move_to_next_context_chunk()
    manager.remove_sequence(1, request)
    assert found(manager, 20) == 7  # the last computed one is left out


def test_recorded_behaviour_stores_what_was_never_computed() -> None:
    """Why this differs from the recordings: another request would find a prompt that holds nothing."""
    manager = make_kv_cache_manager(compatibility=True)
    manager.remove_sequence(1, add(manager, make_request(1, 9)))
    assert found(manager, 9) == 8


def test_pinned_blocks_are_those_in_the_tree_when_a_chain_branches_off() -> None:
    """Two requests compute the same first block; the second one pins, and has to pin the one that is cached."""
    manager = make_kv_cache_manager()
    prompts = [1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 6, 6, 6, 6, 9]
    requests = [make_request(index, prompt) for index, prompt in enumerate(prompts)]
    manager.add_sequence_batch([(request.request_id, 9, 1) for request in requests], requests)
    manager.store_context_blocks(finish_prompt(requests[0]))
    pinned = manager.store_blocks_for_reuse(1, finish_prompt(requests[1]), pin_blocks=True)
    assert pinned == [block_ids(manager, 0)[0], block_ids(manager, 1)[1]]
    check_invariants(manager)


def test_nothing_is_left_of_a_chain_that_has_left_the_window_altogether() -> None:
    """With windows smaller than a block no full block may be held any more when they are stored."""
    manager = make_kv_cache_manager(window=2)
    request = decode(manager, finish_prompt(add(manager, make_request(1, 4))), [5, 6])
    manager.store_context_blocks(request)
    assert not manager.block_manager.lookup_tree.root.has_children
    assert trees(manager) == {}
    check_invariants(manager)


def test_block_that_is_cut_inside_its_cached_tokens_leaves_the_tree() -> None:
    """A partly filled block is cached under six tokens; after a rewind to five the sixth may become another."""
    manager = make_kv_cache_manager()
    request = decode(manager, finish_prompt(add(manager, make_request(1, 4))), [5, 6, 7])
    manager.store_blocks_for_reuse(1, request)
    assert len(trees(manager)) == 2
    manager.rewind_kv_cache(1, 2)
    assert len(trees(manager)) == 1
    assert found(manager, [1, 2, 3, 4, 5, 6, 9]) == 4


def test_hash_of_a_block_does_not_depend_on_what_the_window_still_holds() -> None:
    """Equal chains have equal hashes, whether blocks above have been evicted or have left the window."""
    sliding, full = make_kv_cache_manager(window=8), make_kv_cache_manager()
    serve(sliding, make_request(1, 8), range(9, 22))
    serve(full, make_request(1, 21))
    assert trees(sliding)
    assert set(trees(sliding)) < set(trees(full))


def test_truncation_drops_cached_blocks_that_nobody_holds() -> None:
    manager = make_kv_cache_manager(8)
    for request_id, tail in enumerate(([9, 9, 9, 9, 0], [3, 3, 3, 3, 0])):
        serve(manager, make_request(request_id, [1, 2, 3, 4, 5, 6, 7, 8, *tail]))
    assert len(trees(manager)) == 4
    manager.truncate_blocks([1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9], 2)
    assert len(trees(manager)) == 1  # the block in which the prefix ends stays
    assert num_free(manager) == 8
    check_invariants(manager)
    window = manager.block_manager.window_block_managers[64]
    ids = window.eviction_policy.free_queues()[0][2]
    assert [window.get_block_by_id(block_id).is_detached for block_id in ids] == [True] * 7 + [False]


def test_truncation_leaves_held_blocks_to_their_holder() -> None:
    manager = make_kv_cache_manager(8)
    request = prefill(manager, make_request(1, 13))
    before = block_ids(manager, 1)
    manager.truncate_blocks(range(1, 14), 0)
    assert len(trees(manager)) == 1
    assert (block_ids(manager, 1), num_free(manager)) == (before, 4)
    manager.remove_sequence(1, request)
    assert len(trees(manager)) == 3
    check_invariants(manager)


def test_unpinning_is_all_or_nothing() -> None:
    manager = make_kv_cache_manager(8)
    request = finish_prompt(add(manager, make_request(1, 9)))
    pinned = manager.store_blocks_for_reuse(1, request, pin_blocks=True)
    for wrong in ([*pinned, pinned[0]], [pinned[0], 99], [pinned[0], -5], [7]):
        with pytest.raises(InvalidInputError):
            manager.unpin_blocks_by_id(wrong)
    manager.remove_sequence(1, request)
    assert num_free(manager) == 8 - len(pinned)
    manager.unpin_blocks_by_id(pinned)
    assert num_free(manager) == 8
    check_invariants(manager)


def test_block_overwritten_by_an_offload_leaves_the_tree() -> None:
    manager = make_kv_cache_manager(4, 1)
    serve(manager, make_request(1, 5))
    serve(manager, make_request(2, range(50, 55)))
    first, second = manager.block_manager.window_block_managers[64].matcher.list_blocks()
    manager.block_manager.get_window_block_manager(64).claimer.offload_block(first)
    assert len(trees(manager)) == 2
    manager.block_manager.get_window_block_manager(64).claimer.offload_block(second)  # into the only place there is
    assert first.is_detached
    assert not second.is_primary
    assert len(trees(manager)) == 1
    check_invariants(manager)


def test_newest_of_equal_partial_matches_is_taken() -> None:
    manager = make_kv_cache_manager()
    requests = [add(manager, make_request(request_id, [1, 2, 3, last, 0])) for request_id, last in enumerate((8, 9, 7))]
    for request in requests:
        manager.remove_sequence(request.request_id, finish_prompt(request))
    assert add(manager, make_request(4, [1, 2, 3, 5, 0])).prepopulated_prompt_len == 3
    left = {BlockKey.unpack(entry.block_key).tokens[3] for entry in trees(manager).values()}
    assert left == {8, 9}  # the third was taken over
