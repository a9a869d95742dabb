from __future__ import annotations

import random

import numpy as np
import pytest

from tests.replay.helpers import LoggingManager, loop_round_by_round, make_request
from trtkv.errors import ConfigurationError
from trtkv.replay.closed_loop.closed_loop import ClosedLoop, ReplayManager
from trtkv.replay.config import ReplayConfig
from trtkv.traces.outputs import generated_tokens
from trtkv.traces.trace import TraceRequest


def run_loop(
    trace: list[TraceRequest],
    manager: ReplayManager,
    *,
    tokens_per_block: int = 4,
    capacity_blocks: int,
    live: int,
    **more,
) -> ClosedLoop:
    config = ReplayConfig(
        tokens_per_block=tokens_per_block, capacity_tokens=capacity_blocks * tokens_per_block, live=live
    )
    loop = ClosedLoop(
        manager,
        tokens_per_block=tokens_per_block,
        num_primary_blocks=config.num_primary_blocks(trace),
        live=live,
        num_needed_blocks=config.num_needed_blocks,
        **more,
    )
    loop.run(trace)
    return loop


@pytest.mark.parametrize("seed", range(30))
def test_calls_are_those_of_the_protocol_round_by_round(seed):
    rng = random.Random(seed)
    trace = [
        make_request(index, rng.randint(1, 40), rng.choice([0, 0, 1, 2, 7, 30]), first_token=rng.randint(0, 5))
        for index in range(rng.randint(0, 25))
    ]
    capacity_blocks, live = rng.randint(3, 40), rng.randint(1, 6)
    manager = LoggingManager()

    run_loop(trace, manager, capacity_blocks=capacity_blocks, live=live)

    assert manager.log == loop_round_by_round(trace, 4, capacity_blocks, live)


def test_a_long_output_is_decoded_in_several_calls():
    trace = [make_request(0, 5, 70_000), make_request(1, 5, 70_001)]
    manager = LoggingManager()

    loop = run_loop(trace, manager, capacity_blocks=100_000, live=2)

    assert loop.counts.decode_calls == 140_001
    assert manager.log == loop_round_by_round(trace, 4, 100_000, 2)


def test_admission_waits_while_reservations_do_not_fit():
    # needs at 4 tokens a block: (8 + 4) // 4 + 3 = 6 each; 13 blocks hold two
    trace = [make_request(index, 8, 4) for index in range(3)]
    manager = LoggingManager()

    run_loop(trace, manager, capacity_blocks=13, live=3)

    adds = [[info[0] for info in entry[1]] for entry in manager.log if entry[0] == "add"]
    assert adds == [[0, 1], [2]]


def test_a_request_that_can_never_fit_is_skipped_only_when_nothing_is_live():
    # needs: 5, 28, 5 blocks of 10
    trace = [make_request(0, 8, 2), make_request(1, 90, 10), make_request(2, 8, 2)]
    manager = LoggingManager()

    loop = run_loop(trace, manager, capacity_blocks=10, live=3)

    assert loop.counts.skipped_requests == 1
    assert loop.counts.requests == 2
    assert loop.counts.prompt_tokens == 16
    adds = [[info[0] for info in entry[1]] for entry in manager.log if entry[0] == "add"]
    assert adds == [[0], [2]], "request 2 must not overtake request 1 while request 0 is live"


def test_a_need_equal_to_the_capacity_is_admitted():
    trace = [make_request(0, 8, 4)]
    assert run_loop(trace, LoggingManager(), capacity_blocks=6, live=1).counts.requests == 1
    assert run_loop(trace, LoggingManager(), capacity_blocks=5, live=1).counts.skipped_requests == 1


def test_counts_of_what_the_manager_found():
    trace = [make_request(0, 9, 1), make_request(1, 2, 0), make_request(2, 6, 3)]

    counts = run_loop(trace, LoggingManager(found=3), capacity_blocks=100, live=2).counts

    assert counts.requests == 3
    assert counts.prompt_blocks == 3 + 1 + 2
    assert counts.prepopulated_tokens == 3 + 0 + 3
    assert counts.zero_hit_requests == 1
    assert counts.token_hit_rates == [3 / 9, 0.0, 3 / 6]
    assert counts.decode_calls == 1 + 1 + 3


def test_progress_counts_finished_requests_and_ends_at_all():
    seen: list[int] = []
    trace = [make_request(0, 8, 2), make_request(1, 900, 10), make_request(2, 8, 2), make_request(3, 8, 5)]

    run_loop(trace, LoggingManager(), capacity_blocks=12, live=2, progress=seen.append)

    assert seen == sorted(seen)
    assert seen[-1] == len(trace)


def test_the_timer_is_read_around_calls_of_the_manager_only():
    class SlowManager(LoggingManager):
        now = 0.0

        def add_sequence_batch(self, *args):
            super().add_sequence_batch(*args)
            self.now += 1

        def store_context_blocks(self, *args):
            self.now += 10

        def add_token_rounds(self, request_ids, num_rounds):
            self.now += 100 * len(request_ids) * num_rounds

        def remove_sequence(self, *args):
            self.now += 1000

    manager = SlowManager()
    trace = [make_request(index, 8, 2) for index in range(3)]
    seconds = run_loop(trace, manager, capacity_blocks=100, live=2, timer=lambda: manager.now).seconds
    assert (seconds.add, seconds.store, seconds.decode, seconds.remove) == (2, 30, 600, 3000)


def test_generated_tokens_follow_the_formula():
    assert generated_tokens(7, 3).tolist() == [7 * 1000003 + 3, 7 * 1000003 + 2, 7 * 1000003 + 1]
    assert generated_tokens(2, 0).tolist() == [2 * 1000003]
    assert generated_tokens(5000, 1).tolist() == [(5000 * 1000003 + 1) & 0x7FFFFFFF]
    assert generated_tokens(2**40, 2).dtype == np.int32


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"tokens_per_block": 0}, "tokens_per_block is 0"),
        ({"live": 0}, "live is 0"),
        ({"host_tokens": -1}, "host_tokens is -1"),
        ({"tokens_per_block": 64, "capacity_tokens": 63}, "capacity_tokens is 63"),
        ({"windows": ()}, "no attention window"),
        ({"windows": (None, 0)}, "attention window is 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, told):
    with pytest.raises(ConfigurationError, match=told):
        ReplayConfig(**settings)


def test_shape_of_the_manager():
    trace = [make_request(0, 100, 27), make_request(1, 60, 0)]  # longest 127, with 2 more 129
    config = ReplayConfig(tokens_per_block=64, capacity_tokens=1000, host_tokens=127, windows=(32, None, 500))
    assert config.max_sequence_length(trace) == 3 * 64 + 64
    assert config.layer_windows(trace) == [32, 256, 256]
    assert config.num_primary_blocks(trace) == 15
    assert config.num_secondary_blocks == 1
    assert ReplayConfig(tokens_per_block=64).num_primary_blocks(trace) == (1 + 3) + (0 + 3)
