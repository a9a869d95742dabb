"""Tokens of one step: who is computed, in which chunks, with how many drafts, in which order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scheduler_fakes import generating, ids, make_request
from trtkv.errors import CapacityError, ConfigurationError, InvalidInputError
from trtkv.records.llm_request import LlmRequest, LlmRequestState
from trtkv.scheduler.context_chunking import count_compute_tokens
from trtkv.scheduler.micro_batch_scheduler import MicroBatchScheduler
from trtkv.scheduler.scheduler_config import ChunkingPolicy, ContextChunkingConfig, ReuseDiscount

EQUAL = ChunkingPolicy.EQUAL_PROGRESS
FIRST_COME = ChunkingPolicy.FIRST_COME_FIRST_SERVED
FORCED = ChunkingPolicy.FORCE_CHUNK


def run(
    requests: list[LlmRequest],
    max_num_tokens: int | None,
    policy: ChunkingPolicy | None = None,
    *,
    unit: int = 4,
    max_batch_size: int = 8,
    inflight: frozenset[int] = frozenset(),
    **options: Any,
) -> tuple[list[int], list[int]]:
    config = None if policy is None else ContextChunkingConfig(policy, unit)
    scheduler = MicroBatchScheduler(config, **options)
    result = scheduler.schedule(requests, inflight, max_batch_size, max_num_tokens)
    return ids(result.context_requests), ids(result.generation_requests)


def chunks(requests: list[LlmRequest]) -> list[int]:
    return [request.context_chunk_size for request in requests]


# -- selection ------------------------------------------------------------------------------------------


def test_whole_prompts_are_taken_in_order_until_the_tokens_are_used_up() -> None:
    requests = [generating(1), make_request(2, 8), make_request(3, 8), make_request(4, 1)]
    assert run(requests, 16) == ([2], [1])
    assert run(requests, 17) == ([2, 3], [1])
    assert run(requests, None) == ([2, 3, 4], [1])


def test_cached_tokens_are_free_but_a_context_costs_at_least_one() -> None:
    requests = [make_request(1, 8, reusable=8), make_request(2, 8, reusable=4)]
    assert run(requests, 5) == ([1, 2], [])
    assert run(requests, 4) == ([1], [])


def test_only_the_first_chunk_has_cached_tokens() -> None:
    assert run([make_request(1, 8, position=4, reusable=8)], 3) == ([], [])
    assert run([make_request(1, 8, position=4, reusable=8)], 4) == ([1], [])


def test_recorded_cost_of_a_whole_context_ignores_its_position() -> None:
    assert run([make_request(1, 8, position=4)], 7, compatibility=True) == ([], [])


def test_requests_under_way_and_outside_the_state_limits_take_no_slot() -> None:
    requests = [
        make_request(1),
        generating(2),
        make_request(3, state=LlmRequestState.GENERATION_TO_COMPLETE),
        make_request(4),
        make_request(5),
    ]
    assert run(requests, None, max_batch_size=2, inflight=frozenset({1, 99})) == ([4], [2])


def test_generation_keeps_to_the_first_beam_width() -> None:
    requests = [generating(1, beam_width=2), generating(2, beam_width=1), generating(3, beam_width=2)]
    assert run(requests, 4, max_batch_size=2) == ([], [1, 3])


def test_encoder_requests_are_charged_by_their_output() -> None:
    request = make_request(1, state=LlmRequestState.ENCODER_INIT, encoder_tokens=range(6))
    options = {"no_schedule_until_state": LlmRequestState.ENCODER_INIT}
    assert run([request], 5, **options) == ([], [])
    assert run([request], 6, **options) == ([1], [])


def test_drafts_of_generating_requests_are_charged() -> None:
    requests = [generating(1, num_draft_tokens=3), generating(2)]
    assert run(requests, 4) == ([], [1])


def test_adapters_are_grouped_with_those_without_first() -> None:
    tasks = {1: 5, 2: None, 3: 2, 4: 5}
    contexts = [make_request(i, 2, lora_task_id=task) for i, task in tasks.items()]
    assert run(contexts, None) == ([2, 3, 1, 4], [])


def test_a_context_that_is_too_long_for_one_piece_is_refused_before_any_change() -> None:
    requests = [make_request(1, 8), make_request(2, 12)]
    requests[0].set_context_chunk_size(3)
    with pytest.raises(InvalidInputError, match=r"request 2 has 12 tokens .* max_context_length is 9"):
        run(requests, None, max_context_length=9)
    assert chunks(requests) == [3, 12]


def test_a_batch_size_of_none_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="max_batch_size_runtime is 0"):
        run([], None, max_batch_size=0)


# -- chunks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compatibility", [False, True])
def test_contexts_stay_whole_when_they_fit(compatibility: bool) -> None:
    requests = [make_request(1, 9), make_request(2, 7)]
    assert run(requests, 16, EQUAL, compatibility=compatibility) == ([1, 2], [])
    assert chunks(requests) == [9, 7]


@pytest.mark.parametrize("compatibility", [False, True])
def test_equal_progress_hands_out_units_in_turn(compatibility: bool) -> None:
    requests = [make_request(1, 20), make_request(2, 6), make_request(3, 20)]
    assert run(requests, 18, EQUAL, compatibility=compatibility)[0][-1] == 2
    # Two rounds: 4 + 4 + 4, then 4 + 2; the third request's second unit would be 22 tokens.
    assert chunks(requests) == [8, 6, 4]


@pytest.mark.parametrize("compatibility", [False, True])
def test_first_come_first_served_rounds_a_partial_chunk_down(compatibility: bool) -> None:
    requests = [make_request(1, 7), make_request(2, 20), make_request(3, 3)]
    assert run(requests, 18, FIRST_COME, compatibility=compatibility)[0][0] == 2
    # 11 tokens are left for the second, rounded down to 8; the third takes the last 3.
    assert chunks(requests) == [7, 8, 3]


@pytest.mark.parametrize("compatibility", [False, True])
def test_forced_chunks_are_one_unit_even_when_everything_fits(compatibility: bool) -> None:
    requests = [make_request(1, 7), make_request(2, 20), make_request(3, 3), make_request(4, 9), make_request(5, 1)]
    assert run(requests, 12, FORCED, compatibility=compatibility) == ([1, 2, 3, 5], [])
    assert chunks(requests) == [4, 4, 3, 0, 1]


def test_generation_is_served_before_contexts_behind_it_or_in_front() -> None:
    requests = [make_request(1, 20), generating(2), generating(3)]
    assert run(requests, 10, FIRST_COME) == ([1], [2, 3])
    assert chunks(requests[:1]) == [8]


def test_a_context_that_gets_nothing_is_left_out() -> None:
    requests = [make_request(1, 8), make_request(2, 8)]
    assert run(requests, 8, FIRST_COME) == ([1], [])
    assert chunks(requests) == [8, 0]


def test_unfinished_chunks_come_before_last_ones_and_keep_their_order() -> None:
    requests = [make_request(i, length) for i, length in ((1, 4), (2, 20), (3, 4), (4, 20), (5, 20))]
    assert run(requests, 20, EQUAL) == ([2, 4, 5, 1, 3], [])
    recorded = [make_request(i, length) for i, length in ((1, 4), (2, 20), (3, 4), (4, 20), (5, 20))]
    assert run(recorded, 20, EQUAL, compatibility=True) == ([5, 2, 4, 3, 1], [])


@pytest.mark.parametrize("policy", [EQUAL, FIRST_COME])
def test_the_context_limit_cuts_chunks(policy: ChunkingPolicy) -> None:
    requests = [make_request(1, 20), make_request(2, 5)]
    run(requests, None, policy, max_context_length=9)
    assert chunks(requests) == [8, 5]


# -- reuse ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunk", "late", "recorded"), [(4, 4, 0), (8, 8, 0), (11, 11, 3), (12, 12, 4), (16, 12, 8), (20, 12, 12)]
)
def test_what_a_first_chunk_costs_of_20_tokens_with_8_cached(chunk: int, late: int, recorded: int) -> None:
    assert count_compute_tokens(chunk, 8, 20, ReuseDiscount.LATE) == late
    assert count_compute_tokens(chunk, 8, 20, ReuseDiscount.RECORDED) == recorded


def test_computed_tokens_stay_within_the_budget_when_cached_prompts_are_cut() -> None:
    # A chunk is placed behind the 8 cached tokens, so 4 of them are 4 tokens to compute, not 0.
    requests = [make_request(i, 20, reusable=8) for i in (1, 2)]
    run(requests, 8, EQUAL)
    assert chunks(requests) == [4, 4]
    recorded = [make_request(i, 20, reusable=8) for i in (1, 2)]
    run(recorded, 8, EQUAL, compatibility=True)
    assert chunks(recorded) == [12, 12]


def test_a_chunk_that_reaches_the_end_takes_the_whole_prompt() -> None:
    requests = [make_request(1, 20, reusable=16), make_request(2, 20)]
    assert run(requests, 8, EQUAL) == ([2, 1], [])
    assert chunks(requests) == [20, 4]


def test_the_discount_can_be_chosen() -> None:
    requests = [make_request(i, 20, reusable=8) for i in (1, 2)]
    run(requests, 8, EQUAL, reuse_discount="recorded")
    assert chunks(requests) == [12, 12]


# -- drafts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compatibility", [False, True])
def test_drafts_fill_the_last_unit_only(compatibility: bool) -> None:
    requests = [make_request(1, 6, num_draft_tokens=5), make_request(2, 40)]
    run(requests, 20, FIRST_COME, compatibility=compatibility)
    assert requests[0].context_chunk_size == 6
    assert requests[0].num_draft_tokens == 2


def test_drafts_without_room_are_dropped_instead_of_failing() -> None:
    def build() -> list[LlmRequest]:
        # The chunk of the cached prompt is longer than max_context_length, so there is "negative" room.
        return [make_request(1, 14, reusable=8, num_draft_tokens=1), make_request(2, 40)]

    requests = build()
    run(requests, 20, FIRST_COME, max_context_length=6)
    assert requests[0].num_draft_tokens == 0
    with pytest.raises(InvalidInputError, match="drafts to discard"):
        run(build(), 20, FIRST_COME, max_context_length=6, compatibility=True)


def test_drafts_kept_do_not_exceed_the_budget() -> None:
    requests = [make_request(1, 5, num_draft_tokens=3), make_request(2, 5, num_draft_tokens=3)]
    run(requests, 12, FIRST_COME)
    assert [request.num_draft_tokens for request in requests] == [2, 0]


# -- refusals -------------------------------------------------------------------------------------------


def test_a_request_that_no_empty_step_can_compute_is_refused_with_the_numbers() -> None:
    whole = MicroBatchScheduler()
    whole.check_can_ever_fit(make_request(1, 16), 16)
    with pytest.raises(CapacityError, match=r"request 1 .* 17 tokens .* max_num_tokens is 16"):
        whole.check_can_ever_fit(make_request(1, 17), 16)
    cut = MicroBatchScheduler(ContextChunkingConfig(FIRST_COME, 8), max_context_length=12)
    cut.check_can_ever_fit(make_request(1, 1000), 8)
    with pytest.raises(CapacityError, match="max_num_tokens is 7"):
        cut.check_can_ever_fit(make_request(1, 1000), 7)
    with pytest.raises(CapacityError, match="generates 9 tokens a step"):
        cut.check_can_ever_fit(make_request(1, 4, beam_width=6, num_draft_tokens=3), 8)


def test_forced_chunks_longer_than_the_context_limit_are_refused() -> None:
    config = ContextChunkingConfig(FORCED, 8)
    with pytest.raises(ConfigurationError, match="forced chunks of 8 tokens exceed max_context_length 7"):
        MicroBatchScheduler(config, 7)
    recorded = MicroBatchScheduler(config, 7, compatibility=True)
    with pytest.raises(ConfigurationError, match="forced chunks of 8 tokens"):
        recorded.schedule([make_request(1)], (), 8, None)


def test_a_unit_of_no_tokens_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="chunk_unit_size is 0"):
        ContextChunkingConfig(EQUAL, 0)
