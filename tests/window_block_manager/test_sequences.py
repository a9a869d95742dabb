"""Blocks of running sequences: growing, sliding, rewinding, replacing, and the rows of the block table."""

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
from tests.fake_memory import FakeMemory
from tests.snapshot import find_changes, take_snapshot
from trtkv.blocks.generation_request import SequenceWindow
from trtkv.blocks.kv_cache_block import KVCacheBlock, PlaceholderBlock
from trtkv.common import PLACEHOLDER_BLOCK_ID
from trtkv.errors import InvalidInputError, OutOfBlocksError, UnknownIdError
from trtkv.inspection.invariants import check_invariants
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.kv_cache_index import make_index
from trtkv.window_block_manager.sequences import (
    add_block_to_all_beams,
    add_block_to_beam,
    table_slot,
    write_slot_at,
    write_slots,
)


def record_of(manager: KVCacheManager, request_id: int = 1, window: int | None = None) -> SequenceWindow:
    return manager.get_sequence(request_id).get_window(window or manager.max_attention_window)


def held(manager: KVCacheManager, request_id: int = 1, window: int | None = None) -> list[int]:
    return [block.block_id for block in record_of(manager, request_id, window).held]


# -- lists ------------------------------------------------------------------------------------------


def test_each_beam_chains_its_own_entries() -> None:
    window = SequenceWindow(2)
    blocks = [KVCacheBlock(index, index) for index in range(4)]
    add_block_to_all_beams(blocks[0], window, 2)
    add_block_to_beam(blocks[1], window, 0, 2)
    add_block_to_beam(blocks[2], window, 1, 2)
    assert window.block_ids == [[0, 1], [0, 2]]
    assert [block.block_id for block in window.held] == [0, 0, 1, 2]
    assert [block.ref_count for block in blocks] == [2, 1, 1, 0]
    assert blocks[1].prev_block_in_seq is blocks[2].prev_block_in_seq is blocks[0]
    assert blocks[0].prev_block_in_seq is None


def test_rows_show_slots_without_their_level() -> None:
    window = SequenceWindow(1)
    for block in (KVCacheBlock(0, 5), KVCacheBlock(1, make_index(3, level=1)), PlaceholderBlock(-2)):
        add_block_to_all_beams(block, window, 1)
    write_slots(window, 1)
    assert window.slots[0].tolist() == [5, 3, -1]
    window.held[1].swap_memory_pool_block_offset(KVCacheBlock(7, 9))
    write_slot_at(window, 1, 1)
    assert window.slots[0].tolist() == [5, 9, -1]
    add_block_to_all_beams(KVCacheBlock(8, 8), window, 1)
    write_slot_at(window, 1, 3)
    assert window.slots[0].tolist() == [5, 9, -1, 8]
    assert table_slot(PlaceholderBlock(-2)) == -1


# -- growing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt_len", [3, 4, 5, 7, 8])
def test_block_is_taken_for_the_first_token_behind_a_full_one(prompt_len: int) -> None:
    manager = make_kv_cache_manager()
    add(manager, make_request(1, prompt_len))
    for num_tokens in range(prompt_len + 1, 15):
        manager.add_token(1)
        assert len(block_ids(manager, 1)) == -(-num_tokens // 4)
    check_invariants(manager)


def test_beams_take_a_block_each() -> None:
    manager = make_kv_cache_manager()
    add(manager, make_request(1, 8, beam_width=3))
    manager.add_token(1)
    assert manager.get_cache_block_ids(1, 64) == [[0, 1, 2], [0, 1, 3], [0, 1, 4]]
    assert num_free(manager) == 11


def test_beams_without_room_for_all_take_nothing() -> None:
    manager = make_kv_cache_manager(4)
    add(manager, make_request(1, 8, beam_width=3))
    with pytest.raises(OutOfBlocksError, match="has 2 free blocks, too few for the next token of request 1"):
        manager.add_token(1)
    assert (manager.get_token_count(1), num_free(manager)) == (8, 2)
    check_invariants(manager)


def test_blocks_of_one_token_grow_with_every_token() -> None:
    manager = make_kv_cache_manager(tokens_per_block=1)
    add(manager, make_request(1, 3))
    for num_tokens in (4, 5, 6):
        manager.add_token(1)
        assert len(block_ids(manager, 1)) == num_tokens


# -- sliding ----------------------------------------------------------------------------------------


def test_front_block_leaves_when_a_whole_one_is_outside() -> None:
    manager = make_kv_cache_manager(window=8)
    add(manager, make_request(1, 8))
    for num_tokens in range(9, 22):
        manager.add_token(1)
        removed = (num_tokens - 8) // 4
        assert manager.get_sequence(1).get_num_front_blocks_removed(8) == removed
        assert held(manager)[:removed] == [PLACEHOLDER_BLOCK_ID] * removed
        check_invariants(manager)


@pytest.mark.parametrize("compatibility", [True, False])
def test_ids_of_blocks_that_left_stay_visible_and_slots_do_not(compatibility: bool) -> None:
    manager = make_kv_cache_manager(window=8, compatibility=compatibility)
    request = finish_prompt(add(manager, make_request(1, 8)))
    before = block_ids(manager, 1)
    decode(manager, request, [1] * 5)
    assert block_ids(manager, 1)[:2] == before
    assert record_of(manager).slots[0].tolist()[:2] == (before if compatibility else [-1, before[1]])


def test_each_block_that_left_is_free_once_and_all_are_at_the_end() -> None:
    manager = make_kv_cache_manager(8, window=8)
    request = finish_prompt(add(manager, make_request(1, 4)))
    for step in range(40):
        decode(manager, request, [step])
        check_invariants(manager)
    manager.remove_sequence(1, request)
    assert num_free(manager) == 8


def test_block_that_left_but_is_held_by_another_stays_out_of_the_queue() -> None:
    manager = make_kv_cache_manager(window=8)
    first = prefill(manager, make_request(1, 9))
    second = finish_prompt(add(manager, make_request(2, 9)))
    assert second.prepopulated_prompt_len == 8
    decode(manager, first, [1] * 4)
    shared = block_ids(manager, 2)[0]
    assert manager.block_manager.get_block_by_id(shared, 8).ref_count == 1
    decode(manager, second, [1] * 4)
    assert manager.block_manager.get_block_by_id(shared, 8).ref_count == 0
    check_invariants(manager)


def test_beams_cannot_leave_a_window() -> None:
    manager = make_kv_cache_manager(window=8)
    add(manager, make_request(1, 8, beam_width=2))
    for _ in range(3):
        manager.add_token(1)
    with pytest.raises(InvalidInputError, match="has 2 beams and leaves the sliding window of 8 tokens"):
        manager.add_token(1)
    assert manager.get_token_count(1) == 11
    check_invariants(manager)


def test_block_freed_by_sliding_serves_the_same_token() -> None:
    manager = make_kv_cache_manager(3, window=4)
    add(manager, make_request(1, 12))
    assert num_free(manager) == 0
    manager.add_token(1)  # two blocks leave the window, one of them comes back
    assert held(manager).count(PLACEHOLDER_BLOCK_ID) == 2
    check_invariants(manager)


def test_stand_in_in_front_frees_no_block() -> None:
    """A position that was never held by this sequence gives nothing back when the window passes it."""
    manager = make_kv_cache_manager(8, window=4)
    serve(manager, make_request(1, 17))
    first = next(b for b in manager.block_manager.window_block_managers[4].block_objects() if b.lookup_node is not None)
    manager.block_manager.window_block_managers[4].claimer.remove_from_tree(first)
    request = add(manager, make_request(2, 16))
    assert held(manager, 2)[0] == PLACEHOLDER_BLOCK_ID
    assert request.prepopulated_prompt_len == 15
    while num_free(manager):
        add(manager, make_request(100 + num_free(manager), [7] * 4))
    # The next token passes three positions, one of which is a stand-in, and needs a block.
    record = record_of(manager, 2)
    others = [b for b in record.held if b.block_id != PLACEHOLDER_BLOCK_ID]
    for block in others:
        block.inc_ref_count()  # as if another sequence held them, too
    with pytest.raises(OutOfBlocksError, match="has 0 free blocks"):
        manager.add_token(2)
    assert manager.get_token_count(2) == 16
    for block in others:
        block.dec_ref_count()
    check_invariants(manager)


def test_window_slides_later_when_drafts_are_to_be_reckoned_with() -> None:
    manager = make_kv_cache_manager(window=8)
    manager.set_spec_decoding_budget(0, 3)
    add(manager, make_request(1, 8))
    removed = []
    for _ in range(9, 20):
        manager.add_token(1)
        removed.append(manager.get_sequence(1).get_num_front_blocks_removed(8))
    assert removed == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2]
    manager.rewind_kv_cache(1, 3)
    check_invariants(manager)


# -- rewinding --------------------------------------------------------------------------------------


def test_rewind_gives_back_the_blocks_it_empties_first_in_line() -> None:
    manager = make_kv_cache_manager()
    request = finish_prompt(add(manager, make_request(1, 6)))
    decode(manager, request, [1] * 7)
    assert block_ids(manager, 1) == [0, 1, 2, 3]
    manager.rewind_kv_cache(1, 5)
    assert (manager.get_token_count(1), block_ids(manager, 1)) == (8, [0, 1])
    decode(manager, request, [1])
    assert block_ids(manager, 1) == [0, 1, 2]
    check_invariants(manager)


@pytest.mark.parametrize("num_tokens", [-1, 10])
def test_rewind_beyond_the_start_or_forward_is_refused(num_tokens: int) -> None:
    manager = make_kv_cache_manager()
    add(manager, make_request(1, 9))
    with pytest.raises(InvalidInputError, match=f"has 9 tokens and cannot be rewound by {num_tokens}"):
        manager.rewind_kv_cache(1, num_tokens)
    assert manager.get_token_count(1) == 9


def test_rewind_to_nothing_gives_back_everything() -> None:
    manager = make_kv_cache_manager()
    add(manager, make_request(1, 9))
    manager.rewind_kv_cache(1, 9)
    assert (manager.get_token_count(1), block_ids(manager, 1), num_free(manager)) == (0, [], 16)
    check_invariants(manager)


def test_rewind_of_an_unknown_sequence_and_by_nothing_is_nothing() -> None:
    manager = make_kv_cache_manager()
    manager.rewind_kv_cache(5, 3)
    add(manager, make_request(1, 9))
    manager.rewind_kv_cache(1, 0)
    assert manager.get_token_count(1) == 9


def test_beams_cannot_be_rewound() -> None:
    manager = make_kv_cache_manager()
    add(manager, make_request(1, 9, beam_width=2))
    with pytest.raises(InvalidInputError, match="has 2 beams; only one beam can be rewound"):
        manager.rewind_kv_cache(1, 1)


def test_block_cut_into_leaves_the_tree_unless_its_key_is_still_true() -> None:
    manager = make_kv_cache_manager()
    request = finish_prompt(add(manager, make_request(1, 6)))
    decode(manager, request, [7])
    manager.store_blocks_for_reuse(1, request)  # 1 2 3 4 / 5 6
    manager.rewind_kv_cache(1, 1)  # to six tokens: the key is still true
    assert manager.probe_prefix_match_length(make_request(2, [1, 2, 3, 4, 5, 6, 9])) == 6
    manager.rewind_kv_cache(1, 1)
    assert manager.probe_prefix_match_length(make_request(2, [1, 2, 3, 4, 5, 6, 9])) == 4
    check_invariants(manager)


def test_rewind_into_a_block_that_others_hold_is_refused() -> None:
    manager = make_kv_cache_manager()
    prefill(manager, make_request(1, 9))
    finish_prompt(add(manager, make_request(2, 9)))
    with pytest.raises(InvalidInputError, match="reaches into block 1, which 2 holders share"):
        manager.rewind_kv_cache(2, 2)
    manager.rewind_kv_cache(2, 1)  # to a boundary
    assert manager.get_token_count(2) == 8
    check_invariants(manager)


def test_rewind_to_blocks_that_left_the_window_is_refused() -> None:
    manager = make_kv_cache_manager(window=4)
    request = finish_prompt(add(manager, make_request(1, 4)))
    decode(manager, request, [1] * 12)
    with pytest.raises(InvalidInputError, match="reaches blocks that left the window of 4 tokens"):
        manager.rewind_kv_cache(1, 8)
    assert manager.get_token_count(1) == 16
    check_invariants(manager)


def test_rewind_ends_blocks_at_block_boundaries_whatever_the_window() -> None:
    manager = make_kv_cache_manager(window=6)
    add(manager, make_request(1, 10))
    manager.rewind_kv_cache(1, 2)
    assert (manager.get_token_count(1), len(block_ids(manager, 1))) == (8, 2)
    check_invariants(manager)


# -- replacing --------------------------------------------------------------------------------------


def replace_shared_block(manager: KVCacheManager, request_id: int, position: int) -> None:
    window = manager.block_manager.get_window_block_manager(manager.max_attention_window)
    window.replacer.replace_shared_block(manager.get_sequence(request_id), position)


def test_shared_block_is_replaced_by_one_per_beam() -> None:
    manager = make_kv_cache_manager()
    prefill(manager, make_request(1, 9))
    add(manager, make_request(2, 9))
    sequence = manager.get_sequence(2)
    old = manager.block_manager.get_block_by_id(1, 64)
    replace_shared_block(manager, 2, 1)
    write_slot_at(sequence.get_window(64), sequence.beam_width, 1)
    new = record_of(manager, 2).held[1]
    assert new is not old
    assert (new.ref_count, old.ref_count) == (1, 1)
    assert (new.block_key, new.is_full, new.hash) == (old.block_key, True, old.hash)
    assert new.prev_block_in_seq is record_of(manager, 2).held[0]
    check_invariants(manager)


def test_block_of_ones_own_is_not_replaced() -> None:
    manager = make_kv_cache_manager()
    add(manager, make_request(1, 9))
    replace_shared_block(manager, 1, 1)
    assert block_ids(manager, 1) == [0, 1, 2]


def test_replacing_needs_room_for_every_beam() -> None:
    manager = make_kv_cache_manager(4)
    add(manager, make_request(1, 12, beam_width=3))
    with pytest.raises(OutOfBlocksError, match="3 blocks are needed to replace block 1"):
        replace_shared_block(manager, 1, 1)
    check_invariants(manager)


def test_blocks_that_replacing_frees_count_as_room() -> None:
    manager = make_kv_cache_manager(3)
    add(manager, make_request(1, 8, beam_width=2))
    sequence = manager.get_sequence(1)
    replace_shared_block(manager, 1, 1)
    write_slot_at(sequence.get_window(64), sequence.beam_width, 1)
    assert [len(set(ids)) for ids in zip(*manager.get_cache_block_ids(1, 64), strict=True)] == [1, 2]
    check_invariants(manager)


def test_a_failing_transfer_leaves_the_shared_block_in_place() -> None:
    memory = FakeMemory()
    manager = make_kv_cache_manager(4, 4, copy_engine=memory)
    serve(manager, make_request(0, [9] * 8))  # two cached blocks, to be offloaded
    add(manager, make_request(1, 8, beam_width=2))
    before = take_snapshot(manager)

    def fail(copy: object, pools: object) -> int:
        raise OSError("no space left")

    memory.copy_block = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no space left"):
        replace_shared_block(manager, 1, 0)
    assert not find_changes(before, take_snapshot(manager))
    check_invariants(manager)


def test_a_long_prompt_lets_go_of_more_than_its_next_block_takes() -> None:
    manager = make_kv_cache_manager(window=8)
    finish_prompt(add(manager, make_request(1, 24)))
    sequences = manager.block_manager.window_block_managers[8].sequences
    sequence = manager.get_sequence(1)
    assert [sequences.count_needed(sequence, length) for length in (24, 25, 36, 60)] == [0, 0, 0, 3]


@pytest.mark.parametrize("position", [-1, 0, 5])
def test_only_held_positions_can_be_replaced(position: int) -> None:
    manager = make_kv_cache_manager(window=8)
    request = finish_prompt(add(manager, make_request(1, 9)))
    decode(manager, request, [1] * 4)
    with pytest.raises(UnknownIdError, match="holds positions 1 to 3"):
        replace_shared_block(manager, 1, position)


def test_blocks_of_an_unknown_sequence_are_an_error() -> None:
    manager = make_kv_cache_manager()
    with pytest.raises(UnknownIdError, match="request 9 holds no blocks"):
        manager.block_manager.window_block_managers[64].sequences.get_window(9)
