"""What an executor asks of the cache before, after and between steps."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.builders import make_kv_cache_manager
from tests.executor_loop import ExecutorLoop
from tests.scheduler_fakes import ids, make_request
from trtkv.common import RECURRENT_STATES, CacheType
from trtkv.errors import ConfigurationError, InvalidInputError, OutOfBlocksError, UnknownIdError
from trtkv.inspection.invariants import check_invariants
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.pools.memory import CacheMemory
from trtkv.records.config import KvCacheConfig, ModelConfig, SchedulerConfig
from trtkv.records.linear_attention import LinearAttentionMetadata
from trtkv.records.llm_request import LlmRequest, LlmRequestState, MultimodalInput
from trtkv.resource_manager import KVCacheResourceManager
from trtkv.scheduler.capacity_scheduler import CapacityScheduler
from trtkv.scheduler.micro_batch_scheduler import MicroBatchScheduler
from trtkv.scheduler.scheduled_requests import ScheduledRequests
from trtkv.scheduler.scheduler_config import CapacitySchedulerPolicy, ChunkingPolicy, ContextChunkingConfig
from trtkv.scheduler.token_budget import count_step_tokens

TOKENS_PER_BLOCK = 4
WINDOW = 64


def make_manager(num_blocks: int = 32, num_secondary: int = 0, **options: Any) -> KVCacheManager:
    windows: list[int] = options.pop("windows", [WINDOW])
    settings: dict[str, Any] = {"max_sequence_length": WINDOW, "max_beam_width": 4}
    settings |= options
    beam_width = settings.pop("max_beam_width")
    return KVCacheManager.from_arguments(
        [1] * len(windows),
        1,
        TOKENS_PER_BLOCK,
        dict.fromkeys(windows, (num_blocks, num_secondary)),
        16,
        beam_width,
        windows,
        **settings,
    )


def make_resources(num_blocks: int = 32, **options: Any) -> KVCacheResourceManager:
    own = {
        name: options.pop(name)
        for name in (
            "max_num_tokens",
            "enable_chunked_prefill",
            "num_extra_kv_tokens",
            "draft_token_reserve",
            "must_keep_chunk",
        )
        if name in options
    }
    return KVCacheResourceManager(make_manager(num_blocks, **options), **own)


def batch_of(contexts: list[LlmRequest], generating: list[LlmRequest] | None = None) -> ScheduledRequests:
    return ScheduledRequests.from_schedule(contexts, generating or [])


def finish_prompt(request: LlmRequest, token: int = 500) -> None:
    """Compute what is left of a prompt and generate the first token."""
    request.move_to_next_context_chunk()
    assert request.context_remaining_length == 0
    request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
    request.add_new_token(token)


# -- prepare ----------------------------------------------------------------------------------------------


def test_first_chunks_get_the_blocks_of_their_whole_prompt() -> None:
    resources = make_resources()
    first, second = make_request(1, 9), make_request(2, 4)
    resources.prepare_resources(batch_of([first, second]))
    assert resources.get_num_tokens(first) == 9
    assert len(resources.get_cache_indices(first)) == 3
    assert resources.get_num_free_blocks() == 32 - 3 - 1


def test_later_chunks_are_not_added_again() -> None:
    resources = make_resources()
    request = make_request(1, 9)
    request.set_context_chunk_size(4)
    resources.prepare_resources(batch_of([request]))
    request.move_to_next_context_chunk()
    request.set_context_chunk_size(5)
    batch = batch_of([request])
    resources.prepare_resources(batch)
    assert resources.get_num_tokens(request) == 9
    assert ids(batch.context_requests_last_chunk) == [1]


def test_a_chunk_that_reuse_turns_into_the_last_one_changes_its_list() -> None:
    resources = make_resources()
    first = make_request(1, 12)
    resources.prepare_resources(batch_of([first]))
    finish_prompt(first)
    resources.update_resources(batch_of([first]))
    second = make_request(2, 12)
    second.set_context_chunk_size(4)
    batch = batch_of([second])
    assert ids(batch.context_requests_chunking) == [2]
    resources.prepare_resources(batch)
    # 8 tokens are found and 3 of the third block's 4: the chunk of 4 is more than what is left.
    assert second.prepopulated_prompt_len == 11
    assert ids(batch.context_requests_last_chunk) == [2]


def test_generating_requests_get_a_slot_and_those_of_their_drafts() -> None:
    resources = make_resources(draft_token_reserve=2)
    requests = [make_request(i, 4) for i in (1, 2)]
    resources.prepare_resources(batch_of(requests))
    for request in requests:
        finish_prompt(request)
    requests[0].set_num_draft_tokens(3)
    batch = batch_of([], requests)
    resources.prepare_resources(batch)
    assert [resources.get_num_tokens(request) for request in requests] == [4 + 1 + 3, 4 + 1 + 2]
    assert batch.num_reserved_draft_tokens == {1: 3, 2: 2}


def test_buffers_and_hashes_are_those_of_the_manager() -> None:
    resources = make_resources()
    request = make_request(1, 9)
    resources.prepare_resources(batch_of([request]))
    finish_prompt(request)
    hashes = resources.commit_and_get_block_hashes(request)
    assert hashes == resources.impl.commit_and_get_block_hashes_for_request(
        request, resources.impl.max_attention_window
    )
    assert len(hashes) == 2
    resources.impl.allocate_pools()
    assert resources.get_buffers(0).data_ptr() == resources.impl.get_buffers(0).data_ptr()


def test_drafts_that_cannot_become_tokens_get_no_slots_and_are_dropped() -> None:
    """Blocks of 4 and a pool of 2: 6 prompt tokens and 2 new ones are all there is room for."""
    resources = make_resources(2)
    request = make_request(1, 6, max_new_tokens=2, num_draft_tokens=3)
    resources.check_can_ever_fit(request)
    batch = batch_of([request])
    resources.prepare_resources(batch)
    assert (resources.get_num_tokens(request), request.num_draft_tokens) == (8, 2)
    finish_prompt(request)
    resources.update_resources(batch)
    assert resources.get_num_tokens(request) == 6
    request.set_num_draft_tokens(3)
    batch = batch_of([], [request])
    resources.prepare_resources(batch)
    assert (resources.get_num_tokens(request), request.num_draft_tokens) == (8, 1)
    assert batch.num_reserved_draft_tokens == {1: 1}


def test_extra_slots_and_drafts_follow_a_new_prompt() -> None:
    resources = make_resources(num_extra_kv_tokens=2)
    request = make_request(1, 4, num_draft_tokens=3)
    resources.prepare_resources(batch_of([request]))
    assert resources.get_num_tokens(request) == 4 + 2 + 3
    finish_prompt(request)
    resources.update_resources(batch_of([request]))
    assert resources.get_num_tokens(request) == 4 + 2


def test_a_new_request_without_room_waits_and_the_others_run() -> None:
    resources = make_resources(5)
    requests = [make_request(1, 8), make_request(2, 16), make_request(3, 8)]
    batch = batch_of(requests)
    resources.prepare_resources(batch)
    assert ids(batch.context_requests) == [1, 3]
    assert ids(batch.deferred_requests) == [2]
    assert set(resources.impl.sequences) == {1, 3}
    assert requests[1].context_chunk_size == 16


def test_a_request_without_room_for_its_extra_slots_is_withdrawn_as_it_was() -> None:
    resources = make_resources(5, num_extra_kv_tokens=4)
    first, second = make_request(1, 8), LlmRequest(2, range(100, 108), 2)
    resources.prepare_resources(batch_of([first]))
    first.move_to_next_context_chunk()
    resources.update_resources(batch_of([first]))
    batch = batch_of([second], [])
    with pytest.raises(OutOfBlocksError):
        resources.prepare_resources(batch)
    assert ids(batch.deferred_requests) == [2]
    assert set(resources.impl.sequences) == {1}
    assert (second.context_current_position, second.prepopulated_prompt_len, second.context_chunk_size) == (0, 0, 8)
    assert resources.get_num_free_blocks() == 2


def test_a_request_behind_a_withdrawn_one_keeps_the_sequence_it_has() -> None:
    resources = make_resources(5, num_extra_kv_tokens=1)
    requests = [make_request(1, 8), LlmRequest(2, range(100, 112), 2)]
    batch = batch_of(requests)
    resources.prepare_resources(batch)
    assert ids(batch.deferred_requests) == [1]
    assert ids(batch.context_requests) == [2]
    assert resources.get_num_tokens(requests[1]) == 13
    assert set(resources.impl.sequences) == {2}


def test_a_batch_left_empty_is_an_error_with_the_numbers() -> None:
    resources = make_resources(2)
    with pytest.raises(OutOfBlocksError, match="3 context blocks of request 1"):
        resources.prepare_resources(batch_of([make_request(1, 12)]))


def test_drafts_and_beams_do_not_go_together() -> None:
    resources = make_resources()
    request = make_request(1, 4, beam_width=2)
    resources.prepare_resources(batch_of([request]))
    request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
    request.set_num_draft_tokens(1)
    with pytest.raises(InvalidInputError, match="2 beams and drafts"):
        resources.prepare_resources(batch_of([], [request]))


def test_a_cross_cache_holds_the_encoder_output_and_never_grows() -> None:
    resources = make_resources(cache_type=CacheType.CROSS, enable_block_reuse=False)
    request = make_request(1, 4, encoder_tokens=range(10), beam_width=2)
    resources.prepare_resources(batch_of([request]))
    assert resources.get_num_tokens(request) == 10
    request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
    resources.prepare_resources(batch_of([], [request]))
    assert resources.get_num_tokens(request) == 10
    with pytest.raises(InvalidInputError, match="no encoder output"):
        resources.prepare_resources(batch_of([make_request(2, 4)]))


# -- update and free ----------------------------------------------------------------------------------------


def test_rejected_drafts_are_taken_back() -> None:
    resources = make_resources(draft_token_reserve=1)
    requests = [make_request(i, 4) for i in (1, 2, 3)]
    resources.prepare_resources(batch_of(requests))
    for request in requests:
        finish_prompt(request)
        request.set_num_draft_tokens(3)
    batch = batch_of([], requests)
    resources.prepare_resources(batch)
    requests[2].set_state(LlmRequestState.GENERATION_COMPLETE)
    resources.update_resources(batch, {1: 2})
    assert [resources.get_num_tokens(request) for request in requests] == [4 + 1 + 2, 4 + 1, 4 + 1 + 3]


def test_more_accepted_drafts_than_slots_are_refused_before_any_change() -> None:
    resources = make_resources()
    requests = [make_request(i, 4) for i in (1, 2)]
    resources.prepare_resources(batch_of(requests))
    for request in requests:
        finish_prompt(request)
        request.set_num_draft_tokens(2)
    batch = batch_of([], requests)
    resources.prepare_resources(batch)
    with pytest.raises(InvalidInputError, match="3 drafts of request 2 accepted, slots were prepared for 2"):
        resources.update_resources(batch, {1: 0, 2: 3})
    assert resources.get_num_tokens(requests[0]) == 4 + 1 + 2


@pytest.mark.parametrize(
    "constraints",
    [
        {"multimodal_input": MultimodalInput([[1] * 8, [2] * 8], [0, 6], [3, 2])},
        {"input_token_extra_ids": [7] * 9},
    ],
)
def test_probe_sees_images_and_extra_ids(constraints: dict[str, Any]) -> None:
    resources = make_resources()
    for index, options in enumerate([{}, constraints]):
        tokens = [100 * index + token for token in range(9)]
        request = LlmRequest(index, tokens, 4, **options)
        resources.prepare_resources(batch_of([request]))
        request.move_to_next_context_chunk()
        resources.update_resources(batch_of([request]))
        other = {} if options else constraints
        assert resources.probe_prefix_match_length(tokens, **options) == 8
        assert resources.probe_prefix_match_length(tokens, **other) == 0


def test_computed_prompts_are_found_by_later_requests() -> None:
    resources = make_resources()
    request = make_request(1, 9)
    resources.prepare_resources(batch_of([request]))
    assert resources.probe_prefix_match_length(range(9)) == 0
    request.move_to_next_context_chunk()
    resources.update_resources(batch_of([request]))
    assert resources.probe_prefix_match_length(range(9)) == 8
    assert resources.probe_prefix_match_length(range(9), cache_salt="other") == 0
    assert resources.probe_prefix_match_length([]) == 0


def test_freed_blocks_can_be_pinned() -> None:
    resources = make_resources(4)
    request = make_request(1, 9)
    resources.prepare_resources(batch_of([request]))
    finish_prompt(request)
    pinned = resources.free_resources(request, pin_on_release=True)
    assert len(pinned) == 3
    assert resources.get_num_free_blocks() == 1
    resources.unpin_blocks_by_id(pinned)
    assert resources.get_num_free_blocks() == 4
    assert resources.free_resources(request, pin_on_release=True) == []


def test_freed_blocks_of_two_windows_are_unpinned_in_both() -> None:
    manager = make_kv_cache_manager(windows={8: (16, 0), 64: (16, 0)})
    resources = KVCacheResourceManager(manager)
    request = make_request(1, 9)
    resources.prepare_resources(batch_of([request]))
    finish_prompt(request)
    pinned = resources.free_resources(request, pin_on_release=True)
    assert manager.num_free_blocks_per_window_size == {8: 13, 64: 13}
    resources.unpin_blocks_by_id(pinned)
    assert manager.num_free_blocks_per_window_size == {8: 16, 64: 16}
    check_invariants(manager, pins={})


@pytest.mark.pure
def test_a_release_that_fails_keeps_no_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = make_kv_cache_manager(windows={8: (16, 0), 64: (16, 0)})
    resources = KVCacheResourceManager(manager)
    request = make_request(1, 9)
    resources.prepare_resources(batch_of([request]))
    finish_prompt(request)
    for window, fails_with_pins in [(8, True), (8, False), (64, True), (64, False)]:
        storer = manager.block_manager.window_block_managers[window].storer
        store = storer.store_blocks_for_reuse

        def fail(*args: Any, store: Any = store, fails_with_pins: bool = fails_with_pins) -> Any:
            if (len(args) == 3) is fails_with_pins:
                raise ZeroDivisionError
            return store(*args)

        with monkeypatch.context() as patch:
            patch.setattr(storer, "store_blocks_for_reuse", fail)
            with pytest.raises(ZeroDivisionError):
                resources.free_resources(request, pin_on_release=True)
        check_invariants(manager, {1: request}, pins={})
    assert manager.num_free_blocks_per_window_size == {8: 13, 64: 13}


def test_pins_need_reuse() -> None:
    resources = make_resources(enable_block_reuse=False)
    request = make_request(1, 9)
    resources.prepare_resources(batch_of([request]))
    with pytest.raises(InvalidInputError, match="block reuse"):
        resources.free_resources(request, pin_on_release=True)
    assert resources.free_resources(request) == []
    assert resources.get_num_free_blocks() == 32


# -- token budget -------------------------------------------------------------------------------------------


def make_loop(max_num_tokens: int, num_blocks: int = 64, **options: Any) -> ExecutorLoop:
    resources = make_resources(num_blocks, max_num_tokens=max_num_tokens, enable_chunked_prefill=True, **options)
    chunking = ContextChunkingConfig(ChunkingPolicy.FIRST_COME_FIRST_SERVED, TOKENS_PER_BLOCK)
    policy = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    return ExecutorLoop(CapacityScheduler(16, policy), MicroBatchScheduler(chunking), resources)


def warm_loop(**options: Any) -> ExecutorLoop:
    """A loop of 12 tokens a step, with a prompt of 32 tokens in the cache."""
    loop = make_loop(12, **options)
    loop.add([make_request(1, 32, max_new_tokens=1)])
    loop.run(10)
    return loop


def test_a_batch_with_less_reuse_than_estimated_is_trimmed_from_its_end() -> None:
    loop = warm_loop()
    cached, fresh = make_request(2, 32, max_new_tokens=2), LlmRequest(3, range(100, 108), 2)
    loop.add([cached, fresh])
    # Both fit by the estimate: 28 of 32 tokens are cached. Then the cache is lost.
    batch = loop.step(between=loop.kv_cache.impl.reset_reuse_state)
    assert sorted(ids(batch.context_requests)) == [2, 3]
    assert loop.last_num_tokens <= 12
    assert cached.prepopulated_prompt_len == 0
    assert 0 < loop.computed[2] < 32
    assert 0 < loop.computed[3] <= 8
    before = dict(loop.computed)
    loop.step()
    assert loop.computed[2] > before[2] or loop.computed[3] > before[3]
    loop.run(20)
    assert (loop.computed[2], loop.computed[3]) == (32, 8)


def test_a_batch_within_the_budget_stays_as_it_is() -> None:
    loop = warm_loop()
    loop.add([make_request(2, 32, max_new_tokens=2), LlmRequest(3, range(100, 108), 2)])
    loop.step()
    # All but the last token of the prompt and the 8 fresh ones.
    assert (loop.computed[2], loop.computed[3]) == (1, 8)


def test_without_chunked_prefill_nothing_is_cut_and_a_warning_given(caplog: pytest.LogCaptureFixture) -> None:
    resources = make_resources(max_num_tokens=10)
    requests = [make_request(1, 8), make_request(2, 8)]
    batch = batch_of(requests)
    resources.prepare_resources(batch)
    with caplog.at_level(logging.WARNING):
        resources.fit_token_budget(batch)
    assert [request.context_chunk_size for request in requests] == [8, 8]
    assert "computes 16 tokens, max_num_tokens is 10; chunks cannot be shortened" in caplog.text


def test_every_chunk_keeps_a_block_end_and_at_least_a_token(caplog: pytest.LogCaptureFixture) -> None:
    resources = make_resources(max_num_tokens=5, enable_chunked_prefill=True)
    requests = [make_request(1, 8), LlmRequest(2, range(50, 57), 2)]
    batch = batch_of(requests)
    resources.prepare_resources(batch)
    resources.fit_token_budget(batch)
    assert [request.context_chunk_size for request in requests] == [4, 4]
    assert ids(batch.context_requests_chunking) == [1, 2]
    assert "the batch computes 8 tokens, max_num_tokens is 5" in caplog.text


def test_requests_that_must_keep_their_chunk_are_passed_over() -> None:
    resources = make_resources(
        max_num_tokens=12, enable_chunked_prefill=True, must_keep_chunk=lambda request: request.request_id == 2
    )
    requests = [make_request(1, 8), LlmRequest(2, range(50, 58), 2)]
    batch = batch_of(requests)
    resources.prepare_resources(batch)
    resources.fit_token_budget(batch)
    assert [request.context_chunk_size for request in requests] == [4, 8]


def test_drafts_go_before_prompt_tokens_when_they_are_enough() -> None:
    resources = make_resources(max_num_tokens=9, enable_chunked_prefill=True)
    request = make_request(1, 8, num_draft_tokens=3)
    batch = batch_of([request])
    resources.prepare_resources(batch)
    resources.fit_token_budget(batch)
    assert (request.context_chunk_size, request.num_draft_tokens) == (8, 1)
    assert count_step_tokens(batch) == 9


def test_generating_requests_and_remote_prompts_are_not_trimmed() -> None:
    resources = make_resources(max_num_tokens=6, enable_chunked_prefill=True)
    generating = make_request(1, 4)
    resources.prepare_resources(batch_of([generating]))
    finish_prompt(generating)
    generating.set_num_draft_tokens(1)
    remote = make_request(2, 16, state=LlmRequestState.DISAGG_GENERATION_INIT)
    context = LlmRequest(3, range(50, 58), 2)
    batch = batch_of([context, remote], [generating])
    resources.prepare_resources(batch)
    resources.fit_token_budget(batch)
    assert (context.context_chunk_size, remote.context_chunk_size, generating.num_draft_tokens) == (4, 16, 1)


# -- budgets ------------------------------------------------------------------------------------------------


class SparseResourceManager(KVCacheResourceManager):
    """Stands for a manager whose sequences hold fewer blocks than they have tokens."""


@pytest.mark.parametrize(
    ("options", "applies"),
    [
        ({}, True),
        ({"cache_type": CacheType.CROSS, "enable_block_reuse": False}, True),
        ({"cache_type": CacheType.SELFKONLY}, False),
        ({"windows": [16]}, False),
        ({"windows": [16, WINDOW]}, False),
        (
            {
                "windows": [RECURRENT_STATES, WINDOW],
                "enable_partial_reuse": False,
                "linear_attention_metadata": LinearAttentionMetadata(),
            },
            False,
        ),
    ],
)
def test_one_pair_of_numbers_is_given_only_where_it_decides(options: dict[str, Any], applies: bool) -> None:
    resources = make_resources(**options)
    request = make_request(1, 8, encoder_tokens=range(5))
    assert resources.kv_block_budget_applies() is applies
    assert (resources.get_request_kv_block_budget(request) is not None) is applies


def test_subclasses_must_say_themselves_that_the_numbers_decide() -> None:
    resources = SparseResourceManager(make_manager())
    assert not resources.kv_block_budget_applies()
    assert resources.get_request_kv_block_budget(make_request(1)) is None


def test_the_budget_of_a_request_counts_beams_extra_slots_and_primary_blocks_only() -> None:
    resources = make_resources(8, num_secondary=50, num_extra_kv_tokens=1, draft_token_reserve=2)
    # 2 full blocks of the prompt; 1 + 4 + 1 + 2 tokens behind them take 2 blocks of each beam.
    request = make_request(1, 9, max_new_tokens=4, beam_width=3)
    assert resources.get_request_kv_block_budget(request) == (2 + 2 * 3, 8)


def test_the_budget_of_a_cross_cache_is_the_encoder_output(caplog: pytest.LogCaptureFixture) -> None:
    resources = make_resources(8, cache_type=CacheType.CROSS, enable_block_reuse=False)
    assert resources.get_request_kv_block_budget(make_request(1, 9, encoder_tokens=range(5))) == (2, 8)
    assert resources.get_request_kv_block_budget(make_request(1, 9)) is None
    assert "request 1 has no encoder output length" in caplog.text


@pytest.mark.parametrize(
    ("options", "num_fitting"),
    [({}, 12), ({"num_extra_kv_tokens": 4}, 8), ({"windows": [16, WINDOW]}, 12), ({"windows": [16]}, 12)],
)
def test_what_can_never_fit_is_refused_with_the_numbers(options: dict[str, Any], num_fitting: int) -> None:
    resources = make_resources(5, **options)
    fitting = make_request(1, 8, max_new_tokens=num_fitting)
    resources.check_can_ever_fit(fitting)
    for policy in CapacitySchedulerPolicy:
        resources.check_can_ever_fit(fitting, CapacityScheduler(8, policy))
    with pytest.raises(OutOfBlocksError, match=r"request 1 .*needs 6 blocks.* has 5"):
        resources.check_can_ever_fit(make_request(1, 8, max_new_tokens=num_fitting + 1))


def test_a_sliding_window_is_enough_for_a_long_request_that_is_never_paused() -> None:
    resources = make_resources(5, windows=[16])
    request = make_request(1, 8, max_new_tokens=52)
    resources.check_can_ever_fit(request, CapacityScheduler(8, CapacitySchedulerPolicy.GUARANTEED_NO_EVICT))
    # Paused at its end, it would need 15 blocks to start again.
    with pytest.raises(OutOfBlocksError, match="needs 15 blocks"):
        resources.check_can_ever_fit(request, CapacityScheduler(8, CapacitySchedulerPolicy.MAX_UTILIZATION))
    with pytest.raises(OutOfBlocksError, match="needs 6 blocks"):
        resources.check_can_ever_fit(
            make_request(1, 24, max_new_tokens=1), CapacityScheduler(8, CapacitySchedulerPolicy.STATIC_BATCH)
        )


@pytest.mark.parametrize("more", [{"num_extra_kv_tokens": 2}, {"draft_token_reserve": 3}])
def test_a_window_does_not_leave_a_prompt_that_is_still_to_be_computed(more: dict[str, int]) -> None:
    resources = make_resources(40, windows=[16], enable_chunked_prefill=True, **more)
    request = make_request(1, 40, num_draft_tokens=more.get("draft_token_reserve", 0))
    request.set_context_chunk_size(20)
    sequence_window = None
    while request.context_remaining_length:
        batch = batch_of([request])
        resources.prepare_resources(batch)
        sequence_window = resources.impl.get_sequence(1).get_window(16)
        assert sequence_window.num_front_blocks_removed == 0
        request.move_to_next_context_chunk()
        if request.context_remaining_length:
            request.set_context_chunk_size(20)
        resources.update_resources(batch)
    request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
    request.add_new_token(500)
    resources.prepare_resources(batch_of([], [request]))
    assert sequence_window is not None
    assert sequence_window.num_front_blocks_removed >= 5
    check_invariants(resources.impl, {1: request})


def test_counts_of_blocks_and_tokens() -> None:
    resources = make_resources(8, num_secondary=3, num_extra_kv_tokens=2)
    assert resources.get_max_resource_count() == 8
    assert resources.get_num_free_blocks() == 8
    assert resources.get_num_available_tokens(1000) == 30
    assert resources.get_num_available_tokens(1000, max_num_draft_tokens=5) == 25
    assert resources.get_num_available_tokens(7) == 7
    assert resources.get_needed_resource_to_completion(make_request(1, 9, max_new_tokens=4, beam_width=2)) == 2 + 4


def test_with_several_windows_the_smallest_pool_counts_and_beside_recurrent_states_the_other() -> None:
    several = KVCacheResourceManager(
        KVCacheManager.from_arguments([1, 1], 1, 4, {16: (5, 0), 64: (9, 0)}, 4, 1, [16, 64], max_sequence_length=64)
    )
    assert (several.get_max_resource_count(), several.get_num_free_blocks()) == (5, 5)
    hybrid = KVCacheResourceManager(
        KVCacheManager.from_arguments(
            [1, 1],
            1,
            4,
            {RECURRENT_STATES: (3, 0), 64: (9, 0)},
            4,
            1,
            [RECURRENT_STATES, 64],
            max_sequence_length=64,
            enable_partial_reuse=False,
            linear_attention_metadata=LinearAttentionMetadata(),
        )
    )
    assert (hybrid.get_max_resource_count(), hybrid.get_num_free_blocks()) == (9, 9)


# -- dummies ------------------------------------------------------------------------------------------------


def test_dummies_hold_blocks_and_are_not_added_again() -> None:
    resources = make_resources(num_extra_kv_tokens=1)
    dummies = resources.add_dummy_requests([7, 8], token_nums=[4, 9])
    assert dummies is not None
    assert [resources.get_num_tokens(dummy) for dummy in dummies] == [5, 10]
    resources.prepare_resources(batch_of(dummies))
    assert [resources.get_num_tokens(dummy) for dummy in dummies] == [5, 10]
    for dummy in dummies:
        resources.free_resources(dummy)
    assert resources.get_num_free_blocks() == 32
    assert resources.probe_prefix_match_length([1] * 9) == 0


def test_generating_dummies_have_a_generated_token_and_their_drafts() -> None:
    resources = make_resources()
    dummies = resources.add_dummy_requests([7, 8], token_nums=[9, 1], is_gen=True, max_num_draft_tokens=3)
    assert dummies is not None
    assert [dummy.state for dummy in dummies] == [LlmRequestState.GENERATION_IN_PROGRESS] * 2
    assert [dummy.get_num_tokens() for dummy in dummies] == [9, 2]
    assert [resources.get_num_tokens(dummy) for dummy in dummies] == [12, 5]
    assert [dummy.num_draft_tokens for dummy in dummies] == [3, 3]


def test_a_dummy_freed_can_be_made_again_and_then_counts_as_new() -> None:
    resources = make_resources()
    (dummy,) = resources.add_dummy_requests([7]) or []
    resources.free_resources(dummy)
    again = make_request(7, 5)
    resources.prepare_resources(batch_of([again]))
    assert resources.get_num_tokens(again) == 5


def test_dummies_without_resources_hold_nothing() -> None:
    resources = make_resources()
    dummies = resources.add_dummy_requests([7], token_nums=[9], prepare_resource=False)
    assert dummies is not None
    assert resources.get_num_free_blocks() == 32
    resources.prepare_resources(batch_of(dummies))
    assert resources.get_num_tokens(dummies[0]) == 9


def test_no_dummies_without_a_free_block_and_nothing_is_kept_when_room_runs_out() -> None:
    resources = make_resources(3, num_extra_kv_tokens=1)
    with pytest.raises(OutOfBlocksError):
        resources.add_dummy_requests([7, 8], token_nums=[8, 4])
    assert resources.get_num_free_blocks() == 3
    assert not resources.impl.sequences
    resources.prepare_resources(batch_of([make_request(1, 11)]))
    assert resources.add_dummy_requests([7]) is None


def test_beams_and_encoder_lengths_of_dummies() -> None:
    resources = make_resources(cache_type=CacheType.CROSS, enable_block_reuse=False)
    dummies = resources.add_dummy_requests([7], max_beam_width=2, encoder_output_lens=[6])
    assert dummies is not None
    assert dummies[0].beam_width == 2
    assert resources.get_num_tokens(dummies[0]) == 6
    with pytest.raises(InvalidInputError, match="1 token numbers and 2 encoder lengths for 2 dummy requests"):
        resources.add_dummy_requests([8, 9], token_nums=[1])


# -- block tables -------------------------------------------------------------------------------------------


def test_table_rows_follow_slots_which_differ_from_ids_after_an_offload() -> None:
    resources = make_resources(3, num_secondary=3)
    first = make_request(1, 12)
    resources.prepare_resources(batch_of([first]))
    finish_prompt(first)
    resources.free_resources(first)
    second = LlmRequest(2, range(100, 108), 2)
    resources.prepare_resources(batch_of([second]))
    rows = resources.get_batch_cache_indices([2])
    block_ids = resources.impl.get_cache_block_ids(2, WINDOW)[0]
    assert block_ids != rows[0]
    assert all(0 <= slot < 3 for slot in rows[0])
    pool_indices = [resources.impl.block_manager.get_block_by_id(i, WINDOW).memory_pool_block_index for i in block_ids]
    assert rows == [pool_indices]
    assert resources.get_cache_indices(second) == rows[0]


def test_rows_of_beams_start_with_beam_0_and_can_be_cut() -> None:
    resources = make_resources()
    request = make_request(1, 6, beam_width=3)
    resources.prepare_resources(batch_of([request]))
    beams = resources.impl.get_cache_block_ids(1, WINDOW)
    row = [*beams[0], beams[1][-1], beams[2][-1]]
    assert resources.get_batch_cache_indices([1], beam_width=3) == [row]
    assert resources.get_batch_cache_indices([1], beam_width=3, num_blocks_per_seq=[2]) == [row[:2]]
    with pytest.raises(InvalidInputError, match="3 beams, the table is asked for 1"):
        resources.get_batch_cache_indices([1])


def test_the_window_of_a_table_is_given_or_that_of_a_layer() -> None:
    resources = make_resources(windows=[16, WINDOW])
    resources.prepare_resources(batch_of([make_request(5, 8)]))
    resources.prepare_resources(batch_of([make_request(1, 8)]))
    by_window = [resources.get_batch_cache_indices([1], window_size=window) for window in (16, WINDOW)]
    assert [resources.get_batch_cache_indices([1], layer_idx=layer) for layer in (0, 1)] == by_window
    with pytest.raises(InvalidInputError, match=r"windows \[16, 64\]; say which"):
        resources.get_batch_cache_indices([1])
    with pytest.raises(UnknownIdError, match="layer 2 is not among 2 layers"):
        resources.get_batch_cache_indices([1], layer_idx=2)


# -- statistics, events, settings, end --------------------------------------------------------------------------


def test_events_and_statistics_come_through() -> None:
    config = KvCacheConfig(tokens_per_block=4, event_buffer_max_size=100, host_cache_size=4 * 16)
    model = ModelConfig(num_layers=2, num_kv_heads_per_layer=1, size_per_head=1, dtype="int8", max_sequence_length=64)
    scheduler = SchedulerConfig(max_batch_size=8, max_num_tokens=32, enable_chunked_prefill=True)
    resources = KVCacheResourceManager.from_config(config, model, scheduler, CacheMemory(32 * 16, 4 * 16))
    assert resources.get_max_resource_count() == 32
    assert resources.get_kv_cache_stats().secondary_max_num_blocks == 4
    assert resources.max_num_tokens == 32
    assert resources.impl.chunk_size == 32
    request = make_request(1, 9)
    resources.prepare_resources(batch_of([request]))
    request.move_to_next_context_chunk()
    resources.update_resources(batch_of([request]))
    resources.flush_iteration_events()
    assert [type(event.data).__name__ for event in resources.get_latest_events(0)] == [
        "KVCacheCreatedData",
        "KVCacheStoredData",
    ]
    assert resources.get_kv_cache_stats().missed_blocks == 3
    assert resources.get_iteration_stats()[64].iter_missed_blocks == 3


def test_slots_behind_the_last_token_belong_to_the_longest_sequence() -> None:
    model = ModelConfig(num_layers=1, num_kv_heads_per_layer=1, size_per_head=1, dtype="int8", max_sequence_length=16)
    resources = KVCacheResourceManager.from_config(
        KvCacheConfig(tokens_per_block=4),
        model,
        SchedulerConfig(),
        CacheMemory(10 * 8, 0),
        num_extra_kv_tokens=1,
        draft_token_reserve=3,
    )
    assert list(resources.impl.window_sizes_metadata) == [20]


def test_reserves_of_the_manager_are_kept_unless_others_are_given() -> None:
    manager = make_manager()
    manager.set_spec_decoding_budget(1, 2)
    KVCacheResourceManager(manager)
    assert (manager.num_extra_kv_tokens, manager.draft_token_reserve) == (1, 2)
    KVCacheResourceManager(manager, draft_token_reserve=5)
    assert (manager.num_extra_kv_tokens, manager.draft_token_reserve) == (1, 5)


def test_negative_reserves_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="draft_token_reserve is -1; give at least 0"):
        make_resources(draft_token_reserve=-1)


def test_shutdown_gives_everything_back() -> None:
    resources = make_resources()
    resources.prepare_resources(batch_of([make_request(1, 9)]))
    resources.add_dummy_requests([7])
    resources.shutdown()
    resources.shutdown()
    assert not resources.impl.sequences
    assert resources.get_num_free_blocks() == 32
