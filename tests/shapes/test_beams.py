"""Beam search by default: what beams share, what each has for itself, and that all of it comes back."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from tests.builders import add, finish_prompt, make_kv_cache_manager, make_request, prefill
from tests.fake_memory import FakeMemory, cached_blocks
from tests.shapes.fake_server import FakeServer, check_free_counts
from trtkv import KVCacheManager, LlmRequest
from trtkv.errors import InvalidInputError, OutOfBlocksError

FULL = 64


def block_ids(manager: KVCacheManager, request_id: int = 0) -> list[list[int]]:
    return manager.get_cache_block_ids(request_id, FULL)


def refs(manager: KVCacheManager, *ids: int) -> list[int]:
    return [manager.block_manager.get_block_by_id(block_id, FULL).ref_count for block_id in ids]


def generate(manager: KVCacheManager, request: LlmRequest, num_tokens: int) -> None:
    for step in range(num_tokens):
        manager.add_token(request.request_id)
        request.add_new_tokens([[100 * beam + step] for beam in range(request.beam_width)])


# -- shared and own blocks ---------------------------------------------------------------------------------


def test_the_last_block_of_a_prompt_is_per_beam_and_the_others_are_shared():
    manager = make_kv_cache_manager(16)
    add(manager, make_request(0, 10, beam_width=3))
    assert block_ids(manager) == [[0, 1, 2], [0, 1, 3], [0, 1, 4]]
    assert refs(manager, 0, 1, 2, 3, 4) == [3, 3, 1, 1, 1]
    assert manager.num_free_blocks == 16 - 5


def test_a_prompt_that_ends_a_block_is_shared_to_the_end():
    manager = make_kv_cache_manager(16)
    add(manager, make_request(0, 8, beam_width=3))
    assert block_ids(manager) == [[0, 1]] * 3
    manager.add_token(0)
    assert block_ids(manager) == [[0, 1, 2], [0, 1, 3], [0, 1, 4]]


def test_a_prompt_shorter_than_a_block_shares_nothing():
    manager = make_kv_cache_manager(16)
    add(manager, make_request(0, 3, beam_width=2))
    assert block_ids(manager) == [[0], [1]]


def test_every_beam_grows_by_a_block_of_its_own():
    manager = make_kv_cache_manager(16)
    add(manager, make_request(0, 7, beam_width=2))
    for _ in range(6):
        manager.add_token(0)
    assert block_ids(manager) == [[0, 1, 3, 5], [0, 2, 4, 6]]
    assert manager.get_iteration_stats()[FULL].iter_gen_alloc_blocks == 2  # steps, not blocks


@pytest.mark.parametrize(("prompt_len", "num_new"), [(10, 0), (8, 0), (8, 5), (3, 9), (13, 12)])
def test_removal_frees_everything(prompt_len, num_new):
    manager = make_kv_cache_manager(32)
    request = prefill(manager, make_request(0, prompt_len, beam_width=3))
    generate(manager, request, num_new)
    manager.remove_sequence(0, request)
    assert manager.num_free_blocks == 32
    check_free_counts(manager)


# -- storing and reuse -----------------------------------------------------------------------------------------


def test_beam_0_is_stored_while_it_runs_and_nothing_when_it_ends():
    manager = make_kv_cache_manager(16)
    request = prefill(manager, make_request(0, 10, beam_width=2))
    request.add_new_tokens([[1], [2]])
    assert sorted(len(tokens) for tokens, _ in cached_blocks(manager, FULL)) == [4, 8]
    generate(manager, request, 8)
    manager.remove_sequence(0, request)
    assert sorted(len(tokens) for tokens, _ in cached_blocks(manager, FULL)) == [4, 8]


def test_hits_end_with_the_shared_blocks():
    """The last block is per beam: eight of nine cached tokens are used."""
    manager = make_kv_cache_manager(32)
    first = prefill(manager, make_request(0, 13))
    manager.remove_sequence(0, first)
    request = add(manager, make_request(1, 10, beam_width=2))
    assert request.prepopulated_prompt_len == 8
    assert block_ids(manager, 1) == [[0, 1, 3], [0, 1, 4]]
    assert (request.reused_blocks_per_request, request.missed_blocks_per_request) == (2, 1)

    one_beam = add(manager, make_request(2, 10))
    assert one_beam.prepopulated_prompt_len == 9


def test_a_prompt_that_ends_a_block_recomputes_its_last_token():
    """Seven tokens of the second block match; the block is shared by the beams, so they are used."""
    manager = make_kv_cache_manager(32)
    first = prefill(manager, make_request(0, 13))
    manager.remove_sequence(0, first)
    request = add(manager, make_request(1, 8, beam_width=2))
    assert request.prepopulated_prompt_len == 7
    assert block_ids(manager, 1)[0] == block_ids(manager, 1)[1]


def test_beams_reuse_what_beams_have_stored():
    manager = make_kv_cache_manager(32)
    first = prefill(manager, make_request(0, 10, beam_width=3))
    second = add(manager, make_request(1, 10, beam_width=2))
    assert second.prepopulated_prompt_len == 8
    assert refs(manager, 0, 1) == [5, 5]
    manager.remove_sequence(0, first)
    assert refs(manager, 0, 1) == [2, 2]


@pytest.mark.parametrize("first_seed", range(0, 24, 8))
def test_every_beam_reads_its_own_tokens(first_seed):
    for seed in range(first_seed, first_seed + 8):
        rng = Random(seed)
        memory = FakeMemory()
        manager = make_kv_cache_manager(
            windows={40: (rng.choice((20, 40)), rng.choice((0, 6)))},
            tokens_per_block=rng.choice((2, 3, 4)),
            max_sequence_length=40,
            enable_partial_reuse=rng.random() < 0.7,
            copy_on_partial_reuse=rng.random() < 0.7,
            copy_engine=memory,
        )
        server = FakeServer(manager, memory, rng)
        server.run(100, 24, 38, max_beam_width=4)
        assert server.events["decodes"] > 10


# -- room ---------------------------------------------------------------------------------------------------


def test_blocks_of_all_beams_are_counted_before_any_is_taken():
    """32 beams with a prompt of 3 tokens need 32 blocks; the formula for shared context would say one."""
    manager = make_kv_cache_manager(31, max_beam_width=32)
    request = make_request(0, 3, beam_width=32)
    assert manager.get_needed_blocks_one_step(request, False, FULL) == 32
    with pytest.raises(OutOfBlocksError, match="32 beam"):
        add(manager, request)
    assert manager.num_free_blocks == 31
    assert not manager.sequences
    assert manager.get_kv_cache_stats().alloc_total_blocks == 0


def test_a_step_takes_blocks_for_all_beams_or_none():
    manager = make_kv_cache_manager(4)
    add(manager, make_request(0, 8, beam_width=3))
    with pytest.raises(OutOfBlocksError, match="2 free blocks"):
        manager.add_token(0)
    assert manager.get_token_count(0) == 8
    assert block_ids(manager) == [[0, 1]] * 3
    assert manager.num_free_blocks == 2


def test_too_many_beams_are_refused():
    manager = make_kv_cache_manager(16, max_beam_width=2)
    with pytest.raises(InvalidInputError, match="1 to 2 beams"):
        add(manager, make_request(0, 8, beam_width=3))
    assert not manager.sequences


def test_budget_of_a_prompt_is_what_admission_takes():
    for prompt_len, beam_width in product(range(1, 18), (1, 2, 4)):
        manager = make_kv_cache_manager(64)
        request = make_request(0, prompt_len, beam_width=beam_width)
        needed = manager.get_needed_blocks_one_step(request, False, FULL)
        add(manager, request)
        assert needed == 64 - manager.num_free_blocks, (prompt_len, beam_width)


def test_budget_of_a_step_is_what_it_takes():
    for prompt_len, beam_width in product((5, 8, 11), (1, 3)):
        manager = make_kv_cache_manager(64)
        request = finish_prompt(add(manager, make_request(0, prompt_len, beam_width=beam_width)))
        request.add_new_tokens([[1]] * beam_width)
        for _ in range(9):
            needed = manager.get_needed_blocks_one_step(request, False, FULL)
            free = manager.num_free_blocks
            generate(manager, request, 1)
            assert needed == free - manager.num_free_blocks


def test_budget_to_completion_is_what_the_request_takes_in_the_end():
    for prompt_len, max_new_tokens, beam_width in product((5, 8, 11), (1, 4, 9), (1, 3)):
        manager = make_kv_cache_manager(64)
        request = make_request(0, prompt_len, max_new_tokens=max_new_tokens, beam_width=beam_width)
        to_completion = manager.get_remaining_blocks_to_completion(request, FULL)
        finish_prompt(add(manager, request))
        generate(manager, request, max_new_tokens)
        assert to_completion == 64 - manager.num_free_blocks, (prompt_len, max_new_tokens, beam_width)


# -- what beams cannot do -----------------------------------------------------------------------------------------


def test_beams_cannot_leave_a_sliding_window():
    manager = make_kv_cache_manager(windows={8: (20, 0)})
    add(manager, make_request(0, 11, beam_width=2))
    with pytest.raises(InvalidInputError, match="beam search needs a window as wide as the sequence"):
        manager.add_token(0)
    assert manager.get_token_count(0) == 11
    assert manager.sequences[0].get_num_front_blocks_removed(8) == 0
    manager.remove_sequence(0)
    assert manager.num_free_blocks == 20


def test_beams_cannot_be_rewound_or_hashed():
    manager = make_kv_cache_manager(16)
    request = finish_prompt(add(manager, make_request(0, 9, beam_width=2)))
    with pytest.raises(InvalidInputError, match="only one beam can be rewound"):
        manager.rewind_kv_cache(0, 1)
    with pytest.raises(InvalidInputError, match="hashes need one"):
        manager.commit_and_get_block_hashes_for_request(request, FULL)
    assert manager.get_token_count(0) == 9


def test_beams_get_blocks_of_their_own_for_a_shared_one():
    manager = make_kv_cache_manager(16)
    add(manager, make_request(0, 8, beam_width=2))
    manager.block_manager.get_window_block_manager(FULL).replacer.replace_shared_block(manager.sequences[0], 1)
    (first, second) = block_ids(manager)
    assert first[0] == second[0] == 0
    assert first[1] != second[1]
    assert refs(manager, *{first[1], second[1]}) == [1, 1]
    check_free_counts(manager)
