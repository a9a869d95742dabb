"""The scheduler loop, followed by hand: blocks of 4 tokens; a step takes 1000 + 10 c + 5 g + 1 k ns."""

from __future__ import annotations

import random

import pytest

from tests.replay.scheduler_loop.loop_runs import POLICIES, make_config, run_loop
from tests.replay.trace_builders import random_requests, token_request
from trtkv.errors import ConfigurationError, LogicError
from trtkv.inspection.invariants import check_invariants
from trtkv.replay.config import ReplayConfig
from trtkv.replay.scheduler_loop.arrival_queue import ArrivalMode
from trtkv.replay.scheduler_loop.loop_backend import DirectBackend
from trtkv.replay.scheduler_loop.loop_config import LoopConfig
from trtkv.replay.scheduler_loop.scheduler_loop import SchedulerLoop
from trtkv.scheduler.capacity_scheduler import CapacityScheduleResult
from trtkv.scheduler.scheduler_config import CapacitySchedulerPolicy, ChunkingPolicy, ContextChunkingConfig
from trtkv.traces.outputs import generated_tokens

MAX_UTILIZATION = CapacitySchedulerPolicy.MAX_UTILIZATION
GUARANTEED_NO_EVICT = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
STATIC_BATCH = CapacitySchedulerPolicy.STATIC_BATCH


def rates_of(result):
    return {rate.name: (rate.numerator, rate.denominator) for rate in result.rates}


# -- time -------------------------------------------------------------------------------------------


def test_one_request_takes_the_time_of_its_steps():
    result = run_loop([token_request(0, range(10), 3)], make_config(num_blocks=10))
    prompt_step, second, third = 1000 + 10 * 10, 1000 + 5 + 11, 1000 + 5 + 12
    counts, record = result.counts, result.records[0]
    assert (counts.steps, counts.context_steps, counts.generation_steps) == (3, 1, 2)
    assert (record.admitted_ns, record.first_token_ns) == (0, prompt_step)
    assert record.finished_ns == counts.end_ns == prompt_step + second + third
    assert (counts.context_tokens, counts.generated_tokens, counts.cached_tokens) == (10, 3, 11 + 12)


def test_a_prompt_in_chunks_reads_the_chunks_before():
    config = make_config(num_blocks=10, chunk_unit=4, max_num_tokens=4)
    result = run_loop([token_request(0, range(10), 1)], config)
    assert result.counts.end_ns == (1000 + 40) + (1000 + 40 + 4) + (1000 + 20 + 8)
    assert (result.records[0].prefill_steps, result.records[0].computed_tokens) == (3, 10)


def test_requests_of_one_step_share_its_base_time():
    requests = [token_request(index, [index] * 5, 2) for index in range(3)]
    result = run_loop(requests, make_config())
    assert result.counts.end_ns == (1000 + 3 * 50) + (1000 + 3 * 5 + 3 * 6)


def test_a_request_that_arrives_during_a_step_waits_for_its_end():
    requests = [token_request(0, range(10), 5, timestamp=7), token_request(1, [50], 1, timestamp=107)]
    result = run_loop(requests, make_config(arrivals=ArrivalMode.TRACE))
    first, second = result.records
    assert first.arrival_ns == 0
    assert (second.arrival_ns, second.admitted_ns, second.queueing_ns) == (100, 1100, 1000)


def test_time_jumps_to_the_next_arrival_when_nothing_is_left_to_do():
    requests = [token_request(0, [1, 2], 1), token_request(1, [3, 4], 1, timestamp=1_000_000)]
    result = run_loop(requests, make_config(arrivals=ArrivalMode.TRACE))
    assert [record.admitted_ns for record in result.records] == [0, 1_000_000]
    assert result.counts.end_ns == 1_000_000 + 1020
    assert rates_of(result)["busy_share"] == (2040 / 1e9, 1_001_020 / 1e9)


def test_arrival_decides_the_order_not_the_place_in_the_trace():
    requests = [token_request(0, [1] * 5, 1, timestamp=50), token_request(1, [2] * 5, 1, timestamp=0)]
    result = run_loop(requests, make_config(arrivals=ArrivalMode.TRACE))
    assert [record.request_id for record in result.records] == [1, 0]
    assert [record.admitted_ns for record in result.records] == [0, 1050]


def test_everybody_arrives_at_once_with_asap_whatever_the_trace_says():
    requests = [token_request(index, [index] * 5, 1, timestamp=10**9 * index) for index in range(4)]
    result = run_loop(requests, make_config())
    assert (result.counts.steps, {record.admitted_ns for record in result.records}) == (1, {0})


# -- limits -----------------------------------------------------------------------------------------


def test_no_more_requests_than_the_batch_size_are_in_a_step():
    requests = [token_request(index, [index] * 5, 1) for index in range(7)]
    result = run_loop(requests, make_config(max_batch_size=3))
    assert [record.admitted_ns for record in result.records] == [0] * 3 + [1150] * 3 + [2300]
    assert rates_of(result)["batch_utilisation"] == (7, 9)
    samples = result.utilisation.samples
    assert [(sample.active_requests, sample.waiting_requests) for sample in samples] == [(3, 4), (3, 1), (1, 0)]


def test_no_more_tokens_than_the_limit_are_computed_in_a_step():
    requests = [token_request(index, [index] * 5, 1) for index in range(4)]
    result = run_loop(requests, make_config(max_num_tokens=11))
    assert [record.admitted_ns for record in result.records] == [0, 0, 1100, 1100]
    assert rates_of(result)["token_utilisation"] == (20, 22)


def test_equal_progress_lets_prompts_advance_together():
    requests = [token_request(0, range(16), 1), token_request(1, range(50, 66), 1)]
    for policy, steps in (("equal_progress", (4, 4)), ("first_come_first_served", (2, 2)), ("force_chunk", (4, 4))):
        result = run_loop(requests, make_config(chunk_unit=4, max_num_tokens=8, chunk_policy=policy))
        assert tuple(record.prefill_steps for record in result.records) == steps
        apart = result.records[1].first_token_ns - result.records[0].first_token_ns
        assert (apart > 0) == (policy == "first_come_first_served")


# -- sharing ----------------------------------------------------------------------------------------


def test_a_second_request_with_the_same_prefix_is_held_back_until_it_is_cached():
    requests = [token_request(0, [*range(9)], 4), token_request(1, [*range(8), 77], 4)]
    result = run_loop(requests, make_config())
    first, second = result.records
    assert result.counts.deferrals == 1
    assert (first.admitted_ns, second.admitted_ns) == (0, first.first_token_ns)
    assert (second.found_tokens, second.computed_tokens) == (8, 1)
    assert result.counts.first.shared_tokens == 8
    assert rates_of(result)["in_flight_share"] == (8, 8)


def test_static_batch_computes_the_same_prefix_twice_in_one_batch():
    requests = [token_request(0, [*range(9)], 4), token_request(1, [*range(8), 77], 4)]
    result = run_loop(requests, make_config(STATIC_BATCH))
    assert (result.counts.deferrals, result.counts.first.found_tokens, result.counts.context_tokens) == (0, 0, 18)


def test_static_batch_waits_for_the_last_of_its_batch():
    requests = [token_request(0, [1] * 5, 9), token_request(1, [2] * 5, 2), token_request(2, [3] * 5, 1)]
    static = run_loop(requests, make_config(STATIC_BATCH, max_batch_size=2))
    continuous = run_loop(requests, make_config(GUARANTEED_NO_EVICT, max_batch_size=2))
    assert static.records[2].admitted_ns == static.records[0].finished_ns
    assert continuous.records[2].admitted_ns == continuous.records[1].finished_ns < continuous.records[0].finished_ns


def test_what_a_finished_request_leaves_is_found_but_is_not_in_flight():
    requests = [token_request(0, [*range(9)], 1), token_request(1, [*range(9)], 1, timestamp=10**6)]
    result = run_loop(requests, make_config(arrivals=ArrivalMode.TRACE))
    assert (result.records[1].found_tokens, result.counts.first.shared_tokens) == (8, 0)
    assert rates_of(result)["in_flight_share"] == (0, 8)


# -- pauses -----------------------------------------------------------------------------------------


def run_with_a_pause(num_blocks: int = 5, **settings):
    """Two prompts of 7 tokens and 6 new ones each, 3 blocks in the end; both start, one must give way."""
    requests = [token_request(0, [1] * 7, 6), token_request(1, [2] * 7, 6)]
    return run_loop(requests, make_config(MAX_UTILIZATION, num_blocks=num_blocks, **settings))


def test_the_last_started_request_is_paused_and_finds_its_own_blocks_again():
    result = run_with_a_pause()
    kept, paused = result.records
    assert (kept.pauses, paused.pauses, result.counts.pauses) == (0, 1, 1)
    # Two tokens were generated when the third block was missing; 8 of its 9 tokens are in two whole cached blocks.
    assert (paused.recompute_prompt_tokens, paused.recompute_found_tokens) == (9, 8)
    assert (paused.computed_tokens, paused.recomputed_tokens) == (7 + 1, 0)
    # Six steps for the first; the other two steps, then from the seventh on four more.
    assert result.counts.steps == 10
    assert [record.generated_tokens for record in result.records] == [6, 6]


def test_hits_after_a_pause_are_not_mixed_with_first_hits():
    result = run_with_a_pause()
    rates = rates_of(result)
    assert rates["token_hit_rate"] == (0, 14)
    assert rates["block_hit_rate"] == (0, 4)
    assert rates["recompute_token_hit_rate"] == (8, 9)
    assert rates["recompute_block_hit_rate"] == (2, 3)
    assert (result.stats.reused_blocks, result.stats.missed_blocks) == (2, 5)


def test_tokens_whose_blocks_were_taken_meanwhile_are_computed_again():
    # With four blocks the one that goes on takes its third from the paused one, the last of its two cached ones.
    result = run_with_a_pause(num_blocks=4)
    paused = result.records[1]
    assert paused.pauses == 1
    assert (paused.recompute_prompt_tokens, paused.recompute_found_tokens) == (9, 4)
    assert paused.recomputed_tokens == 4
    assert rates_of(result)["recomputed_share"] == (4, 7 + 7 + 5)


def test_a_pause_in_the_middle_of_a_prompt_is_a_pause_too():
    # 0 holds one block of six and generates. In the second step 1 takes the other five and computes 4 of its 20
    # tokens; in the third 0 needs a second block. What 1 has computed is found when 0 is done, except for the last
    # token, which is never stored.
    requests = [token_request(0, [1] * 3, 6), token_request(1, [2] * 20, 1)]
    result = run_loop(requests, make_config(MAX_UTILIZATION, num_blocks=6, chunk_unit=4, max_num_tokens=5))
    assert [record.pauses for record in result.records] == [0, 1]
    paused = result.records[1]
    assert (paused.recompute_prompt_tokens, paused.recompute_found_tokens, paused.computed_tokens) == (20, 3, 4 + 17)
    assert paused.recomputed_tokens == 1


@pytest.mark.parametrize("policy", [GUARANTEED_NO_EVICT, STATIC_BATCH])
def test_the_other_policies_never_pause(policy):
    requests = [token_request(index, [index] * 7, 6) for index in range(6)]
    result = run_loop(requests, make_config(policy, num_blocks=5))
    assert result.counts.pauses == result.counts.recompute.admissions == 0
    assert result.counts.finished_requests == 6


# -- what is generated ------------------------------------------------------------------------------


def test_generated_tokens_do_not_depend_on_pauses():
    stored = {}

    class Watching(DirectBackend):
        def drop_request(self, request):
            stored[request.request_id] = request.get_tokens().tolist()

    requests = [token_request(0, [1] * 7, 6), token_request(1, [2] * 7, 6)]
    config = make_config(MAX_UTILIZATION, num_blocks=5)
    result = run_loop(requests, config, backend=Watching(config, requests))
    assert result.counts.pauses == 1
    assert stored == {
        request.index: [*request.tokens().tolist(), *generated_tokens(request.index, 6).tolist()]
        for request in requests
    }


def test_a_request_without_output_generates_one_token():
    result = run_loop([token_request(0, range(5), 0)], make_config())
    assert (result.records[0].output_tokens, result.records[0].generated_tokens, result.counts.steps) == (1, 1, 1)


# -- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_larger_than_the_pool_is_refused_at_once_with_the_numbers(policy):
    requests = [token_request(0, range(30), 20), token_request(1, range(8), 2), token_request(2, range(60, 100), 1)]
    result = run_loop(requests, make_config(policy, num_blocks=8))
    assert [refusal.request_id for refusal in result.counts.refusals] == [0, 2]
    assert "needs 13 blocks of 4 tokens" in result.counts.refusals[0].reason
    assert "the whole pool has 8" in result.counts.refusals[0].reason
    assert [record.request_id for record in result.records] == [1]
    assert (result.counts.finished_requests, result.counts.first.prompt_tokens) == (1, 8)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_prompt_longer_than_a_step_is_refused_unless_it_is_cut(policy):
    requests = [token_request(0, range(30), 2)]
    whole = run_loop(requests, make_config(policy, max_num_tokens=16))
    assert "max_num_tokens is 16" in whole.counts.refusals[0].reason
    cut = run_loop(requests, make_config(policy, max_num_tokens=16, chunk_unit=8))
    assert (len(cut.counts.refusals), cut.records[0].prefill_steps) == (0, 2)


def test_a_request_that_could_not_start_again_after_a_pause_is_refused():
    requests = [token_request(0, range(10), 8)]
    result = run_loop(requests, make_config(MAX_UTILIZATION, max_num_tokens=16))
    assert "start again with a prompt of 17 tokens" in result.counts.refusals[0].reason
    assert not run_loop(requests, make_config(MAX_UTILIZATION, max_num_tokens=17)).counts.refusals
    assert not run_loop(requests, make_config(GUARANTEED_NO_EVICT, max_num_tokens=16)).counts.refusals


# -- progress ---------------------------------------------------------------------------------------


class Idle(DirectBackend):
    """Schedules nobody."""

    def schedule_capacity(self, active):
        return CapacityScheduleResult([], [], [])


class Restless(DirectBackend):
    """Pauses everybody in every other step."""

    num_calls = 0

    def schedule_capacity(self, active):
        self.num_calls += 1
        if self.num_calls % 2:
            return super().schedule_capacity(active)
        return CapacityScheduleResult([], [], [r for r in active if r.request_id in self.manager.sequences])


def test_a_scheduler_that_chooses_nobody_is_a_fault_with_the_state_in_its_text():
    requests = [token_request(0, range(5), 3)]
    config = make_config(num_blocks=9)
    with pytest.raises(LogicError) as caught:
        run_loop(requests, config, backend=Idle(config, requests))
    for text in ("no active request can run", "step 0, 0 ns", "9 of 9 blocks free", "request 0: context_init, 0 of 5"):
        assert text in str(caught.value)


def test_work_that_leads_nowhere_is_noticed():
    requests = [token_request(0, range(12), 3)]
    config = make_config(num_blocks=9, chunk_unit=4, max_num_tokens=4, partial_reuse=False)

    class Forgetful(Restless):
        def set_time(self, now_ns):
            if self.num_calls % 2:
                self.manager.reset_reuse_state()

    with pytest.raises(LogicError, match=r"no request has advanced for \d+ steps"):
        run_loop(requests, config, backend=Forgetful(config, requests))


def test_a_long_recomputation_is_no_livelock():
    requests = [token_request(0, [1] * 3, 60), token_request(1, [2] * 200, 30)]
    config = make_config(MAX_UTILIZATION, num_blocks=62, chunk_unit=4, max_num_tokens=5, partial_reuse=False)
    result = run_loop(requests, config)
    assert result.counts.finished_requests == 2
    assert result.counts.pauses > 0


# -- all of it at random ----------------------------------------------------------------------------


def make_random_run(seed: int) -> tuple[list, LoopConfig]:
    rng = random.Random(seed)
    tokens_per_block = rng.choice([1, 2, 4, 8])
    requests = random_requests(
        rng, rng.randint(1, 14), max_length=rng.choice([10, 40]), max_output=rng.choice([1, 6, 20])
    )
    unit = tokens_per_block * rng.choice([1, 2])
    return requests, make_config(
        rng.choice(POLICIES),
        num_blocks=max(1, rng.choice([10, 20, 40, 60]) // tokens_per_block),
        tokens_per_block=tokens_per_block,
        chunk_unit=unit if rng.random() < 0.7 else None,
        chunk_policy=rng.choice(list(ChunkingPolicy)),
        max_num_tokens=rng.choice([16, 40, 64]),
        max_batch_size=rng.choice([1, 2, 4, 8]),
        arrivals=rng.choice(list(ArrivalMode)),
        host_tokens=rng.choice([0, 0, 20]),
        partial_reuse=rng.random() < 0.7,
        copy_on_partial_reuse=rng.random() < 0.7,
        windows=rng.choice([(None,), (None,), (None,), (8,), (None, 8)]),
    )


def check_step(loop: SchedulerLoop) -> None:
    check_invariants(loop.manager, {request.request_id: request for request in loop.active_requests})


@pytest.mark.parametrize("seed", range(60))
def test_every_request_ends_and_the_counts_add_up(seed):
    requests, config = make_random_run(seed)
    result = run_loop(requests, config, after_step=check_step)
    counts = result.counts
    assert counts.finished_requests + len(counts.refusals) == len(requests)
    assert all(record.generated_tokens == record.output_tokens for record in result.records)
    assert all(0 <= record.queueing_ns <= record.finished_ns for record in result.records)
    assert counts.generated_tokens == sum(record.output_tokens for record in result.records)
    assert counts.step_tokens - counts.context_tokens <= counts.generated_tokens - counts.finished_requests
    assert counts.context_tokens == sum(record.computed_tokens for record in result.records)
    assert counts.first.reused_blocks + counts.recompute.reused_blocks == result.stats.reused_blocks
    assert counts.first.missed_blocks + counts.recompute.missed_blocks == result.stats.missed_blocks
    assert counts.end_ns >= counts.busy_ns
    assert result.stats.used_num_blocks == 0
    assert all(0 <= (rate.value or 0) <= 1 for rate in result.rates if not rate.name.endswith("_per_second"))


@pytest.mark.parametrize("seed", range(8))
def test_without_limits_all_policies_serve_everybody_alike(seed):
    requests = random_requests(random.Random(seed), 12)
    results = [run_loop(requests, make_config(policy)) for policy in POLICIES]
    generated = [[(r.request_id, r.generated_tokens) for r in result.records] for result in results]
    assert generated[0] == generated[1] == generated[2]
    assert all(result.counts.first.prompt_tokens == sum(r.input_length for r in requests) for result in results)


# -- settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_batch_size": 0}, "max_batch_size is 0"),
        ({"max_num_tokens": 0}, "max_num_tokens is 0"),
        ({"chunking": ContextChunkingConfig(ChunkingPolicy.EQUAL_PROGRESS, 48)}, "not a multiple of the 32 tokens"),
        ({"chunking": ContextChunkingConfig(ChunkingPolicy.EQUAL_PROGRESS, 64), "max_num_tokens": 63}, "exceeds"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, words):
    with pytest.raises(ConfigurationError, match=words):
        LoopConfig(ReplayConfig(), **settings)


def test_equal_runs_give_equal_results():
    requests, config = make_random_run(3)
    assert run_loop(requests, config).counts == run_loop(requests, config).counts
