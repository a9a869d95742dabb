"""The public class: admission as a whole, limits, queries, block tables, hashes, budgets, connectors, refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from tests.builders import (
    add,
    block_ids,
    decode,
    finish_prompt,
    make_event_manager,
    make_kv_cache_manager,
    make_linear_attention,
    make_request,
    num_free,
    prefill,
    serve,
)
from tests.snapshot import find_changes, take_snapshot
from trtkv.common import RECURRENT_STATES, CacheType
from trtkv.errors import InvalidInputError, OutOfBlocksError, UnknownIdError
from trtkv.inspection.invariants import check_invariants
from trtkv.keys.block_key import BlockKey
from trtkv.keys.key_hash import hash_block_key
from trtkv.keys.packed_key import PackedKey
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.kv_cache_index import get_level, get_slot
from trtkv.records.llm_request import LlmRequest, LlmRequestState, MultimodalInput
from trtkv.window_block_manager.sequences import write_slot_at


def chain_hash(keys: Sequence[PackedKey]) -> int:
    """Hash of the last of a chain of keys, block by block."""
    value = 0
    for key in keys:
        value = hash_block_key(key, value)
    return value


def must_fail(manager: KVCacheManager, error: type[Exception], match: str, call: Any, *requests: LlmRequest) -> None:
    """The call raises and changes nothing."""
    before = take_snapshot(manager, requests)
    with pytest.raises(error, match=match):
        call()
    assert not find_changes(before, take_snapshot(manager, requests))


# -- admission --------------------------------------------------------------------------------------


def test_empty_batch_is_nothing() -> None:
    manager = make_kv_cache_manager()
    manager.add_sequence_batch([], [])
    assert manager.sequences == {}


@pytest.mark.parametrize(
    ("infos", "match"),
    [
        ([(1, 5, 1)], "1 infos for 2 requests"),
        ([(1, 5, 1), (1, 5, 1)], "request 1 appears twice in the batch"),
        ([(1, 5, 1), (7, 5, 1)], "request 7 has a sequence already"),
        ([(1, 5, 1), (3, 5, 1)], "request 2 was given for sequence 3"),
        ([(1, 5, 1), (2, 0, 1)], "request 2 has input length 0 and 1 beams"),
        ([(1, 5, 1), (2, 5, 0)], "request 2 has input length 5 and 0 beams"),
        ([(1, 5, 1), (2, 5, 5)], "give at least 1 token and 1 to 4 beams"),
        ([(1, 5, 1), (2, 7, 1)], "request 2 has 5 tokens, 6 were asked for"),
        ([(1, 5, 1), (2, 65, 1)], "has input length 65, block tables hold 64 tokens"),
    ],
)
def test_one_wrong_entry_refuses_the_whole_batch(infos: list[tuple[int, int, int]], match: str) -> None:
    manager = make_kv_cache_manager()
    serve(manager, make_request(6, 13))
    add(manager, make_request(7, 5))
    requests = [make_request(1, 5), make_request(2, 5)]
    must_fail(manager, InvalidInputError, match, lambda: manager.add_sequence_batch(infos, requests), *requests)


def test_batch_without_room_in_its_middle_is_refused_whole() -> None:
    manager = make_kv_cache_manager(6)
    serve(manager, make_request(6, 13))
    requests = [make_request(1, 13), make_request(2, [9] * 9), make_request(3, [8])]
    infos = [(r.request_id, r.prompt_len, 1) for r in requests]
    must_fail(
        manager, OutOfBlocksError, "too few free blocks", lambda: manager.add_sequence_batch(infos, requests), *requests
    )


def test_chunk_that_would_end_before_the_cached_tokens_refuses_the_batch() -> None:
    manager = make_kv_cache_manager()
    serve(manager, make_request(6, 13))
    request = make_request(1, [1, 2, 3, 4, 5, 6, 99, 99, 99])
    request.set_context_chunk_size(1)
    must_fail(
        manager, InvalidInputError, "would end before its 6 cached tokens", lambda: add(manager, request), request
    )


def test_image_without_a_place_is_refused() -> None:
    manager = make_kv_cache_manager()
    request = make_request(1, 5, multimodal_input=MultimodalInput([[1] * 8]))
    must_fail(
        manager, InvalidInputError, "1 multimodal items have None positions", lambda: add(manager, request), request
    )
    add(make_kv_cache_manager(enable_block_reuse=False), request)  # no keys, no danger


def test_input_may_be_shorter_than_the_prompt() -> None:
    manager = make_kv_cache_manager()
    add(manager, make_request(1, 13), input_length=6)
    assert (manager.get_token_count(1), len(block_ids(manager, 1))) == (6, 2)
    check_invariants(manager)


def test_request_learns_what_was_found_and_its_estimate_is_forgotten() -> None:
    manager = make_kv_cache_manager()
    serve(manager, make_request(6, 13))
    request = make_request(1, 13)
    assert manager.get_needed_blocks_one_step(request, False, 64) == 4
    assert request.estimated_reusable_tokens == 12
    manager.add_sequence((1, 13, 1), request)
    assert (request.prepopulated_prompt_len, request.context_current_position) == (12, 12)
    assert request.estimated_reusable_tokens == 0


def test_request_that_comes_back_finds_its_own_blocks() -> None:
    manager = make_kv_cache_manager()
    request = decode(manager, prefill(manager, make_request(1, 7)), [7, 8, 9])
    manager.remove_sequence(1, request)
    request.pause(100)
    add(manager, request)
    assert (request.prompt_len, request.prepopulated_prompt_len) == (10, 9)
    check_invariants(manager)


def test_first_prefix_that_is_missing_ends_the_hit() -> None:
    manager = make_kv_cache_manager()
    serve(manager, make_request(6, 13))
    window = manager.block_manager.window_block_managers[64]
    window.claimer.remove_from_tree(window.matcher.list_blocks()[0])
    assert add(manager, make_request(1, 13)).prepopulated_prompt_len == 0


# -- limits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [64, 8])
def test_sequence_ends_where_the_block_table_does(window: int) -> None:
    manager = make_kv_cache_manager(window=window)
    request = finish_prompt(add(manager, make_request(1, 60)))
    decode(manager, request, [1] * 4)
    table = np.zeros((1, 1, 2, manager.max_blocks_per_seq), dtype=np.int32)
    assert manager.copy_block_offsets(table, 0, 1) == 16
    must_fail(manager, InvalidInputError, "as many as block tables hold", lambda: manager.add_token(1))
    with pytest.raises(InvalidInputError, match="as many as block tables hold"):
        manager.add_tokens([1])


@pytest.mark.parametrize("windows", [{64: (3, 0)}, {8: (3, 0)}, {64: (3, 0), 8: (9, 0)}, {64: (9, 0), 8: (3, 0)}])
@pytest.mark.parametrize("num_beams", [1, 2])
def test_a_batch_that_does_not_fit_gets_no_token(windows: dict[int, tuple[int, int]], num_beams: int) -> None:
    if num_beams == 2:
        windows = {64: (4, 0)}
    manager = make_kv_cache_manager(windows=windows)
    for request_id in (1, 2):
        request = make_request(request_id, [request_id] * 4, beam_width=num_beams if request_id == 1 else 1)
        add(manager, request)
    add(manager, make_request(3, [3])) if num_beams == 2 else None
    before = [manager.get_cache_block_ids(i, min(windows)) for i in (1, 2)]
    for call in (lambda: manager.add_tokens([1, 2]), lambda: manager.add_token_rounds([1, 2], 1)):
        with pytest.raises(OutOfBlocksError):
            call()
        assert [manager.get_token_count(i) for i in (1, 2)] == [4, 4]
        assert [manager.get_cache_block_ids(i, min(windows)) for i in (1, 2)] == before
        check_invariants(manager)
    with pytest.raises(UnknownIdError):
        manager.add_tokens([1, 99])
    assert manager.get_token_count(1) == 4


@pytest.mark.parametrize("windows", [{64: (9, 0)}, {8: (9, 0)}, {64: (9, 0), 8: (9, 0)}])
@pytest.mark.parametrize("num_rounds", [0, 1, 3, 4, 11, 40])
def test_rounds_of_decoding_are_repeated_calls(windows: dict[int, tuple[int, int]], num_rounds: int) -> None:
    at_once, one_by_one = make_kv_cache_manager(windows=windows), make_kv_cache_manager(windows=windows)
    failures = []
    for manager in (at_once, one_by_one):
        for request_id, length in ((1, 3), (2, 4), (3, 9)):
            add(manager, make_request(request_id, [request_id] * length))
        try:
            if manager is at_once:
                manager.add_token_rounds([3, 1, 2], num_rounds)
            else:
                for _ in range(num_rounds):
                    manager.add_tokens([3, 1, 2])
        except OutOfBlocksError as error:
            failures.append(str(error))
    assert len(failures) in (0, 2)
    assert len(set(failures)) < 2
    assert not find_changes(take_snapshot(at_once), take_snapshot(one_by_one))
    check_invariants(at_once)


def test_rounds_do_not_go_back() -> None:
    manager = make_kv_cache_manager()
    add(manager, make_request(1, [1] * 10))
    must_fail(manager, InvalidInputError, "-3 rounds of decoding", lambda: manager.add_token_rounds([1], -3))
    manager.add_token_rounds(iter([1]), 2)
    assert manager.get_token_count(1) == 12


def test_a_sequence_that_ends_while_a_batch_is_read_keeps_no_block() -> None:
    manager = make_kv_cache_manager(8)
    for request_id in (1, 2):
        add(manager, make_request(request_id, [request_id] * 4))

    def read() -> Iterator[int]:
        yield 1
        manager.remove_sequence(1)
        yield 2

    with pytest.raises(UnknownIdError, match="request 1 has no sequence"):
        manager.add_tokens(read())
    assert manager.get_token_count(2) == 4
    check_invariants(manager)


def test_a_replaced_block_is_stored_anew() -> None:
    manager = make_kv_cache_manager(8)
    request = finish_prompt(add(manager, make_request(1, 13)))
    manager.store_context_blocks(request)
    decode(manager, request, [5])
    manager.block_manager.get_window_block_manager(64).replacer.replace_shared_block(manager.get_sequence(1), 0)
    write_slot_at(manager.get_sequence(1).get_window(64), manager.get_sequence(1).beam_width, 0)
    add(manager, make_request(99, [77] * 16))
    manager.remove_sequence(99)  # which evicted the replaced block
    manager.store_blocks_for_reuse(1, request)
    assert manager.probe_prefix_match_length(make_request(5, 13)) == 12


def test_a_key_that_another_path_has_too_is_no_proof_of_being_there() -> None:
    manager = make_kv_cache_manager(16)
    request = finish_prompt(add(manager, make_request(1, [*range(12), 50])))
    manager.store_context_blocks(request)
    decode(manager, request, [51])
    manager.store_blocks_for_reuse(1, request)
    other = finish_prompt(make_request(1, [99, *range(1, 12), 50]))  # another request of the same id
    manager.unpin_blocks_by_id(manager.store_blocks_for_reuse(1, other, True))
    decode(manager, request, [52, 53, 54, 55, 56])
    manager.store_blocks_for_reuse(1, request)
    check_invariants(manager, {1: request})
    assert manager.probe_prefix_match_length(make_request(7, request.get_tokens(0).tolist())) == 18


def test_rounds_with_an_id_twice() -> None:
    manager = make_kv_cache_manager()
    add(manager, make_request(1, [1] * 3))
    manager.add_token_rounds([1, 1], 3)
    assert manager.get_token_count(1) == 9
    assert len(manager.get_cache_block_ids(1, 64)[0]) == 3


# -- connectors -------------------------------------------------------------------------------------


class Connector:
    """Promises these numbers of tokens, one per call."""

    def __init__(self, *promises: int) -> None:
        self.promises = list(promises)
        self.asked: list[tuple[int, int]] = []

    def get_num_new_matched_tokens(self, request: LlmRequest, num_computed_tokens: int) -> int:
        self.asked.append((request.request_id, num_computed_tokens))
        return self.promises.pop(0)


def test_connector_is_asked_once_behind_what_is_cached() -> None:
    connector = Connector(3)
    manager = make_kv_cache_manager(kv_cache_connector_manager=connector)
    prefill(manager, make_request(6, 9, is_dummy_request=True))  # dummies ask nobody
    request = add(manager, make_request(1, 9))
    assert (request.prepopulated_prompt_len, connector.asked) == (3, [(1, 0)])
    check_invariants(manager)


def test_connector_that_promises_the_whole_prompt_is_refused_before_anything_is_taken() -> None:
    connector = Connector(0, 9)
    manager = make_kv_cache_manager(kv_cache_connector_manager=connector)
    requests = [make_request(1, 9), make_request(2, 9)]
    must_fail(
        manager,
        InvalidInputError,
        "prepopulated length 9 of request 2 leaves nothing",
        lambda: manager.add_sequence_batch([(1, 9, 1), (2, 9, 1)], requests),
        *requests,
    )


# -- queries ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.get_token_count(5),
        lambda m: m.get_cache_block_ids(5, 64),
        lambda m: m.get_batch_cache_block_ids([1, 5], 64),
        lambda m: m.get_last_block_id(5),
        lambda m: m.add_token(5),
        lambda m: m.add_tokens([5]),
        lambda m: m.add_token_rounds([1, 5], 9),
        lambda m: m.pin_blocks(5),
        lambda m: m.store_new_block(make_request(5)),
        lambda m: m.store_blocks_for_reuse(5, make_request(5)),
        lambda m: m.commit_and_get_block_hashes_for_request(make_request(5), 64),
        lambda m: m.copy_block_offsets(np.zeros((1, 1, 2, 16), dtype=np.int32), 0, 5),
        lambda m: m.get_needed_blocks_one_step(
            make_request(5, state=LlmRequestState.GENERATION_IN_PROGRESS), False, 64
        ),
    ],
)
def test_unknown_sequence_is_named(call: Any) -> None:
    manager = make_kv_cache_manager()
    add(manager, make_request(1, 5))
    must_fail(manager, UnknownIdError, "request 5 has no sequence; add it first", lambda: call(manager))


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.get_cache_block_ids(1, 7),
        lambda m: m.get_batch_cache_block_ids([1], 7),
        lambda m: m.commit_and_get_block_hashes_for_request(make_request(1, 5), 7),
        lambda m: m.find_blocks_in_reuse_tree_by_block_key(b"", 7),
        lambda m: m.find_blocks_in_reuse_tree_by_block_keys([], 7),
        lambda m: m.scheduling_has_free_blocks(1, 7),
        lambda m: m.verify_queue_integrity(7),
    ],
)
def test_unknown_window_is_named_with_the_known_ones(call: Any) -> None:
    manager = make_kv_cache_manager()
    add(manager, make_request(1, 5))
    must_fail(manager, UnknownIdError, re.escape("window 7 is not managed; choose one of [64]"), lambda: call(manager))


def test_ids_that_are_handed_out_are_copies() -> None:
    manager = make_kv_cache_manager()
    add(manager, make_request(1, 9))
    manager.get_cache_block_ids(1, 64)[0].append(99)
    assert manager.get_batch_cache_block_ids([1], 64) == [[[0, 1, 2]]]
    assert manager.get_last_block_id(1) == 2


def test_last_block_is_that_of_the_smallest_window() -> None:
    manager = make_kv_cache_manager(windows={64: (8, 0), 8: (8, 0)})
    serve(manager, make_request(6, [7] * 9))
    request = finish_prompt(add(manager, make_request(1, 9)))
    decode(manager, request, [1] * 4)
    assert manager.get_last_block_id(1) == block_ids(manager, 1, 8)[-1]
    manager.rewind_kv_cache(1, 0)
    empty = make_kv_cache_manager()
    add(empty, make_request(1, 4))
    empty.rewind_kv_cache(1, 4)
    assert empty.get_last_block_id(1) is None


def test_priority_of_a_block_that_is_not_there_is_the_default() -> None:
    manager = make_kv_cache_manager()
    assert manager.get_priority_by_block_id(3, 64) == 35
    assert manager.get_priority_by_block_id(99, 64) == 35
    assert manager.get_priority_by_block_id(3, 7) == 35


def test_tree_is_searched_by_key_and_by_keys() -> None:
    manager = make_kv_cache_manager()
    prefill(manager, make_request(1, 9))
    whole = BlockKey(tuple(range(1, 9)))
    parts = [BlockKey((1, 2, 3, 4)), BlockKey((5, 6, 7, 8))]
    for found in (
        manager.find_blocks_in_reuse_tree_by_block_key(whole, 64),
        manager.find_blocks_in_reuse_tree_by_block_key(whole.packed, 64),
        manager.find_blocks_in_reuse_tree_by_block_keys(parts, 64),
        manager.find_blocks_in_reuse_tree_by_block_keys([key.packed for key in parts], 64),
    ):
        assert found is not None
        assert found.block_id == 1
    assert manager.find_blocks_in_reuse_tree_by_block_keys(parts[::-1], 64) is None


def test_probe_holds_nothing_and_agrees_with_admission() -> None:
    manager = make_kv_cache_manager()
    serve(manager, make_request(6, 13))
    request = make_request(1, 13)
    before = take_snapshot(manager, [request])
    assert manager.probe_prefix_match_length(request) == 12
    assert not find_changes(before, take_snapshot(manager, [request]))
    assert make_kv_cache_manager(enable_block_reuse=False).probe_prefix_match_length(request) == 0


def test_summary_tells_held_blocks_from_free_ones() -> None:
    manager = make_kv_cache_manager()
    serve(manager, make_request(6, 13))
    add(manager, make_request(1, 9))
    summary = manager.analyze_prefix_reuse(make_request(2, 20))
    assert (summary.reusable_blocks_allocated, summary.reusable_blocks_all) == (2, 3)
    assert summary.first_new_block == BlockKey((13, 14, 15, 16)).packed
    whole = manager.analyze_prefix_reuse(make_request(2, 12))
    assert (whole.reusable_blocks_all, whole.first_new_block) == (3, None)
    other = manager.analyze_prefix_reuse(make_request(2, 4), tokens=list(range(1, 9)))
    assert other.reusable_blocks_all == 2
    several = make_kv_cache_manager(windows={64: (8, 0), 8: (8, 0)})
    with pytest.raises(InvalidInputError, match="a prefix summary needs one window"):
        several.analyze_prefix_reuse(make_request(2, 4))


def test_plain_facts_about_the_manager() -> None:
    manager = make_kv_cache_manager(16, 4, max_beam_width=3, chunk_size=32)
    assert (manager.tokens_per_block, manager.max_num_blocks, manager.num_free_blocks) == (4, 20, 16)
    assert (manager.used_num_blocks, manager.num_pools, manager.max_blocks_per_seq) == (4, 1, 16)
    assert (manager.max_beam_width, manager.chunk_size, manager.max_sequence_length) == (3, 32, 64)
    assert (manager.max_attention_window, manager.is_variable_window, manager.is_variable_gqa) == (64, False, False)
    assert (manager.enable_block_reuse, manager.enable_partial_reuse, manager.compatibility) == (True, True, False)
    assert (manager.cache_type, manager.cross_kv, manager.enable_indexer_k_cache) == (CacheType.SELF, False, False)
    assert manager.indexer_k_cache_index_head_dim == manager.indexer_k_cache_quant_block_size == 0
    assert manager.num_free_blocks_per_window_size == {64: 16}
    serve(manager, make_request(1, 9))
    counts = (manager.num_alloc_total_blocks, manager.num_alloc_new_blocks)
    assert counts == (3, 3)
    assert (manager.num_reused_blocks, manager.num_missed_blocks) == (0, 3)


# -- block tables -----------------------------------------------------------------------------------


def test_table_holds_the_slots_of_keys_and_values_for_each_pool() -> None:
    manager = KVCacheManager.from_arguments(
        [1, 1, 2], 8, 4, {64: (10, 0), 8: (10, 0)}, 4, 2, [64, 64, 8], max_sequence_length=64
    )
    serve(manager, make_request(9, [7] * 9))
    add(manager, make_request(1, 6, beam_width=2))
    table = np.full((2, 4, 2, 16), -9, dtype=np.int32)
    assert manager.copy_block_offsets(table, 1, 1) == 2
    narrow, wide = manager.get_cache_block_ids(1, 8), manager.get_cache_block_ids(1, 64)
    for beam in range(2):
        # One layer in the first pool, two in the second; keys and values of a slot lie side by side.
        assert table[0, 1 + beam, 0, :2].tolist() == [2 * block_id for block_id in narrow[beam]]
        assert table[0, 1 + beam, 1, :2].tolist() == [2 * block_id + 1 for block_id in narrow[beam]]
        assert table[1, 1 + beam, 0, :2].tolist() == [4 * block_id for block_id in wide[beam]]
        assert table[1, 1 + beam, 1, :2].tolist() == [4 * block_id + 1 for block_id in wide[beam]]
    assert (table[:, [0, 3]] == -9).all()
    assert (table[:, 1:3, :, 2:] == -9).all()


def test_batch_of_consecutive_ids_fills_consecutive_rows() -> None:
    manager = make_kv_cache_manager()
    for request_id in (4, 5):
        add(manager, make_request(request_id, [request_id] * 6))
    table = np.zeros((1, 2, 2, 16), dtype=np.int32)
    manager.get_block_offsets_of_batch(table, 4, 2, 1)
    assert table[0, :, 0, :2].tolist() == [[0, 2], [4, 6]]


def test_positions_without_memory_are_minus_one() -> None:
    manager = make_kv_cache_manager(
        windows={64: (16, 0), RECURRENT_STATES: (8, 0)},
        linear_attention_metadata=make_linear_attention(),
        enable_partial_reuse=False,
    )
    add(manager, make_request(1, 13))
    table = np.zeros((2, 1, 2, 16), dtype=np.int32)
    manager.copy_block_offsets(table, 0, 1)
    assert (table[0, 0, :, :4] < 0).tolist() == [[True, False, True, False]] * 2


# -- hashes -----------------------------------------------------------------------------------------


def test_committed_hashes_are_the_chain_of_the_full_blocks() -> None:
    manager = make_kv_cache_manager()
    request = decode(manager, prefill(manager, make_request(1, 6)), [7, 8, 9])
    keys = [BlockKey((1, 2, 3, 4)).packed, BlockKey((5, 6, 7, 8)).packed]
    expected = [chain_hash(keys[:1]), chain_hash(keys)]
    assert manager.commit_and_get_block_hashes_for_request(request, 64) == expected
    assert manager.commit_and_get_block_hashes_for_request(request, 64) == expected
    check_invariants(manager, {1: request})


def test_key_of_an_earlier_life_does_not_show_in_committed_hashes() -> None:
    """A decode block is recycled with its old key, which happens to be the new one, below another parent."""
    manager = make_kv_cache_manager(3)
    first = make_request(1, [1] * 4)
    decode(manager, finish_prompt(add(manager, first)), [5, 5, 5, 5, 5])
    manager.commit_and_get_block_hashes_for_request(first, 64)
    manager.remove_sequence(1)
    second = make_request(2, [2] * 4)
    decode(manager, finish_prompt(add(manager, second)), [5, 5, 5, 5, 5])
    keys = [BlockKey((2,) * 4).packed, BlockKey((5,) * 4).packed]
    assert manager.commit_and_get_block_hashes_for_request(second, 64) == [chain_hash(keys[:1]), chain_hash(keys)]


def test_commit_leaves_a_cached_block_under_the_key_it_is_found_by() -> None:
    manager = make_kv_cache_manager(event_manager=make_event_manager())
    request = finish_prompt(add(manager, make_request(1, 6)))
    manager.store_blocks_for_reuse(1, request)
    decode(manager, request, [7, 8, 9])
    assert len(manager.commit_and_get_block_hashes_for_request(request, 64)) == 2
    assert manager.probe_prefix_match_length(make_request(2, [1, 2, 3, 4, 5, 99])) == 5
    check_invariants(manager, {1: request})


def test_hashes_need_one_beam_and_a_whole_window() -> None:
    manager = make_kv_cache_manager(window=4)
    request = finish_prompt(add(manager, make_request(1, 4)))
    decode(manager, request, [1] * 5)
    with pytest.raises(InvalidInputError, match="has left window 4 by 1 blocks"):
        manager.commit_and_get_block_hashes_for_request(request, 4)
    beams = add(manager, make_request(2, 4, beam_width=2))
    with pytest.raises(InvalidInputError, match="has 2 beams; hashes need one"):
        manager.commit_and_get_block_hashes_for_request(beams, 4)


# -- budgets ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("beam_width", [1, 3])
@pytest.mark.parametrize("prompt_len", [1, 3, 4, 5, 8, 9])
def test_budget_of_a_prompt_is_what_admission_takes(prompt_len: int, beam_width: int) -> None:
    manager = make_kv_cache_manager(40)
    request = make_request(1, prompt_len, beam_width=beam_width)
    needed = manager.get_needed_blocks_one_step(request, False, 64)
    add(manager, request)
    assert 40 - num_free(manager) == needed


def test_budgets_end_with_the_last_token() -> None:
    manager = make_kv_cache_manager(2)
    short = make_request(1, 7, max_new_tokens=1)
    prefill(manager, short)
    assert [manager.get_needed_blocks_one_step(short, two_steps, 64) for two_steps in (False, True)] == [0, 0]
    drafting = make_request(2, range(90, 96), max_new_tokens=2, num_draft_tokens=3)
    assert manager.get_num_step_drafts(drafting, 3) == 2
    assert manager.get_needed_blocks_one_step(drafting, True, 64) == 2
    assert manager.get_remaining_blocks_to_completion(drafting, 64) == 2
    recorded = make_kv_cache_manager(2, compatibility=True)
    prefill(recorded, short := make_request(1, 7, max_new_tokens=1))
    assert [recorded.get_needed_blocks_one_step(short, two_steps, 64) for two_steps in (False, True)] == [0, 1]
    assert recorded.get_needed_blocks_one_step(drafting, True, 64) == 3


def test_prompt_beyond_the_longest_sequence_has_a_budget_and_is_refused() -> None:
    manager = make_kv_cache_manager(32, max_sequence_length=32, window=32)
    request = make_request(1, 64, max_new_tokens=1)
    assert manager.get_needed_blocks_one_step(request, False, 32) == 8
    must_fail(manager, InvalidInputError, "block tables hold 32", lambda: add(manager, request), request)


def test_slot_of_a_host_block_has_its_level_in_it() -> None:
    manager = make_kv_cache_manager(2, 2)
    serve(manager, make_request(1, 5))
    add(manager, make_request(2, range(50, 58)))
    (block,) = [
        block for block in manager.block_manager.window_block_managers[64].matcher.list_blocks() if not block.is_primary
    ]
    assert (get_level(block.memory_pool_block_index), get_slot(block.memory_pool_block_index)) in ((1, 0), (1, 1))
    with pytest.raises(InvalidInputError, match="is not in device memory"):
        manager.get_memory_pool_block_indices([block.block_id], 64)


def test_drafts_of_a_step_are_those_that_can_become_tokens() -> None:
    manager = make_kv_cache_manager(16)
    manager.set_spec_decoding_budget(0, 3)
    request = prefill(manager, make_request(1, 5, max_new_tokens=6))
    drafts = []
    for _ in range(8):
        drafts.append(manager.get_num_step_drafts(request, 3))
        decode(manager, request, [1])
    assert drafts == [3, 3, 3, 2, 1, 0, 3, 3]  # past its end the length of a request says nothing
    assert manager.get_num_step_drafts(make_request(2, 5, max_new_tokens=0), 3) == 3


@pytest.mark.parametrize("two_steps", [False, True])
@pytest.mark.parametrize("drafts", [0, 3])
def test_budget_of_a_step_is_what_its_tokens_take(two_steps: bool, drafts: int) -> None:
    manager = make_kv_cache_manager(40)
    request = finish_prompt(add(manager, make_request(1, 5, num_draft_tokens=drafts)))
    for _ in range(9):
        needed = manager.get_needed_blocks_one_step(request, two_steps, 64)
        free = num_free(manager)
        for _ in range((1 + drafts) * (2 if two_steps else 1)):
            manager.add_token(1)
        assert free - num_free(manager) == needed
        manager.rewind_kv_cache(1, (1 + drafts) * (2 if two_steps else 1) - 1)


def test_only_blocks_that_somebody_holds_lower_the_need() -> None:
    manager = make_kv_cache_manager()
    serve(manager, make_request(6, 13))
    request = make_request(1, 13)
    assert manager.get_needed_blocks_one_step(request, False, 64) == 4
    assert request.estimated_reusable_tokens == 12
    add(manager, make_request(2, 9))
    assert manager.get_needed_blocks_one_step(request, False, 64) == 2
    assert manager.get_remaining_blocks_to_completion(request, 64) == 2 + 4
    assert request.estimated_reusable_tokens == 12


def test_remaining_blocks_fall_to_zero_as_a_sequence_grows() -> None:
    manager = make_kv_cache_manager(40)
    request = make_request(1, 6, max_new_tokens=11)
    remaining = [manager.get_remaining_blocks_to_completion(request, 64)]
    finish_prompt(add(manager, request))
    for step in range(11):
        remaining.append(manager.get_remaining_blocks_to_completion(request, 64))
        decode(manager, request, [step])
    remaining.append(manager.get_remaining_blocks_to_completion(request, 64))
    taken = 40 - num_free(manager)
    assert remaining[0] == taken == 5
    assert remaining[-1] == 0
    assert remaining == sorted(remaining, reverse=True)


@pytest.mark.parametrize("window", [8, 7])
@pytest.mark.parametrize("prompt_len", [3, 9, 20])
def test_budget_of_a_sliding_window_is_never_too_small(window: int, prompt_len: int) -> None:
    manager = make_kv_cache_manager(40, window=window)
    request = make_request(1, prompt_len, max_new_tokens=25)
    promised = manager.get_remaining_blocks_to_completion(request, window)
    finish_prompt(add(manager, request))
    most = 40 - num_free(manager)
    for step in range(25):
        needed = manager.get_needed_blocks_one_step(request, False, window)
        free = num_free(manager)
        decode(manager, request, [step])
        assert free - num_free(manager) <= needed
        most = max(most, 40 - num_free(manager))
    assert most <= promised


def test_failed_budget_leaves_the_estimate() -> None:
    manager = make_kv_cache_manager()
    request = finish_prompt(add(manager, make_request(1, 5)))
    request.set_estimated_reusable_tokens(8)
    for call in (
        lambda: manager.get_needed_blocks_one_step(request, False, 7),
        lambda: manager.get_remaining_blocks_to_completion(request, 7),
    ):
        must_fail(manager, UnknownIdError, "window 7 is not managed", call, request)


def test_capacity_is_that_of_the_tightest_window() -> None:
    manager = make_kv_cache_manager(windows={64: (40, 0), 8: (9, 0)}, max_beam_width=1)
    assert manager.get_max_capacity_batch_size(20, 4) == min(40 // 6, 9 // 3)


# -- housekeeping -----------------------------------------------------------------------------------


def test_events_are_an_error_without_an_event_manager() -> None:
    manager = make_kv_cache_manager()
    manager.flush_iteration_events()
    with pytest.raises(InvalidInputError, match="events are off"):
        manager.get_latest_events()


def test_queues_are_sound_after_use() -> None:
    manager = make_kv_cache_manager(8, 4)
    for request_id in range(6):
        serve(manager, make_request(request_id, [request_id] * 13))
    assert manager.verify_queue_integrity(64)
    check_invariants(manager)


def test_fifty_thousand_evictions_leave_nothing_behind() -> None:
    """Nodes, keys and hash chains go with their blocks."""
    manager = make_kv_cache_manager(12)
    for request_id in range(6000):
        request = prefill(manager, LlmRequest(request_id, [request_id] * 33))
        manager.remove_sequence(request_id, request)
    assert manager.block_manager.lookup_tree.count_number_of_nodes() <= 12
    assert manager.num_alloc_total_blocks >= 50_000
    check_invariants(manager)
