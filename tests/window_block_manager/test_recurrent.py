"""Recurrent states: live blocks, snapshots, placeholders, and the copies between them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import add, decode, finish_prompt, make_kv_cache_manager, make_linear_attention, make_request
from trtkv.common import RECURRENT_STATES
from trtkv.errors import ConfigurationError, InvalidInputError, OutOfBlocksError
from trtkv.inspection.invariants import check_invariants
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest
from trtkv.transfers.copy_engine import RecordingCopyEngine


def make_manager(
    num_states: int = 12, engine: RecordingCopyEngine | None = None, compatibility: bool = False, **linear: Any
) -> KVCacheManager:
    return make_kv_cache_manager(
        windows={64: (24, 0), RECURRENT_STATES: (num_states, 0)},
        linear_attention_metadata=make_linear_attention(**linear),
        enable_partial_reuse=False,
        copy_engine=engine,
        compatibility=compatibility,
    )


def kinds(manager: KVCacheManager, request_id: int = 1) -> str:
    """S for a block with a state, . for a placeholder, position by position."""
    window = manager.get_sequence(request_id).get_window(RECURRENT_STATES)
    return "".join("." if block.is_placeholder else "S" for block in window.held)


def ids(manager: KVCacheManager, request_id: int = 1) -> list[int]:
    return manager.get_cache_block_ids(request_id, RECURRENT_STATES)[0]


def prefill_in_steps(manager: KVCacheManager, request: LlmRequest) -> LlmRequest:
    """Admit a request, compute its prompt block by block, the state carried along, and store it with a first token."""
    add(manager, request)
    while request.context_remaining_length:
        manager.copy_linear_attention_block(request)
        request.set_context_chunk_size(4 - request.context_current_position % 4)
        request.move_to_next_context_chunk()
    finish_prompt(request)
    for beam in range(request.beam_width):
        request.add_new_token(50, beam)
    manager.store_context_blocks(request)
    return request


@pytest.mark.parametrize(
    ("interval", "last", "prompt_len", "expected"),
    [
        (8, False, 21, ".S.S.S"),
        (8, True, 21, ".S.SSS"),
        (0, False, 9, "..S"),
        (0, True, 9, ".SS"),
        (4, False, 9, "SSS"),
    ],
)
def test_prompt_has_states_where_snapshots_are_wanted_and_at_its_end(
    interval: int, last: bool, prompt_len: int, expected: str
) -> None:
    manager = make_manager(states_snapshot_interval=interval, save_last_snapshot=last)
    add(manager, make_request(1, prompt_len))
    assert kinds(manager) == expected
    assert all((block_id < 0) == (kind == ".") for block_id, kind in zip(ids(manager), expected, strict=True))
    check_invariants(manager)


def test_without_reuse_only_the_live_state_has_memory() -> None:
    manager = make_kv_cache_manager(
        windows={64: (24, 0), RECURRENT_STATES: (4, 0)},
        linear_attention_metadata=make_linear_attention(save_last_snapshot=True),
        enable_partial_reuse=False,
        enable_block_reuse=False,
    )
    add(manager, make_request(1, 21))
    assert kinds(manager) == ".....S"
    check_invariants(manager)


def test_placeholder_goes_in_before_the_live_state_at_a_block_boundary() -> None:
    manager = make_manager()
    request = finish_prompt(add(manager, make_request(1, 6)))
    live = ids(manager)[-1]
    decode(manager, request, [1] * 7)
    assert kinds(manager) == "...S"
    assert ids(manager)[-1] == live
    check_invariants(manager)


def test_cached_snapshot_is_never_written_again() -> None:
    engine = RecordingCopyEngine()
    manager = make_manager(engine=engine)
    request = prefill_in_steps(manager, make_request(1, 8))
    snapshot = ids(manager)[-1]
    engine.copies.clear()
    decode(manager, request, [1])
    assert kinds(manager) == ".SS"
    assert [(copy.src_block_id, copy.dst_block_id) for copy in engine.copies] == [(snapshot, ids(manager)[-1])]
    check_invariants(manager, {1: request})


def test_recorded_live_state_stays_in_the_tree_while_it_moves_on() -> None:
    manager = make_manager(compatibility=True, states_snapshot_interval=4)
    request = prefill_in_steps(manager, make_request(1, 4))
    state = ids(manager)[0]
    decode(manager, request, [1])
    assert ids(manager)[-1] == state
    assert not manager.block_manager.get_block_by_id(state, RECURRENT_STATES).is_detached


def test_snapshot_is_found_by_the_next_request_with_this_prefix() -> None:
    manager = make_manager()
    first = prefill_in_steps(manager, make_request(1, 17))
    snapshot = ids(manager)[3]
    manager.remove_sequence(1, first)
    second = add(manager, make_request(2, 19))
    assert second.prepopulated_prompt_len == 16
    assert ids(manager, 2)[3] == snapshot
    check_invariants(manager, {2: second})


def test_both_windows_must_have_the_prefix() -> None:
    manager = make_manager()
    first = prefill_in_steps(manager, make_request(1, 17))
    manager.remove_sequence(1, first)
    attention = manager.block_manager.window_block_managers[64]
    for block in attention.matcher.list_blocks()[2:]:
        attention.claimer.remove_from_tree(block)
    second = add(manager, make_request(2, 19))
    assert second.prepopulated_prompt_len == 8
    check_invariants(manager, {2: second})


def test_state_that_no_step_left_in_a_block_is_not_stored() -> None:
    """A prompt computed in one go passes its snapshot positions without leaving a state there."""
    manager = make_manager()
    request = add(manager, make_request(1, 17))
    manager.copy_linear_attention_block(request)
    manager.store_context_blocks(finish_prompt(request))
    manager.remove_sequence(1, request)
    assert manager.probe_prefix_match_length(make_request(2, 19)) == 0


def test_state_is_carried_to_the_next_block_with_memory() -> None:
    engine = RecordingCopyEngine()
    manager = make_manager(engine=engine)
    request = make_request(1, 17)
    request.set_context_chunk_size(8)
    add(manager, request)
    assert not manager.copy_linear_attention_block(request)
    request.move_to_next_context_chunk()
    assert manager.copy_linear_attention_block(request)
    (copy,) = engine.copies
    assert (copy.src_block_id, copy.dst_block_id, copy.num_tokens) == (ids(manager)[1], ids(manager)[3], 4)


def test_position_inside_a_block_copies_nothing() -> None:
    engine = RecordingCopyEngine()
    manager = make_manager(engine=engine)
    request = add(manager, make_request(1, 17))
    request.set_context_current_position(6)
    assert not manager.copy_linear_attention_block(request)
    assert engine.copies == []


@pytest.mark.parametrize("prompt_len", [6, 8])
def test_every_beam_gets_the_state_of_the_prompt(prompt_len: int) -> None:
    engine = RecordingCopyEngine()
    manager = make_manager(engine=engine)
    request = make_request(1, prompt_len, beam_width=3)
    prefill_in_steps(manager, request)
    prompt_states = {manager.get_cache_block_ids(1, RECURRENT_STATES)[0][-1]}
    engine.copies.clear()
    manager.add_token(1)
    manager.copy_linear_attention_block(request)
    live = [beam_ids[-1] for beam_ids in manager.get_cache_block_ids(1, RECURRENT_STATES)]
    assert len(set(live)) == 3
    reached = prompt_states | {copy.dst_block_id for copy in engine.copies if copy.src_block_id in prompt_states}
    assert set(live) <= reached
    assert all(copy.src_block_id != copy.dst_block_id for copy in engine.copies)
    check_invariants(manager)


def test_unknown_request_has_no_state_to_carry() -> None:
    manager = make_manager()
    with pytest.raises(InvalidInputError, match="request 9 has no sequence"):
        manager.copy_linear_attention_block(make_request(9))
    assert not manager.copy_linear_attention_block_batch([])


def test_no_placeholder_left_is_no_room_and_changes_nothing() -> None:
    manager = make_manager(num_placeholder_blocks=1)
    request = finish_prompt(add(manager, make_request(1, 6)))
    decode(manager, request, [1] * 2)
    with pytest.raises(OutOfBlocksError, match="0 placeholders, too few for the next token of request 1"):
        manager.add_token(1)
    assert (manager.get_token_count(1), kinds(manager)) == (8, ".S")
    check_invariants(manager)


def test_no_state_left_behind_a_snapshot_is_no_room_and_changes_nothing() -> None:
    manager = make_manager(1)
    prefill_in_steps(manager, make_request(1, 4))
    with pytest.raises(OutOfBlocksError, match="has 0 free blocks"):
        manager.add_token(1)
    assert manager.get_token_count(1) == 4
    check_invariants(manager)


def test_prompt_without_enough_placeholders_is_refused() -> None:
    manager = make_manager(num_placeholder_blocks=1)
    with pytest.raises(OutOfBlocksError, match="too few free placeholders"):
        add(manager, make_request(1, 21))
    assert manager.sequences == {}
    check_invariants(manager)


def test_rewind_drops_the_position_before_the_live_state() -> None:
    manager = make_manager()
    request = finish_prompt(add(manager, make_request(1, 6)))
    live = ids(manager)[-1]
    decode(manager, request, [1] * 7)
    manager.rewind_kv_cache(1, 5)
    assert (manager.get_token_count(1), kinds(manager), ids(manager)[-1]) == (8, ".S", live)
    check_invariants(manager)
    with pytest.raises(InvalidInputError, match="leaves no recurrent state"):
        manager.rewind_kv_cache(1, 8)
    check_invariants(manager)


def test_budget_is_what_the_next_token_takes() -> None:
    for prompt_len in range(5, 14):
        for store in (True, False):
            manager = make_manager()
            request = add(manager, make_request(1, prompt_len))
            finish_prompt(request)
            if store:
                manager.store_context_blocks(request)
            request.add_new_token(7)
            needed = manager.get_needed_blocks_one_step(request, False, RECURRENT_STATES)
            free = manager.num_free_blocks_per_window_size[RECURRENT_STATES]
            manager.add_token(1)
            taken = free - manager.num_free_blocks_per_window_size[RECURRENT_STATES]
            assert taken <= needed <= taken + 1, f"prompt of {prompt_len}, stored: {store}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enable_partial_reuse": True}, "recurrent states cannot be reused in part"),
        ({"linear_attention_metadata": make_linear_attention(states_snapshot_interval=6)}, "is not a multiple of"),
        ({"linear_attention_metadata": make_linear_attention(states_snapshot_interval=-4)}, "is negative"),
        ({"linear_attention_metadata": make_linear_attention(num_placeholder_blocks=-1)}, "is negative"),
        ({"linear_attention_metadata": None}, "a recurrent window needs linear_attention_metadata"),
        ({"max_sequence_length": 32}, "need a full-attention window of max_sequence_length 32"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {
        "linear_attention_metadata": make_linear_attention(),
        "enable_partial_reuse": False,
        **options,
    }
    with pytest.raises(ConfigurationError, match=message):
        make_kv_cache_manager(windows={64: (24, 0), RECURRENT_STATES: (4, 0)}, **settings)


def test_placeholders_that_are_matched_are_not_free_for_the_rest_of_the_prompt() -> None:
    manager = make_manager(num_placeholder_blocks=2)
    first = prefill_in_steps(manager, make_request(1, 17))
    manager.remove_sequence(1, first)
    assert manager.probe_prefix_match_length(make_request(2, 25)) == 16
    with pytest.raises(OutOfBlocksError, match="too few free placeholders"):
        add(manager, make_request(2, 25))
    assert manager.sequences == {}
    check_invariants(manager)
    add(manager, make_request(3, 19))
    check_invariants(manager)
