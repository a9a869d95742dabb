"""Corner cases of storing that random programs reach too seldom."""

from __future__ import annotations

import pytest

from tests.stress.manager_tree import read_trees
from trtkv import KVCacheManager, LlmRequest
from trtkv.errors import InvalidInputError
from trtkv.inspection.invariants import find_violations
from trtkv.keys.block_key import BlockKey
from trtkv.records.llm_request import LlmRequestState


def make_manager(window: int, num_blocks: int = 16, *, compatibility: bool = False) -> KVCacheManager:
    return KVCacheManager.from_arguments(
        [1], 4, 4, {window: (num_blocks, 0)}, 8, 1, [window], max_sequence_length=64, compatibility=compatibility
    )


def add(manager: KVCacheManager, *requests: LlmRequest) -> None:
    manager.add_sequence_batch([(r.request_id, r.prompt_len, 1) for r in requests], requests)
    for request in requests:
        request.set_context_current_position(request.prompt_len)
        request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)


def test_pinned_blocks_are_those_in_the_tree_when_a_chain_branches_off() -> None:
    """Two requests compute the same first block; the second one pins, and has to pin the one that is cached."""
    manager = make_manager(64)
    start = [1, 2, 3, 4]
    first, second = LlmRequest(1, [*start, 5, 6, 7, 8, 9], 4), LlmRequest(2, [*start, 6, 6, 6, 6, 9], 4)
    add(manager, first, second)
    manager.store_context_blocks(first)
    pinned = manager.store_blocks_for_reuse(2, second, pin_blocks=True)
    (shared,), (_, own, _) = manager.get_cache_block_ids(1, 64)[0][:1], manager.get_cache_block_ids(2, 64)[0]
    assert pinned == [shared, own]
    assert find_violations(manager) == []


def test_nothing_is_left_of_a_chain_that_has_left_the_window_altogether() -> None:
    """With windows smaller than a block no full block may be held any more when they are stored."""
    manager = make_manager(2)
    request = LlmRequest(1, [1, 2, 3, 4], 8)
    add(manager, request)
    for token in (5, 6):
        manager.add_token(1)
        request.add_new_token(token)
    manager.store_context_blocks(request)
    assert not manager.block_manager.lookup_tree.root.has_children
    assert read_trees(manager) == {2: {}}
    assert find_violations(manager) == []


@pytest.mark.parametrize(
    "state",
    [
        LlmRequestState.CONTEXT_INIT,
        LlmRequestState.DISAGG_GENERATION_INIT,
        LlmRequestState.DISAGG_GENERATION_TRANS_IN_PROGRESS,
    ],
)
def test_nothing_is_stored_of_a_prompt_that_nobody_has_computed(state: LlmRequestState) -> None:
    manager = make_manager(64)
    request = LlmRequest(1, range(9), 4)
    manager.add_sequence_batch([(1, 9, 1)], [request])
    request.set_state(state)
    manager.store_context_blocks(request)
    manager.store_new_block(request)
    manager.store_blocks_for_reuse(1, request)
    manager.remove_sequence(1, request)
    assert read_trees(manager) == {64: {}}
    assert manager.num_free_blocks == 16


def test_only_the_computed_part_of_a_prompt_is_stored() -> None:
    manager = make_manager(64)
    request = LlmRequest(1, range(20), 4)
    manager.add_sequence_batch([(1, 20, 1)], [request])
    request.set_context_chunk_size(8)
    request.move_to_next_context_chunk()
    manager.remove_sequence(1, request)
    assert manager.probe_prefix_match_length(LlmRequest(2, range(20), 4)) == 7  # the last computed one is left out


def test_recorded_behaviour_stores_what_was_never_computed() -> None:
    """Why this differs from the recordings: another request would find a prompt that holds nothing."""
    manager = make_manager(64, compatibility=True)
    request = LlmRequest(1, range(9), 4)
    manager.add_sequence_batch([(1, 9, 1)], [request])
    manager.remove_sequence(1, request)
    assert manager.probe_prefix_match_length(LlmRequest(2, range(9), 4)) == 8


def test_block_that_is_cut_inside_its_cached_tokens_leaves_the_tree() -> None:
    """A partly filled block is cached under six tokens; after a rewind to five the sixth may become another."""
    manager = make_manager(64)
    request = LlmRequest(1, [1, 2, 3, 4], 8)
    add(manager, request)
    for token in (5, 6, 7):
        manager.add_token(1)
        request.add_new_token(token)
    manager.store_blocks_for_reuse(1, request)
    assert len(read_trees(manager)[64]) == 2
    manager.rewind_kv_cache(1, 2)
    assert len(read_trees(manager)[64]) == 1
    assert manager.probe_prefix_match_length(LlmRequest(2, [1, 2, 3, 4, 5, 6, 9], 4)) == 4


def test_hash_of_a_block_does_not_depend_on_what_the_window_still_holds() -> None:
    """Equal chains have equal hashes, whether blocks above have been evicted or have left the window."""
    manager = make_manager(8)
    request = LlmRequest(1, range(8), 30)
    add(manager, request)
    for token in range(8, 21):
        manager.add_token(1)
        request.add_new_token(token)
    manager.remove_sequence(1, request)
    slid = set(read_trees(manager)[8])
    other = make_manager(64)
    whole = LlmRequest(1, range(21), 4)
    add(other, whole)
    other.remove_sequence(1, whole)
    assert slid
    assert slid < set(read_trees(other)[64])


# -- dropping and unpinning -------------------------------------------------------------------------


def test_truncation_drops_cached_blocks_that_nobody_holds() -> None:
    manager = make_manager(64, 8)
    for request_id, tail in ((1, [5, 6, 7, 8, 9, 9, 9, 9, 0]), (2, [5, 6, 7, 8, 3, 3, 3, 3, 0])):
        request = LlmRequest(request_id, [1, 2, 3, 4, *tail], 4)
        add(manager, request)
        manager.remove_sequence(request_id, request)
    assert len(read_trees(manager)[64]) == 4
    manager.truncate_blocks([1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9], 2)
    assert len(read_trees(manager)[64]) == 1  # the block in which the prefix ends stays
    assert manager.num_free_blocks == 8
    assert find_violations(manager) == []
    level, priority, ids = manager.block_manager.window_block_managers[64].eviction_policy.free_queues()[0]
    assert (level, priority, len(ids)) == (0, 0, 3)  # the first to be taken


def test_truncation_leaves_held_blocks_to_their_holder() -> None:
    manager = make_manager(64, 8)
    request = LlmRequest(1, range(13), 4)
    add(manager, request)
    manager.store_context_blocks(request)
    held = manager.get_cache_block_ids(1, 64)
    manager.truncate_blocks(range(13), 0)
    assert len(read_trees(manager)[64]) == 1
    assert manager.get_cache_block_ids(1, 64) == held
    assert manager.num_free_blocks == 4
    manager.remove_sequence(1, request)
    assert len(read_trees(manager)[64]) == 3
    assert find_violations(manager) == []


def test_unpinning_is_all_or_nothing() -> None:
    manager = make_manager(64, 8)
    request = LlmRequest(1, range(9), 4)
    add(manager, request)
    pinned = manager.store_blocks_for_reuse(1, request, pin_blocks=True)
    for wrong in ([*pinned, pinned[0]], [pinned[0], 99], [pinned[0], -5], [7]):
        with pytest.raises(InvalidInputError):
            manager.unpin_blocks_by_id(wrong)
    manager.remove_sequence(1, request)
    assert manager.num_free_blocks == 8 - len(pinned)
    manager.unpin_blocks_by_id(pinned)
    assert manager.num_free_blocks == 8
    assert find_violations(manager) == []


def test_block_overwritten_by_an_offload_leaves_the_tree() -> None:
    manager = KVCacheManager.from_arguments([1], 4, 4, {64: (4, 1)}, 8, 1, [64], max_sequence_length=64)
    for request_id, tokens in ((1, range(5)), (2, range(50, 55))):
        request = LlmRequest(request_id, tokens, 4)
        add(manager, request)
        manager.remove_sequence(request_id, request)
    first, second = manager.block_manager.window_block_managers[64].matcher.list_blocks()
    manager.block_manager.offload_block(first, 64)
    assert len(read_trees(manager)[64]) == 2
    manager.block_manager.offload_block(second, 64)  # into the only place there is
    assert first.is_detached
    assert not second.is_primary
    assert len(read_trees(manager)[64]) == 1
    assert find_violations(manager) == []


def test_newest_of_equal_partial_matches_is_taken() -> None:
    manager = make_manager(64)
    requests = [LlmRequest(request_id, [1, 2, 3, last, 0], 4) for request_id, last in ((1, 8), (2, 9), (3, 7))]
    add(manager, *requests)
    for request in requests:
        manager.remove_sequence(request.request_id, request)
    request = LlmRequest(4, [1, 2, 3, 5, 0], 4)
    manager.add_sequence_batch([(4, 5, 1)], [request])
    assert request.prepopulated_prompt_len == 3
    left = {block.tokens[3] for block in map(BlockKey.unpack, (e.block_key for e in read_trees(manager)[64].values()))}
    assert left == {8, 9}  # the third was taken over
