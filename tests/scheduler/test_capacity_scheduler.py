"""Who is admitted, who waits and who is paused, on managers reduced to block counts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scheduler_fakes import FakeKvCacheManager, FakePeftCacheManager, generating, ids, make_request
from trtkv.errors import ConfigurationError, InvalidInputError, OutOfBlocksError
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest, LlmRequestState
from trtkv.scheduler.capacity_scheduler import CapacityScheduler
from trtkv.scheduler.scheduler_config import CapacitySchedulerPolicy

MAX_UTILIZATION = CapacitySchedulerPolicy.MAX_UTILIZATION
NO_EVICT = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
STATIC = CapacitySchedulerPolicy.STATIC_BATCH


def started(request_id: int) -> LlmRequest:
    """A request between two chunks of its prompt."""
    return make_request(request_id, position=4)


def schedule(
    policy: CapacitySchedulerPolicy,
    requests: list[LlmRequest],
    manager: FakeKvCacheManager,
    *,
    max_num_requests: int = 8,
    peft: FakePeftCacheManager | None = None,
    cross: FakeKvCacheManager | None = None,
    **options: Any,
) -> tuple[list[int], list[int], list[int]]:
    scheduler = CapacityScheduler(max_num_requests, policy, **options)
    result = scheduler.schedule(requests, manager, peft, cross)
    return tuple(ids(part) for part in result)  # type: ignore[return-value]


# -- every policy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
@pytest.mark.parametrize("compatibility", [False, True])
def test_new_requests_are_admitted_in_order_while_blocks_last(
    policy: CapacitySchedulerPolicy, compatibility: bool
) -> None:
    manager = FakeKvCacheManager(10, needs={1: 4, 2: 4, 3: 4, 4: 1})
    requests = [make_request(i) for i in (1, 2, 3, 4)]
    assert schedule(policy, requests, manager, compatibility=compatibility) == ([1, 2], [], [])


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
def test_every_window_must_have_room(policy: CapacitySchedulerPolicy) -> None:
    manager = FakeKvCacheManager({16: 3, 64: 10}, needs={1: 2, 2: 2})
    assert schedule(policy, [make_request(1), make_request(2)], manager) == ([1], [], [])


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
def test_referenced_prefix_blocks_need_no_room(policy: CapacitySchedulerPolicy) -> None:
    manager = FakeKvCacheManager(4, needs={1: 5}, reusable={1: (1, 3)})
    request = make_request(1)
    assert schedule(policy, [request], manager) == ([1], [], [])
    assert request.estimated_reusable_tokens == 12


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
def test_states_outside_the_limits_are_passed_over(policy: CapacitySchedulerPolicy) -> None:
    done = make_request(1, state=LlmRequestState.GENERATION_COMPLETE)
    early = make_request(2, state=LlmRequestState.ENCODER_INIT)
    manager = FakeKvCacheManager(10, needs={3: 1})
    assert schedule(policy, [done, early, make_request(3)], manager) == ([3], [], [])


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
def test_requests_that_wait_for_a_remote_prompt_come_in_a_list_of_their_own(policy: CapacitySchedulerPolicy) -> None:
    remote = make_request(1, state=LlmRequestState.DISAGG_GENERATION_INIT)
    manager = FakeKvCacheManager(10, needs={1: 2, 2: 2})
    assert schedule(policy, [remote, make_request(2)], manager) == ([2], [1], [])


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
def test_the_request_limit_holds(policy: CapacitySchedulerPolicy) -> None:
    manager = FakeKvCacheManager(10)
    requests = [make_request(i) for i in (1, 2, 3)]
    assert schedule(policy, requests, manager, max_num_requests=2) == ([1, 2], [], [])


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
def test_an_adapter_is_charged_once(policy: CapacitySchedulerPolicy) -> None:
    peft = FakePeftCacheManager(3, {7: 2, 8: 2})
    requests = [make_request(i, lora_task_id=task) for i, task in ((1, 7), (2, 7), (3, 8), (4, None))]
    assert schedule(policy, requests, FakeKvCacheManager(10), peft=peft) == ([1, 2, 4], [], [])


def test_without_a_manager_only_the_number_of_requests_counts() -> None:
    scheduler = CapacityScheduler(3, NO_EVICT, has_kv_cache_manager=False)
    remote = make_request(5, state=LlmRequestState.DISAGG_GENERATION_INIT)
    result = scheduler.schedule([remote, generating(1), make_request(2), make_request(3), make_request(4)])
    assert ids(result.fitting_requests) == [1, 2, 3]
    assert result.paused_requests == []


def test_a_missing_manager_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="needs a kv_cache_manager"):
        CapacityScheduler(3, NO_EVICT).schedule([])


def test_a_limit_of_no_requests_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_num_requests is 0"):
        CapacityScheduler(0, NO_EVICT)


# -- common prefixes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [MAX_UTILIZATION, NO_EVICT])
@pytest.mark.parametrize("compatibility", [False, True])
def test_a_request_waits_for_the_prefix_another_one_computes(
    policy: CapacitySchedulerPolicy, compatibility: bool
) -> None:
    manager = FakeKvCacheManager(10, needs={1: 1, 2: 1, 3: 1}, first_new_blocks={1: "a", 2: "a", 3: "b"})
    requests = [make_request(i) for i in (1, 2, 3)]
    assert schedule(policy, requests, manager, compatibility=compatibility) == ([1, 3], [], [])


def test_a_static_batch_does_not_wait_for_prefixes() -> None:
    manager = FakeKvCacheManager(10, needs={1: 1, 2: 1}, first_new_blocks={1: "a", 2: "a"})
    assert schedule(STATIC, [make_request(1), make_request(2)], manager) == ([1, 2], [], [])


@pytest.mark.parametrize("policy", [MAX_UTILIZATION, NO_EVICT])
def test_a_request_waits_for_a_chunked_one_behind_it(policy: CapacitySchedulerPolicy) -> None:
    manager = FakeKvCacheManager(10, holds={2: [0]}, first_new_blocks={1: "a", 2: "a"})
    assert schedule(policy, [make_request(1), started(2)], manager) == ([2], [], [])


def test_a_request_refused_for_pages_does_not_hold_others_back() -> None:
    peft = FakePeftCacheManager(1, {7: 2})
    manager = FakeKvCacheManager(10, first_new_blocks={1: "a", 2: "a"})
    requests = [make_request(1, lora_task_id=7), make_request(2)]
    assert schedule(NO_EVICT, requests, manager, peft=peft) == ([2], [], [])
    assert schedule(NO_EVICT, requests, manager, peft=peft, compatibility=True) == ([], [], [])


def test_the_prefix_is_walked_once_per_request_and_call_and_after_each_pause() -> None:
    manager = FakeKvCacheManager(4, needs={1: 6}, holds={2: [0], 3: [1]})
    schedule(MAX_UTILIZATION, [make_request(1), generating(2), generating(3)], manager)
    assert manager.num_walks == 3
    schedule(MAX_UTILIZATION, [make_request(1), generating(2), generating(3)], manager, compatibility=True)
    assert manager.num_walks == 4


# -- max utilization ------------------------------------------------------------------------------------


@pytest.mark.parametrize("compatibility", [False, True])
def test_the_last_started_request_is_paused_when_blocks_run_out(compatibility: bool) -> None:
    manager = FakeKvCacheManager(6, needs={1: 1, 2: 1, 3: 1}, holds={1: [0, 1], 2: [2, 3], 3: [4, 5]})
    requests = [generating(1), generating(2), generating(3)]
    assert schedule(MAX_UTILIZATION, requests, manager, compatibility=compatibility) == ([1, 2], [], [3])


@pytest.mark.parametrize("compatibility", [False, True])
def test_shared_blocks_are_not_freed_by_a_pause(compatibility: bool) -> None:
    manager = FakeKvCacheManager(3, needs={1: 2}, holds={1: [0], 2: [1], 3: [1, 2]})
    requests = [generating(1), generating(2), generating(3)]
    assert schedule(MAX_UTILIZATION, requests, manager, compatibility=compatibility) == ([1], [], [3, 2])


@pytest.mark.parametrize("compatibility", [False, True])
def test_a_lone_request_that_cannot_grow_pauses_itself(compatibility: bool) -> None:
    manager = FakeKvCacheManager(2, needs={1: 1}, holds={1: [0, 1]})
    assert schedule(MAX_UTILIZATION, [generating(1)], manager, compatibility=compatibility) == ([], [], [1])


def test_an_older_request_takes_the_place_of_a_younger_started_one() -> None:
    manager = FakeKvCacheManager(4, needs={1: 3}, holds={2: [0, 1]}, first_new_blocks={1: "a"})
    requests = [make_request(1), generating(2)]
    assert schedule(MAX_UTILIZATION, requests, manager) == ([1], [], [2])


def test_recorded_a_new_request_pauses_another_and_then_waits_for_itself() -> None:
    manager = FakeKvCacheManager(4, needs={1: 3}, holds={2: [0, 1]}, first_new_blocks={1: "a"})
    requests = [make_request(1), generating(2)]
    assert schedule(MAX_UTILIZATION, requests, manager, compatibility=True) == ([], [], [2])


def test_nobody_is_paused_for_a_request_that_does_not_fit_even_then() -> None:
    manager = FakeKvCacheManager(6, needs={1: 1, 2: 5, 3: 1, 4: 1}, holds={1: [0, 1], 3: [2, 3]})
    requests = [generating(1), make_request(2), generating(3), make_request(4)]
    assert schedule(MAX_UTILIZATION, requests, manager) == ([1, 3], [], [])
    assert schedule(MAX_UTILIZATION, requests, manager, compatibility=True) == ([1], [], [3])


def test_the_request_limit_pauses_nobody() -> None:
    manager = FakeKvCacheManager(9, holds={1: [0], 2: [1], 3: [2]})
    requests = [generating(1), generating(2), generating(3)]
    assert schedule(MAX_UTILIZATION, requests, manager, max_num_requests=2) == ([1, 2], [], [])
    recorded = schedule(MAX_UTILIZATION, requests, manager, max_num_requests=2, compatibility=True)
    assert recorded == ([1, 2], [], [3])


def test_missing_pages_pause_nobody() -> None:
    peft = FakePeftCacheManager(1, {7: 1, 8: 1})
    manager = FakeKvCacheManager(9, holds={1: [0], 2: [1], 3: [2]})
    requests = [generating(1, lora_task_id=7), generating(2, lora_task_id=8), generating(3)]
    assert schedule(MAX_UTILIZATION, requests, manager, peft=peft) == ([1, 3], [], [])
    assert schedule(MAX_UTILIZATION, requests, manager, peft=peft, compatibility=True) == ([1], [], [3, 2])


def test_several_windows_with_a_chunked_request_work_unless_recorded_behaviour_is_asked_for() -> None:
    manager = FakeKvCacheManager({16: 9, 64: 9}, holds={1: [0]})
    assert schedule(MAX_UTILIZATION, [started(1), make_request(2)], manager) == ([1, 2], [], [])
    with pytest.raises(InvalidInputError, match="single window"):
        schedule(MAX_UTILIZATION, [started(1), make_request(2)], manager, compatibility=True)


# -- guaranteed no evict and static batch ---------------------------------------------------------------


@pytest.mark.parametrize("compatibility", [False, True])
def test_running_requests_come_first_and_keep_their_blocks_to_completion(compatibility: bool) -> None:
    manager = FakeKvCacheManager(10, needs={1: 5, 2: 4}, holds={2: [0, 1]})
    requests = [make_request(1), generating(2)]
    assert schedule(NO_EVICT, requests, manager, compatibility=compatibility) == ([2], [], [])


def test_a_remote_prompt_that_does_not_fit_does_not_stop_contexts() -> None:
    remote = make_request(1, state=LlmRequestState.DISAGG_GENERATION_INIT)
    manager = FakeKvCacheManager(4, needs={1: 5, 2: 2})
    assert schedule(NO_EVICT, [remote, make_request(2)], manager) == ([2], [], [])


def test_a_chunked_request_goes_on_before_a_new_one_that_does_not_fit() -> None:
    manager = FakeKvCacheManager(4, needs={1: 4, 2: 0}, holds={2: [0, 1, 2]})
    requests = [make_request(1), started(2)]
    assert schedule(NO_EVICT, requests, manager) == ([2], [], [])
    # As recorded, both wait for each other for ever.
    assert schedule(NO_EVICT, requests, manager, compatibility=True) == ([], [], [])


def test_a_static_batch_is_closed_while_something_runs() -> None:
    manager = FakeKvCacheManager(10, holds={1: [0]})
    assert schedule(STATIC, [generating(1), make_request(2)], manager) == ([1], [], [])
    assert schedule(STATIC, [started(1), make_request(2)], manager) == ([1], [], [])


@pytest.mark.parametrize("compatibility", [False, True])
def test_members_of_a_static_batch_may_start_later(compatibility: bool) -> None:
    scheduler = CapacityScheduler(8, STATIC, compatibility=compatibility)
    manager = FakeKvCacheManager(10)
    first, second, third = (make_request(i) for i in (1, 2, 3))
    assert ids(scheduler.schedule([first, second], manager).fitting_requests) == [1, 2]
    # Only the first found tokens; the third came too late for this batch.
    first.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
    expected = [1] if compatibility else [1, 2]
    assert ids(scheduler.schedule([first, second, third], manager).fitting_requests) == expected
    assert ids(scheduler.schedule([second, third], manager).fitting_requests) == [2, 3]


def test_an_overdrawn_pool_still_takes_a_request_that_needs_nothing() -> None:
    manager = FakeKvCacheManager(4, needs={1: 9, 2: 0}, holds={1: [0]})
    requests = [generating(1), make_request(2)]
    assert schedule(NO_EVICT, requests, manager) == ([1, 2], [], [])
    assert schedule(NO_EVICT, requests, manager, compatibility=True) == ([1], [], [])


def test_overdrawn_pages_still_take_a_request_without_adapter() -> None:
    peft = FakePeftCacheManager(1, {7: 1, 8: 1})
    manager = FakeKvCacheManager(9, holds={1: [0], 2: [1]})
    requests = [generating(1, lora_task_id=7), generating(2, lora_task_id=8), make_request(3)]
    assert schedule(NO_EVICT, requests, manager, peft=peft) == ([1, 2, 3], [], [])
    assert schedule(NO_EVICT, requests, manager, peft=peft, compatibility=True) == ([1, 2], [], [])


def test_the_cross_cache_must_have_room_too_and_its_prefix_counts() -> None:
    requests = [make_request(i, encoder_tokens=[1, 2, 3]) for i in (1, 2, 3)]
    manager = FakeKvCacheManager(9)
    cross = FakeKvCacheManager(3, needs={1: 2, 2: 1, 3: 2}, first_new_blocks={1: "e", 2: "e"})
    assert schedule(NO_EVICT, requests, manager, cross=cross) == ([1], [], [])


def test_a_request_without_encoder_tokens_is_no_error_unless_recorded_behaviour_is_asked_for() -> None:
    manager, cross = FakeKvCacheManager(9), FakeKvCacheManager(9)
    assert schedule(NO_EVICT, [make_request(1)], manager, cross=cross) == ([1], [], [])
    with pytest.raises(InvalidInputError, match="no encoder tokens"):
        schedule(NO_EVICT, [make_request(1)], manager, cross=cross, compatibility=True)


# -- requests that can never fit ------------------------------------------------------------------------


def make_manager(num_blocks: int, compatibility: bool = False) -> KVCacheManager:
    """One window of 64 tokens in blocks of 4."""
    return KVCacheManager.from_arguments(
        [1], 1, 4, {64: (num_blocks, 0)}, 8, 4, [64], max_sequence_length=64, compatibility=compatibility
    )


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
def test_a_request_larger_than_the_pool_is_refused_with_the_numbers(policy: CapacitySchedulerPolicy) -> None:
    scheduler = CapacityScheduler(8, policy)
    manager = make_manager(5)
    other = LlmRequest(9, range(100, 116))
    manager.add_sequence((9, 16, 1), other)
    # 12 prompt tokens and 8 new ones fill exactly 5 blocks of 4; blocks held by others do not matter.
    fitting = make_request(1, 12, max_new_tokens=8)
    fitting.set_estimated_reusable_tokens(4)
    scheduler.check_can_ever_fit(fitting, manager)
    assert fitting.estimated_reusable_tokens == 4
    with pytest.raises(OutOfBlocksError, match=r"request 2 .*12 prompt tokens, 9 new ones.* 6 blocks .* has 5"):
        scheduler.check_can_ever_fit(make_request(2, 12, max_new_tokens=9), manager)


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
def test_every_beam_counts_when_a_request_is_refused(policy: CapacitySchedulerPolicy) -> None:
    scheduler = CapacityScheduler(8, policy)
    request = make_request(1, 10, max_new_tokens=4, beam_width=4)
    # 2 shared blocks; 2 + 4 tokens of each beam take 2 blocks of its own.
    scheduler.check_can_ever_fit(request, make_manager(10))
    with pytest.raises(OutOfBlocksError, match="needs 10 blocks"):
        scheduler.check_can_ever_fit(request, make_manager(9))


@pytest.mark.parametrize("look_ahead", [False, True])
def test_only_tokens_that_can_come_count_under_max_utilization(look_ahead: bool) -> None:
    """19 tokens are there before the last step, which brings one more, whatever is guessed or looked ahead."""
    scheduler = CapacityScheduler(8, MAX_UTILIZATION, two_steps_look_ahead=look_ahead)
    request = make_request(1, 12, max_new_tokens=8, num_draft_tokens=3)
    scheduler.check_can_ever_fit(request, make_manager(5))
    with pytest.raises(OutOfBlocksError, match="needs 5 blocks"):
        scheduler.check_can_ever_fit(request, make_manager(4))


@pytest.mark.parametrize(("look_ahead", "num_blocks"), [(False, 6), (True, 7)])
def test_recorded_last_step_reserves_all_its_drafts(look_ahead: bool, num_blocks: int) -> None:
    scheduler = CapacityScheduler(8, MAX_UTILIZATION, two_steps_look_ahead=look_ahead)
    # 19 tokens are there before the last step, which reserves 4 with its drafts, or twice as many.
    request = make_request(1, 12, max_new_tokens=8, num_draft_tokens=3)
    scheduler.check_can_ever_fit(request, make_manager(num_blocks, compatibility=True))
    with pytest.raises(OutOfBlocksError, match=f"needs {num_blocks} blocks"):
        scheduler.check_can_ever_fit(request, make_manager(num_blocks - 1, compatibility=True))


def test_an_adapter_larger_than_its_cache_is_refused() -> None:
    scheduler = CapacityScheduler(8, NO_EVICT)
    peft = FakePeftCacheManager(3, {7: 4})
    scheduler.check_can_ever_fit(make_request(1), FakeKvCacheManager(10), peft)
    with pytest.raises(OutOfBlocksError, match="adapter 7 of request 1 needs 4 pages"):
        scheduler.check_can_ever_fit(make_request(1, lora_task_id=7), FakeKvCacheManager(10), peft)
