"""Admission: what is claimed, copied, taken over, onboarded and allocated, and what a batch shares."""

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
from trtkv.common import CacheType
from trtkv.errors import InvalidInputError, OutOfBlocksError
from trtkv.inspection.invariants import check_invariants
from trtkv.keys.block_key import BlockKey
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest
from trtkv.records.retention_config import KvCacheRetentionConfig, TokenRangeRetentionConfig
from trtkv.transfers.copy_engine import COPY, ONBOARD, RecordingCopyEngine

TEN = list(range(1, 11))


def block(manager: KVCacheManager, request_id: int, index: int) -> KVCacheBlock:
    return manager.get_sequence(request_id).get_window(manager.max_attention_window).held[index]


def add_batch(manager: KVCacheManager, *requests: LlmRequest) -> None:
    manager.add_sequence_batch([(r.request_id, r.prompt_len, r.beam_width) for r in requests], requests)


def tokens_of(entry: KVCacheBlock) -> list[int]:
    return list(BlockKey.unpack(entry.block_key).tokens)


# -- fresh blocks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "keys"),
    [(1, [[]]), (2, [[1]]), (4, [[1, 2, 3]]), (5, [[1, 2, 3, 4], []]), (6, [[1, 2, 3, 4], [5]])],
)
def test_keys_cover_all_tokens_but_the_last(length: int, keys: list[list[int]]) -> None:
    manager = make_kv_cache_manager()
    add(manager, make_request(1, length))
    assert [tokens_of(block(manager, 1, index)) for index in range(len(keys))] == keys
    assert [block(manager, 1, index).is_full for index in range(len(keys))] == [len(k) == 4 for k in keys]


def test_fresh_blocks_are_chained_and_hashed_from_the_start() -> None:
    manager = make_kv_cache_manager()
    add(manager, make_request(1, 9))
    first, second, third = (block(manager, 1, index) for index in range(3))
    assert first.prev_block_in_seq is None
    assert second.prev_block_in_seq is first
    assert second.hash == BlockKey((5, 6, 7, 8)).hash(BlockKey((1, 2, 3, 4)).hash())
    assert third.prev_block_in_seq is second
    assert first.is_detached


def test_last_block_of_several_beams_is_one_each_unless_it_is_full() -> None:
    manager = make_kv_cache_manager()
    add(manager, make_request(1, 6, beam_width=2))
    add(manager, make_request(2, 8, beam_width=2))
    assert manager.get_cache_block_ids(1, 64) == [[0, 1], [0, 2]]
    assert manager.get_cache_block_ids(2, 64) == [[3, 4], [3, 4]]
    assert [manager.block_manager.get_block_by_id(i, 64).ref_count for i in range(5)] == [2, 1, 1, 2, 2]
    assert [tokens_of(manager.block_manager.get_block_by_id(i, 64)) for i in (1, 2)] == [[5], []]


def test_cross_cache_shares_the_last_block_too_and_has_no_keys_without_encoder_tokens() -> None:
    manager = make_kv_cache_manager(cache_type=CacheType.CROSS)
    manager.add_sequence_batch([(1, 6, 2)], [make_request(1, 3, beam_width=2)])
    assert manager.get_cache_block_ids(1, 64) == [[0, 1], [0, 1]]
    assert tokens_of(block(manager, 1, 0)) == []


def test_without_reuse_nothing_is_looked_up_or_written_to_the_request() -> None:
    manager = make_kv_cache_manager(enable_block_reuse=False)
    request = make_request(1, 9)
    request.set_estimated_reusable_tokens(4)
    add(manager, request)
    finish_prompt(request)
    manager.remove_sequence(1, request)
    other = add(manager, make_request(2, 9))
    assert (other.prepopulated_prompt_len, request.estimated_reusable_tokens) == (0, 4)
    assert other.missed_blocks_per_request == 3


# -- hits -------------------------------------------------------------------------------------------


def test_full_blocks_are_shared_and_the_last_token_is_always_computed() -> None:
    manager = make_kv_cache_manager()
    prefill(manager, make_request(1, 8))
    request = add(manager, make_request(2, 8))
    assert request.prepopulated_prompt_len == 4  # the second block was not full when it was stored
    decode(manager, finish_prompt(request), [9])
    assert block_ids(manager, 2)[0] == block_ids(manager, 1)[0]
    assert block(manager, 2, 0).ref_count == 2
    assert (request.reused_blocks_per_request, request.missed_blocks_per_request) == (1, 1)
    check_invariants(manager)


@pytest.mark.parametrize("length", [3, 4, 5, 7, 8, 9, 12, 13])
def test_same_prompt_again_leaves_exactly_its_last_token(length: int) -> None:
    manager = make_kv_cache_manager()
    serve(manager, make_request(1, length), [50, 51])
    request = add(manager, make_request(2, length))
    assert request.prepopulated_prompt_len == length - 1
    assert request.context_current_position == length - 1
    assert request.context_chunk_size == 1
    check_invariants(manager)


def test_prompt_shorter_than_a_block_is_matched_token_by_token() -> None:
    manager = make_kv_cache_manager()
    serve(manager, make_request(1, TEN))
    assert add(manager, make_request(2, [1, 2, 9])).prepopulated_prompt_len == 2
    assert add(manager, make_request(3, [9])).prepopulated_prompt_len == 0


def test_free_leaf_is_taken_over_in_place() -> None:
    engine = RecordingCopyEngine()
    manager = make_kv_cache_manager(copy_engine=engine)
    serve(manager, make_request(1, 8))
    manager.block_manager.window_block_managers[64].get_and_reset_iteration_stats()
    request = add(manager, make_request(2, [1, 2, 3, 4, 5, 6, 99]))
    taken = block(manager, 2, 1)
    assert (request.prepopulated_prompt_len, taken.is_detached) == (6, True)
    assert engine.copies == []
    assert manager.probe_prefix_match_length(make_request(3, 8)) == 4
    check_invariants(manager)


@pytest.mark.parametrize("reason", ["held", "not a leaf"])
def test_block_that_others_use_is_copied(reason: str) -> None:
    engine = RecordingCopyEngine()
    manager = make_kv_cache_manager(copy_engine=engine)
    if reason == "held":
        finish_prompt(add(manager, make_request(1, 9)))
        manager.store_context_blocks(manager_request(manager, 1, 9))
    else:
        serve(manager, make_request(1, 13))
    source = block(manager, 1, 1) if reason == "held" else find_block(manager, [5, 6, 7, 8])
    request = add(manager, make_request(2, [1, 2, 3, 4, 5, 6, 99, 99]))
    copied = block(manager, 2, 1)
    (copy,) = engine.copies
    assert (copy.kind, copy.num_tokens) == (COPY, 2)
    assert (copy.src_block_id, copy.dst_block_id) == (source.block_id, copied.block_id)
    assert request.prepopulated_prompt_len == 6
    assert not source.is_detached
    assert tokens_of(copied) == [5, 6, 99]
    assert copied.hash == BlockKey((5, 6, 99)).hash(BlockKey((1, 2, 3, 4)).hash())
    check_invariants(manager)


def manager_request(manager: KVCacheManager, request_id: int, length: int) -> LlmRequest:
    """The request of a sequence that has computed its prompt, made again."""
    return finish_prompt(make_request(request_id, length))


def find_block(manager: KVCacheManager, tokens: list[int]) -> KVCacheBlock:
    blocks = manager.block_manager.window_block_managers[64].block_objects()
    return next(b for b in blocks if b.lookup_node is not None and tokens_of(b) == tokens)


def test_copy_of_a_host_block_is_an_onboarding_and_leaves_the_source() -> None:
    engine = RecordingCopyEngine()
    manager = make_kv_cache_manager(4, 4, copy_engine=engine)
    serve(manager, make_request(1, 13))
    source = find_block(manager, [1, 2, 3, 4])
    manager.block_manager.get_window_block_manager(64).claimer.offload_block(source)
    engine.copies.clear()
    request = add(manager, make_request(2, [1, 2, 99]))
    (copy,) = [c for c in engine.copies if c.kind == ONBOARD]
    assert (copy.num_tokens, copy.src_block_id) == (2, source.block_id)
    assert request.prepopulated_prompt_len == 2
    assert not source.is_primary
    check_invariants(manager)


def test_copied_source_is_claimed_before_anything_is_allocated() -> None:
    """With room for the copy only, the source itself must not be the block that is taken for it."""
    manager = make_kv_cache_manager(4)
    serve(manager, make_request(1, 13))
    prefill(manager, make_request(2, [77] * 8))  # takes the two blocks that were free first
    source = find_block(manager, [1, 2, 3, 4])
    request = add(manager, make_request(3, [1, 2, 99]))
    assert request.prepopulated_prompt_len == 2
    assert block(manager, 3, 0) is not source
    assert not source.is_detached
    check_invariants(manager)


@pytest.mark.parametrize("compatibility", [False, True])
def test_copy_without_a_second_free_block(compatibility: bool) -> None:
    """The source counts as free, but it cannot be both the source and the copy: the match is given up."""
    manager = make_kv_cache_manager(4, 4, compatibility=compatibility)
    serve(manager, make_request(1, 13))
    prefill(manager, make_request(2, [77] * 12))  # what lies below the first block moves to the host
    source = find_block(manager, [1, 2, 3, 4])
    assert (num_free(manager), source.is_primary, source.has_refs, source.is_leaf) == (1, True, False, False)
    request = make_request(3, [1, 2, 99])
    assert manager.get_needed_blocks_one_step(request, False, 64) == 1
    if compatibility:
        with pytest.raises(OutOfBlocksError):
            add(manager, request)
        return
    assert manager.probe_prefix_match_length(request) == 0
    assert add(manager, request).prepopulated_prompt_len == 0
    assert not source.is_primary
    check_invariants(manager)


def test_copies_that_fit_are_kept_and_the_last_one_of_a_batch_is_given_up() -> None:
    manager = make_kv_cache_manager(5, 8)
    serve(manager, make_request(1, 13))
    prefill(manager, make_request(2, [77] * 12))
    source = find_block(manager, [1, 2, 3, 4])
    assert (num_free(manager), source.is_primary, source.has_refs, source.is_leaf) == (2, True, False, False)
    requests = [make_request(3, [1, 2, 99]), make_request(4, [1, 2, 98, 98])]
    manager.add_sequence_batch([(request.request_id, request.prompt_len, 1) for request in requests], requests)
    assert [request.prepopulated_prompt_len for request in requests] == [2, 0]
    check_invariants(manager)


def test_a_copy_is_not_made_for_a_batch_against_the_settings() -> None:
    manager = make_kv_cache_manager(16, copy_on_partial_reuse=False)
    serve(manager, make_request(1, [1, 2, 3, 4, 5, 6]))
    requests = [make_request(2, [1, 2, 3, 4, 5, 9]), make_request(3, [1, 2, 3, 4, 5, 8])]
    manager.add_sequence_batch([(request.request_id, request.prompt_len, 1) for request in requests], requests)
    assert [request.prepopulated_prompt_len for request in requests] == [4, 5]
    assert manager.get_iteration_stats()[64].iter_intra_device_copy_blocks == 0
    check_invariants(manager)


def test_hit_overwrites_the_duration_and_a_given_priority_of_a_cached_block() -> None:
    manager = make_kv_cache_manager()
    retention = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 60, 500)])
    serve(manager, make_request(1, 9, kv_cache_retention_config=retention))
    add(manager, make_request(2, 9))
    get_duration_ms = manager.block_manager.window_block_managers[64].eviction_policy.get_duration_ms
    assert (block(manager, 2, 0).priority, get_duration_ms(block(manager, 2, 0))) == (60, None)
    other = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, 4, 20, 9)])
    add(manager, make_request(3, 9, kv_cache_retention_config=other))
    assert [(block(manager, 3, i).priority, get_duration_ms(block(manager, 3, i))) for i in range(3)] == [
        (20, 9),
        (60, None),
        (35, None),
    ]
    check_invariants(manager)


def test_fresh_block_has_the_default_priority_however_it_was_kept_before() -> None:
    manager = make_kv_cache_manager(1)
    retention = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 60)])
    serve(manager, make_request(1, 4, kv_cache_retention_config=retention))
    add(manager, make_request(2, [9, 9]))
    assert block(manager, 2, 0).priority == 35


# -- batches ----------------------------------------------------------------------------------------


def test_last_of_a_batch_takes_a_free_leaf_over_and_the_others_copy_it() -> None:
    engine = RecordingCopyEngine()
    manager = make_kv_cache_manager(copy_engine=engine)
    serve(manager, make_request(1, 8))
    leaf = find_block(manager, [5, 6, 7])
    requests = [make_request(i, [1, 2, 3, 4, 5, 6, i * 10]) for i in (2, 3, 4)]
    add_batch(manager, *requests)
    assert block(manager, 4, 1) is leaf
    assert [copy.src_block_id for copy in engine.copies] == [leaf.block_id] * 2
    assert {request.prepopulated_prompt_len for request in requests} == {6}
    check_invariants(manager)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_leaf_that_one_of_a_batch_matches_fully_is_copied_by_the_others(order: tuple[int, int]) -> None:
    engine = RecordingCopyEngine()
    manager = make_kv_cache_manager(copy_engine=engine)
    request = prefill(manager, make_request(1, 9))
    manager.remove_sequence(1, request)
    leaf = find_block(manager, [5, 6, 7, 8])
    both = [make_request(2, 9), make_request(3, [1, 2, 3, 4, 5, 6, 99])]
    add_batch(manager, *(both[index] for index in order))
    assert block(manager, 2, 1) is leaf
    assert block(manager, 3, 1) is not leaf
    assert (leaf.ref_count, len(engine.copies)) == (1, 1)
    check_invariants(manager)


def test_last_copier_of_a_batch_releases_the_source() -> None:
    manager = make_kv_cache_manager()
    serve(manager, make_request(1, 13))
    source = find_block(manager, [5, 6, 7, 8])
    add_batch(manager, *(make_request(i, [1, 2, 3, 4, 5, 6, i * 10]) for i in (2, 3)))
    assert source.ref_count == 0
    assert source.is_primary
    assert not source.is_detached
    queues = manager.block_manager.window_block_managers[64].eviction_policy.free_queues()
    assert queues[-1][2][-1] == source.block_id
    check_invariants(manager)


def test_requests_of_one_batch_do_not_share_what_none_of_them_has_computed() -> None:
    manager = make_kv_cache_manager()
    requests = [make_request(i, 9) for i in (1, 2)]
    add_batch(manager, *requests)
    assert set(block_ids(manager, 1)).isdisjoint(block_ids(manager, 2))
    for request in requests:
        manager.store_context_blocks(finish_prompt(request))
    assert [block(manager, i, 0).is_detached for i in (1, 2)] == [False, True]
    for request in requests:
        manager.remove_sequence(request.request_id, request)
    check_invariants(manager)
    assert manager.probe_prefix_match_length(make_request(3, 9)) == 8


def test_all_of_a_batch_claim_before_any_allocates() -> None:
    """What the second one has in the cache must not be given to the first one."""
    manager = make_kv_cache_manager(7, 3)
    serve(manager, make_request(1, 13))
    first, second = make_request(2, [77] * 11), make_request(3, 13)
    expected = manager.probe_prefix_match_length(second)
    add_batch(manager, first, second)
    assert second.prepopulated_prompt_len == expected == 12
    check_invariants(manager)


def test_plan_says_what_admission_does_and_changes_nothing() -> None:
    manager = make_kv_cache_manager()
    serve(manager, make_request(1, 13))
    planner = manager.block_manager.window_block_managers[64].planner
    request = make_request(2, [*range(1, 11), 99])
    free = num_free(manager)
    (claim,) = planner.plan_batch([request], [11], [1], True, [2**31 - 1])
    assert (claim.prepopulated_len, len(claim.matched), claim.needs_copy) == (10, 3, False)
    assert (num_free(manager), manager.sequences) == (free, {})
    add(manager, request)
    assert request.prepopulated_prompt_len == 10


# -- room -------------------------------------------------------------------------------------------


def test_batch_that_does_not_fit_as_a_whole_is_refused_as_a_whole() -> None:
    manager = make_kv_cache_manager(5)
    requests = [make_request(i, [i] * 12) for i in (1, 2)]
    with pytest.raises(OutOfBlocksError, match="3 context blocks of request 2 with 1 beam"):
        add_batch(manager, *requests)
    assert (manager.sequences, num_free(manager)) == ({}, 5)
    add(manager, requests[0])
    check_invariants(manager)


def test_hits_on_free_blocks_are_no_free_blocks_any_more() -> None:
    manager = make_kv_cache_manager(4)
    serve(manager, make_request(1, 13))
    assert num_free(manager) == 4
    add(manager, make_request(2, 16))  # exactly as many as there are
    assert num_free(manager) == 0
    check_invariants(manager)


def test_beams_of_a_short_prompt_need_a_block_each() -> None:
    manager = make_kv_cache_manager(3)
    with pytest.raises(OutOfBlocksError, match="with 4 beam"):
        add(manager, make_request(1, 2, beam_width=4))
    add(manager, make_request(1, 2, beam_width=3))
    check_invariants(manager)


def test_recurrent_window_needs_the_whole_prompt() -> None:
    from tests.builders import make_linear_attention
    from trtkv.common import RECURRENT_STATES

    manager = make_kv_cache_manager(
        windows={64: (8, 0), RECURRENT_STATES: (8, 0)},
        linear_attention_metadata=make_linear_attention(),
        enable_partial_reuse=False,
    )
    with pytest.raises(InvalidInputError, match="input length 5 of request 1 differs from its prompt of 9 tokens"):
        add(manager, make_request(1, 9), input_length=5)
    check_invariants(manager)
