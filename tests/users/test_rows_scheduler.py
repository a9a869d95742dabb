"""Rows 10 to 15, 19, 23 to 26 and 46 of docs/users_rows.md, tried on the schedulers and on whole runs of their loop."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from tests.builders import WINDOW, add, make_kv_cache_manager, make_request, num_free, prefill, serve
from tests.replay.scheduler_loop.loop_runs import POLICIES, make_config, run_loop
from tests.replay.trace_builders import random_requests, token_request
from trtkv.errors import OutOfBlocksError
from trtkv.inspection.invariants import check_invariants
from trtkv.nano import Scheduler, SchedulerConfig, Sequence
from trtkv.records.llm_request import LlmRequest
from trtkv.replay.scheduler_loop.arrival_queue import ArrivalMode
from trtkv.replay.scheduler_loop.scheduler_loop import SchedulerLoop
from trtkv.scheduler.capacity_scheduler import CapacityScheduler
from trtkv.scheduler.scheduler_config import CapacitySchedulerPolicy

MAX_UTILIZATION = CapacitySchedulerPolicy.MAX_UTILIZATION
GUARANTEED_NO_EVICT = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
STATIC_BATCH = CapacitySchedulerPolicy.STATIC_BATCH

LATER = 10**6
"""A time by which the first requests of a test are done, in nanoseconds."""


def ids(requests: Iterable[LlmRequest]) -> list[int]:
    return [request.request_id for request in requests]


def run(requests: Any, policy: CapacitySchedulerPolicy, num_blocks: int, **settings: Any) -> Any:
    """A run with arrivals by the trace and the invariants checked after every step."""

    def check(loop: SchedulerLoop) -> None:
        check_invariants(loop.manager, {request.request_id: request for request in loop.active_requests})

    config = make_config(policy, num_blocks=num_blocks, arrivals=ArrivalMode.TRACE, **settings)
    return run_loop(requests, config, after_step=check)


# -- capacity ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_row_10_a_request_larger_than_the_pool_does_not_keep_the_others_waiting(policy):
    """It fits the model but not the pool, so the scheduler waits for it without end."""
    requests = [token_request(0, range(25), 1), token_request(1, range(50, 60), 3), token_request(2, range(5), 30)]
    result = run(requests, policy, num_blocks=6)
    assert [refusal.request_id for refusal in result.counts.refusals] == [0, 2]
    assert all("the whole pool has 6" in refusal.reason for refusal in result.counts.refusals)
    assert [(record.request_id, record.generated_tokens) for record in result.records] == [(1, 3)]


@pytest.mark.parametrize("policy", POLICIES)
def test_row_11_a_request_that_fills_the_pool_finds_its_prefix(policy):
    """Every free block is cached content, and the request's own allocation evicts the prefix it would have hit."""
    requests = [
        token_request(0, range(9), 1),
        token_request(1, range(50, 63), 1, timestamp=LATER),  # 2 + 3 blocks are cached then
        token_request(2, [*range(8), *range(80, 95)], 1, timestamp=2 * LATER),  # 6 blocks, as many as there are
    ]
    result = run(requests, policy, num_blocks=6)
    assert result.records[2].found_tokens == 8
    assert result.counts.most_used_blocks == 6


@pytest.mark.parametrize("seed", range(6))
def test_row_12_no_more_blocks_are_in_use_than_there_are(seed):
    """Storing and releasing a sequence in the wrong order gave a utilisation of 135 %."""
    requests = random_requests(random.Random(seed), 12, max_output=12)
    result = run(requests, POLICIES[seed % 3], num_blocks=14)
    assert all(0 < sample.used_blocks <= 14 for sample in result.utilisation.samples)
    assert result.stats.used_num_blocks == 0
    assert next(rate.value for rate in result.rates if rate.name == "block_utilisation") <= 1


@pytest.mark.parametrize("policy", [MAX_UTILIZATION, GUARANTEED_NO_EVICT])
def test_row_13_a_hit_on_a_free_block_is_no_extra_room(policy):
    """A cached block that nobody holds counts as free and as found: the request is let in and finds no block."""
    requests = [
        token_request(0, range(9), 1),
        token_request(1, [70, 71], 3, timestamp=LATER),  # holds one block for three steps
        token_request(2, [*range(8), *range(80, 95)], 1, timestamp=LATER + 1),  # 6 blocks, 2 of them cached and free
    ]
    result = run(requests, policy, num_blocks=6)
    small, large = result.records[1:]
    assert large.admitted_ns == small.finished_ns
    assert (large.found_tokens, result.counts.withdrawals) == (8, 0)


def test_row_14_pinned_blocks_are_credited_once_and_are_no_room():
    """Matched blocks counted as room although pinned, and subtracted again when the request claimed them."""
    manager = make_kv_cache_manager(8)
    first = prefill(manager, make_request(1, [*range(8), 0]))
    manager.store_blocks_for_reuse(1, first, pin_blocks=True)
    manager.remove_sequence(1, first)
    assert num_free(manager) == 6
    scheduler = CapacityScheduler(4, GUARANTEED_NO_EVICT)
    fitting = make_request(2, [*range(8), *range(60, 80)], max_new_tokens=4)  # 8 blocks, 2 of them pinned
    assert ids(scheduler.schedule([fitting], manager).fitting_requests) == [2]
    too_large = make_request(3, [*range(8), *range(60, 80)], max_new_tokens=5)
    assert ids(scheduler.schedule([too_large], manager).fitting_requests) == []
    add(manager, fitting)
    assert num_free(manager) == 6 - 5  # the block of the new tokens comes later


def test_row_15_pausing_a_request_frees_only_what_nobody_else_holds():
    """Two requests share their first blocks, and these are counted as room twice when one of them is to go."""
    manager = make_kv_cache_manager(6)
    prefix = [*range(8)]
    running = [prefill(manager, make_request(index, [*prefix, index])) for index in (1, 3)]
    assert num_free(manager) == 6 - (2 + 1 + 1)
    scheduler = CapacityScheduler(4, MAX_UTILIZATION)
    too_large = make_request(2, range(50, 66), max_new_tokens=1)  # 4 blocks; pausing 3 gives 1 to the 2 free ones
    result = scheduler.schedule([running[0], too_large, running[1]], manager)
    assert (ids(result.fitting_requests), ids(result.paused_requests)) == ([1, 3], [])
    fitting = make_request(2, range(50, 61), max_new_tokens=1)  # 3 blocks
    result = scheduler.schedule([running[0], fitting, running[1]], manager)
    assert (ids(result.fitting_requests), ids(result.paused_requests)) == ([1, 2], [3])


# -- matching, boundaries, recompute ----------------------------------------------------------------


@pytest.mark.parametrize("partial_reuse", [True, False])
@pytest.mark.parametrize("length", [7, 8, 9, 11, 12, 13])
@pytest.mark.parametrize("policy", POLICIES)
def test_row_19_a_prompt_seen_before_leaves_something_to_compute_and_not_too_much(policy, length, partial_reuse):
    """A full hit leaves no token for the forward pass, or recomputes far more than the last one."""
    prompt = range(length)
    requests = [token_request(0, prompt, 1), token_request(1, prompt, 1, timestamp=LATER)]
    second = run(requests, policy, num_blocks=12, partial_reuse=partial_reuse).records[1]
    # The last token is never stored by the first request, which generates only one.
    assert second.found_tokens == (length - 1 if partial_reuse else (length - 1) // 4 * 4)
    assert second.computed_tokens == length - second.found_tokens >= 1


@pytest.mark.parametrize("chunk_unit", [None, 4])
@pytest.mark.parametrize("policy", [MAX_UTILIZATION, GUARANTEED_NO_EVICT])
def test_row_23_of_two_equal_prompts_at_once_one_is_computed(policy, chunk_unit):
    """Two requests with the same uncached prefix come in one step, and both compute it."""
    requests = [token_request(index, range(13), 3) for index in range(2)]
    result = run(requests, policy, num_blocks=12, chunk_unit=chunk_unit, max_num_tokens=16)
    first, second = result.records
    assert second.admitted_ns == first.first_token_ns
    assert (second.found_tokens, second.computed_tokens) == (12, 1)
    assert result.counts.deferrals == 1


def test_row_23_duplicates_of_a_static_batch_make_no_second_node():
    """A static batch does not hold back; both copies are computed, and the tree keeps one of each block."""
    requests = [token_request(index, range(13), 3) for index in range(2)]
    result = run(requests, STATIC_BATCH, num_blocks=12)  # run() checks that no two nodes have the same key
    assert result.counts.context_tokens == 26
    assert result.counts.deferrals == 0


def test_row_24_blocks_are_credited_when_held_and_tokens_whenever_cached():
    """The block budget takes off all reusable blocks, or the token budget only those that are held."""
    manager = make_kv_cache_manager(16)
    serve(manager, make_request(1, [*range(16), 0]))  # four blocks cached
    prefill(manager, make_request(2, [*range(8), 99]))  # holds the first two of them
    request = make_request(3, [*range(16), *range(60, 64)], max_new_tokens=1)
    assert manager.get_needed_blocks_one_step(request, False, WINDOW) == 5 - 2
    assert request.estimated_reusable_tokens == 16


def test_row_24_an_estimate_does_not_outlive_the_way_it_was_made():
    """The same request is sized again where nothing can be reused, and the old estimate still shortens its step."""
    manager = make_kv_cache_manager(16)
    serve(manager, make_request(1, [*range(16), 0]))
    request = make_request(2, [*range(16), *range(60, 64)], max_new_tokens=1)
    manager.get_needed_blocks_one_step(request, False, WINDOW)
    assert request.estimated_reusable_tokens == 16
    without_reuse = make_kv_cache_manager(16, enable_block_reuse=False)
    assert without_reuse.get_needed_blocks_one_step(request, False, WINDOW) == 5
    assert request.estimated_reusable_tokens == 0
    manager.get_remaining_blocks_to_completion(request, WINDOW)
    assert request.estimated_reusable_tokens == 16
    add(manager, request)
    assert request.estimated_reusable_tokens == 0


def test_row_25_a_block_is_taken_for_the_first_token_in_it_and_hashed_with_its_last():
    """Appending at a block boundary: one token too early or too late."""
    scheduler = Scheduler(SchedulerConfig(num_kvcache_blocks=4, kvcache_block_size=4))
    sequence = Sequence(range(3), block_size=4)
    scheduler.add(sequence)
    held, hashed = [], []
    for _ in range(6):
        seqs, is_prefill = scheduler.schedule()
        held.append(len(sequence.block_table))
        scheduler.postprocess(seqs, [9] * len(seqs), is_prefill)
        hashed.append(len(scheduler.block_manager.hash_to_block_id))
    # Tokens whose state is computed by each step: 3, 4, 5, 6, 7, 8.
    assert held == [1, 1, 2, 2, 2, 2]
    assert hashed == [0, 1, 1, 1, 1, 2]


@pytest.mark.parametrize("policy", POLICIES)
def test_row_25_a_lone_request_that_cannot_grow_is_an_error_not_a_crash(policy):
    """The pool is exactly the prompt; decoding finds no block, nothing else runs, and an assertion fails."""
    scheduler = Scheduler(SchedulerConfig(num_kvcache_blocks=2, kvcache_block_size=4))
    scheduler.add(Sequence(range(8), block_size=4))
    seqs, is_prefill = scheduler.schedule()
    scheduler.postprocess(seqs, [9], is_prefill)
    with pytest.raises(OutOfBlocksError, match="needs one more block"):
        scheduler.schedule()
    result = run([token_request(0, range(8), 2)], policy, num_blocks=2)
    assert "the whole pool has 2" in result.counts.refusals[0].reason
    assert run([token_request(0, range(7), 1)], policy, num_blocks=2).counts.finished_requests == 1


def test_row_26_a_paused_request_finds_its_blocks_and_gets_no_credit_for_them():
    """It loses its hashes and starts again for ever; or its cached blocks count as room and it is let in too early."""
    requests = [token_request(0, [1] * 7, 6), token_request(1, [2] * 7, 6)]
    result = run(requests, MAX_UTILIZATION, num_blocks=5)  # two requests of three blocks each
    first, paused = result.records
    assert paused.recompute_found_tokens == 8
    assert result.counts.recompute.admissions == paused.pauses == 1
    # Two blocks are free while the first one holds three; the two cached ones are these, so a third is missing.
    assert paused.finished_ns > first.finished_ns
    assert result.counts.steps == 10
    assert result.counts.withdrawals == 0


@pytest.mark.parametrize("num_blocks", [10, 11, 13])
def test_row_26_many_requests_that_take_turns_all_end(num_blocks):
    """With room for little more than the largest request everybody pauses everybody, and nobody gets anywhere."""
    requests = [token_request(index, [index] * 11, 25, timestamp=index) for index in range(6)]
    result = run(requests, MAX_UTILIZATION, num_blocks=num_blocks)
    assert result.counts.pauses > 0
    assert [record.generated_tokens for record in result.records] == [25] * 6
    finished = [record.finished_ns for record in result.records]
    assert finished == sorted(finished)  # the oldest is never held up


# -- statistics -------------------------------------------------------------------------------------


def test_row_46_hits_of_paused_requests_are_counted_apart():
    """Prompts of random data show a hit rate of 32 %, because paused requests find their own blocks."""
    rng = random.Random(46)
    requests = [token_request(index, [rng.randrange(10**9) for _ in range(11)], 25) for index in range(6)]
    result = run(requests, MAX_UTILIZATION, num_blocks=13)
    rates = {rate.name: rate for rate in result.rates}
    assert result.counts.pauses > 0
    assert rates["token_hit_rate"].numerator == rates["block_hit_rate"].numerator == 0
    assert rates["token_hit_rate"].denominator == sum(request.input_length for request in requests)
    assert rates["recompute_token_hit_rate"].numerator > 0
    assert result.stats.reused_blocks == rates["recompute_block_hit_rate"].numerator  # what a plain counter shows
