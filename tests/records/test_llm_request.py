"""One request: tokens per beam, stages, context chunks, pauses."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest

from tests.builders import make_request
from trtkv.errors import InvalidInputError
from trtkv.records.llm_request import LlmRequest, LlmRequestState, add_new_token_to_each
from trtkv.records.token_array import to_token_array

State = LlmRequestState


# -- tokens -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tokens",
    [
        [1, -1, 2**31 - 1, -(2**31)],
        (1, -1, 2**31 - 1, -(2**31)),
        iter([1, -1, 2**31 - 1, -(2**31)]),
        array("i", [1, -1, 2**31 - 1, -(2**31)]),
        array("q", [1, -1, 2**31 - 1, -(2**31)]),
        np.array([1, -1, 2**31 - 1, -(2**31)], dtype=np.int32),
        np.array([1, -1, 2**31 - 1, -(2**31)], dtype=np.int64),
        np.array([1, 0, -1, 0, 2**31 - 1, 0, -(2**31), 0], dtype=np.int32)[::2],
    ],
    ids=["list", "tuple", "iterator", "int array", "long array", "int32", "int64", "strided"],
)
def test_tokens_come_in_many_forms(tokens: Any) -> None:
    assert to_token_array(tokens).tolist() == [1, -1, 2**31 - 1, -(2**31)]


@pytest.mark.parametrize("tokens", [[2**31], [-(2**31) - 1], ["a"], [1.5], "ab", [None], np.array([1.0])])
def test_tokens_that_are_no_32_bit_integers_are_refused(tokens: Any) -> None:
    with pytest.raises(InvalidInputError, match="tokens must be 32-bit integers"):
        LlmRequest(1, tokens)


def test_request_keeps_its_own_copy_of_the_tokens() -> None:
    tokens = array("i", [1, 2, 3])
    request = LlmRequest(1, tokens, beam_width=2)
    tokens[0] = 9
    request.get_tokens(0)[1] = 8
    assert [list(request.get_tokens(beam)) for beam in (0, 1)] == [[1, 8, 3], [1, 2, 3]]


def test_generated_tokens_go_to_their_beam() -> None:
    request = make_request(1, 2, beam_width=2)
    request.add_new_token(7)
    request.add_new_token(8, 1)
    request.add_new_tokens([[9], [10, 11]])
    assert list(request.get_tokens(0)) == [1, 2, 7, 9]
    assert list(request.get_tokens(1)) == [1, 2, 8, 10, 11]
    assert (request.get_num_tokens(), request.get_num_tokens(1), request.prompt_len) == (4, 5, 2)
    request.set_generated_tokens([[5], []])
    assert [list(request.get_tokens(beam)) for beam in (0, 1)] == [[1, 2, 5], [1, 2]]


def test_wrong_tokens_change_no_beam() -> None:
    request = make_request(1, 2, beam_width=2)
    for wrong in ([[9], [2**31]], [[9], [10], [11]]):
        with pytest.raises(InvalidInputError):
            request.add_new_tokens(wrong)
    for wrong in ([[9]], [[9], ["a"]]):
        with pytest.raises(InvalidInputError):
            request.set_generated_tokens(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="cannot go to beam 0 of 2"):
        request.add_new_token(2**31)
    with pytest.raises(InvalidInputError, match="cannot go to beam 2 of 2"):
        request.add_new_token(1, 2)
    assert [list(request.get_tokens(beam)) for beam in (0, 1)] == [[1, 2], [1, 2]]


def test_extra_ids_are_one_per_prompt_token_and_64_bits_wide() -> None:
    assert list(make_request(1, 2, input_token_extra_ids=[0, 2**64 - 1]).input_token_extra_ids) == [0, 2**64 - 1]
    with pytest.raises(InvalidInputError, match="1 extra ids for 2 tokens"):
        make_request(1, 2, input_token_extra_ids=[0])
    for wrong in ([-1, 0], [2**64, 0], ["a", 0]):
        with pytest.raises(InvalidInputError, match="extra ids must be unsigned 64-bit integers"):
            make_request(1, 2, input_token_extra_ids=wrong)


def test_settings_of_a_request_are_kept() -> None:
    options: dict[str, Any] = {
        "cache_salt": "s",
        "lora_task_id": 7,
        "kv_cache_retention_config": object(),
        "multimodal_input": object(),
        "is_dummy_request": True,
        "num_draft_tokens": 2,
        "beam_width": 3,
    }
    request = LlmRequest(9, [1], 5, **options)
    assert {name: getattr(request, name) for name in options} == options
    assert (request.request_id, request.max_new_tokens) == (9, 5)


def test_request_has_at_least_one_beam() -> None:
    with pytest.raises(InvalidInputError, match="beam_width is 0"):
        make_request(1, 2, beam_width=0)


def test_encoder_output_is_as_long_as_the_encoder_tokens_unless_said_otherwise() -> None:
    assert make_request().encoder_output_len == 0
    assert make_request(encoder_tokens=[1, 2]).encoder_output_len == 2
    assert make_request(encoder_tokens=[1, 2], encoder_output_len=9).encoder_output_len == 9


# -- stages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "is_context", "is_generation", "is_finished"),
    [
        (State.ENCODER_INIT, False, False, False),
        (State.DISAGG_GENERATION_INIT, False, False, False),
        (State.CONTEXT_INIT, True, False, False),
        (State.DISAGG_CONTEXT_INIT_AND_TRANS, True, False, True),
        (State.DISAGG_GENERATION_TRANS_COMPLETE, False, True, False),
        (State.GENERATION_IN_PROGRESS, False, True, True),
        (State.GENERATION_TO_COMPLETE, False, True, False),
        (State.GENERATION_COMPLETE, False, False, False),
    ],
)
def test_what_each_stage_counts_as(state: State, is_context: bool, is_generation: bool, is_finished: bool) -> None:
    request = make_request(state=state)
    assert request.is_context_init_state == is_context
    assert request.is_generation_in_progress_state == is_generation
    assert request.is_context_finished == is_finished
    assert request.is_disagg_generation_init_state == (state is State.DISAGG_GENERATION_INIT)


def test_stages_are_compared_by_number() -> None:
    request = make_request(state=State.CONTEXT_INIT)
    assert request.has_reached_state(State.ENCODER_INIT)
    assert request.has_reached_state(State.CONTEXT_INIT)
    assert not request.has_reached_state(State.GENERATION_IN_PROGRESS)


# -- chunks -----------------------------------------------------------------------------------------


def test_prompt_is_one_chunk_at_first() -> None:
    request = make_request(1, 10)
    assert (request.context_current_position, request.context_chunk_size) == (0, 10)
    assert request.is_first_context_chunk
    assert request.is_last_context_chunk


def test_chunks_walk_through_the_prompt() -> None:
    request = make_request(1, 10)
    request.set_context_chunk_size(4)
    assert not request.is_last_context_chunk
    request.move_to_next_context_chunk()
    assert (request.context_current_position, request.context_remaining_length) == (4, 6)
    assert request.context_chunk_size == 0
    assert not request.is_first_context_chunk
    request.set_context_chunk_size(99)
    assert request.context_chunk_size == 6
    assert request.is_last_context_chunk
    request.move_to_next_context_chunk()
    assert request.context_remaining_length == 0


def test_chunks_exist_in_context_stages_only() -> None:
    request = make_request(1, 10, state=State.GENERATION_IN_PROGRESS)
    with pytest.raises(InvalidInputError, match="has no context chunk"):
        _ = request.context_chunk_size
    with pytest.raises(InvalidInputError, match="a chunk can be set in a context stage only"):
        request.set_context_chunk_size(4)
    with pytest.raises(InvalidInputError, match="only a context stage has a next chunk"):
        request.move_to_next_context_chunk()
    with pytest.raises(InvalidInputError, match="context chunk size is -1; give at least 0"):
        make_request().set_context_chunk_size(-1)


@pytest.mark.parametrize(
    ("length", "chunk", "position", "new_chunk"),
    [
        (0, 10, 0, 10),
        (4, 10, 4, 6),  # the chunk reaches the end of the prompt and is cut to what remains
        (5, 4, 5, 3),  # it ends on a block boundary
        (4, 4, 4, 4),
        (3, 4, 3, 1),
        (9, 1, 9, 1),
        (5, 2, 5, None),  # it would end before the cached tokens do
    ],
)
def test_cached_prefix_moves_the_position_and_ends_the_chunk_on_a_block(
    length: int, chunk: int, position: int, new_chunk: int | None
) -> None:
    request = make_request(1, 10)
    request.set_context_chunk_size(chunk)
    if new_chunk is None:
        with pytest.raises(InvalidInputError, match="would end before its 5 cached tokens"):
            request.set_prepopulated_prompt_len(length, 4)
        assert (request.prepopulated_prompt_len, request.context_current_position) == (0, 0)
        return
    assert request.check_prepopulated_prompt_len(length, 4) == (chunk if chunk == 10 and length else new_chunk)
    request.set_prepopulated_prompt_len(length, 4)
    assert (request.prepopulated_prompt_len, request.context_current_position) == (length, position)
    assert request.context_chunk_size == new_chunk
    assert request.is_first_context_chunk


def test_cached_prefix_must_leave_a_token() -> None:
    request = make_request(1, 10)
    for method in (request.check_prepopulated_prompt_len, request.set_prepopulated_prompt_len):
        with pytest.raises(InvalidInputError, match="leaves nothing of its 10 prompt tokens to compute"):
            method(10, 4)
    assert request.prepopulated_prompt_len == 0


# -- drafts, pauses, counters -----------------------------------------------------------------------


def test_drafts_are_dropped_from_the_end_and_not_below_zero() -> None:
    request = make_request(num_draft_tokens=3)
    request.discard_draft_tokens(2)
    assert (request.num_draft_tokens, request.has_draft_tokens) == (1, True)
    for wrong in (2, -1):
        with pytest.raises(InvalidInputError, match=f"{wrong} drafts to discard, request 0 has 1"):
            request.discard_draft_tokens(wrong)
    request.set_num_draft_tokens(0)
    assert not request.has_draft_tokens


def test_paused_request_waits_with_what_it_generated_as_its_prompt() -> None:
    request = make_request(1, 6, max_new_tokens=10)
    request.set_prepopulated_prompt_len(4, 4)
    request.move_to_next_context_chunk()
    request.set_state(State.GENERATION_IN_PROGRESS)
    request.add_new_tokens([[7, 8, 9]])
    request.pause(100)
    assert (request.prompt_len, request.max_new_tokens, request.state) == (9, 7, State.CONTEXT_INIT)
    assert (request.context_current_position, request.prepopulated_prompt_len, request.context_chunk_size) == (0, 0, 9)
    assert list(request.get_tokens()) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_paused_request_is_cut_to_the_longest_input() -> None:
    request = make_request(1, 6, max_new_tokens=10)
    request.add_new_tokens([[7, 8, 9]])
    request.pause(8)
    assert (request.prompt_len, request.max_new_tokens, list(request.get_tokens())) == (8, 8, [1, 2, 3, 4, 5, 6, 7, 8])


def test_pause_cuts_extra_ids_with_the_tokens() -> None:
    request = make_request(1, 6, input_token_extra_ids=range(1, 7))
    request.pause(100)
    assert list(request.input_token_extra_ids or ()) == [1, 2, 3, 4, 5, 6]
    request.pause(4)
    assert list(request.input_token_extra_ids or ()) == [1, 2, 3, 4]


def test_beams_lose_what_they_generated_in_a_pause() -> None:
    request = make_request(1, 6, max_new_tokens=10, beam_width=2)
    request.add_new_tokens([[7], [8]])
    request.pause(100)
    assert (request.prompt_len, request.max_new_tokens) == (6, 10)
    assert all(request.get_num_tokens(beam) == 6 for beam in (0, 1))


def test_request_with_an_encoder_starts_there_again() -> None:
    request = make_request(1, 6, encoder_tokens=[1])
    request.pause(100)
    assert request.state is State.ENCODER_INIT


def test_block_counters_add_up_over_admissions() -> None:
    request = make_request()
    request.update_block_counters(4, 3, 2, 1)
    request.update_block_counters(40, 30, 20, 10)
    assert (request.alloc_total_blocks_per_request, request.alloc_new_blocks_per_request) == (44, 33)
    assert (request.reused_blocks_per_request, request.missed_blocks_per_request) == (22, 11)


def test_estimate_is_what_was_written_last() -> None:
    request = make_request()
    request.set_estimated_reusable_tokens(8)
    assert request.estimated_reusable_tokens == 8


def test_a_token_for_each_request_of_a_batch() -> None:
    requests = [make_request(1, 3), make_request(2, 2)]
    add_new_token_to_each(requests, [7, 8])
    assert [list(request.get_tokens())[request.prompt_len :] for request in requests] == [[7], [8]]
    with pytest.raises(InvalidInputError, match="token 'x' cannot go to beam 0"):
        add_new_token_to_each(requests, [9, "x"])  # type: ignore[list-item]
    assert [request.get_num_tokens() for request in requests] == [5, 3]
    with pytest.raises(InvalidInputError, match="1 tokens for 2 requests"):
        add_new_token_to_each(requests, [1])
    assert [request.get_num_tokens() for request in requests] == [5, 3]
