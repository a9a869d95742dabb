"""Requests arrive at their times, and after those they wait for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.replay.trace_builders import token_request
from trtkv.errors import InvalidInputError
from trtkv.replay.scheduler_loop.arrival_queue import ArrivalMode, ArrivalQueue

REQUESTS = [
    token_request(0, [1], timestamp=30),
    token_request(1, [1], timestamp=10),
    token_request(2, [1], timestamp=30),
]
TURNS = [
    token_request(0, [1], timestamp=10),
    replace(token_request(1, [1], timestamp=12), predecessors=(0,), delay_seconds=5e-9),
    replace(token_request(2, [1]), predecessors=(0, 1), is_timed=False),
]


def take(queue, time_ns):
    return [(arrival.request.index, arrival.time_ns) for arrival in queue.take_until(time_ns)]


def test_trace_times_count_from_the_earliest_and_equal_ones_keep_replay_order():
    queue = ArrivalQueue(REQUESTS, ArrivalMode.TRACE, seconds_per_unit=1e-3)
    assert take(queue, 10**9) == [(1, 0), (0, 20_000_000), (2, 20_000_000)]


def test_asap_is_replay_order_at_time_0_and_needs_no_unit():
    assert take(ArrivalQueue(REQUESTS, ArrivalMode.ASAP), 0) == [(0, 0), (1, 0), (2, 0)]


def test_times_of_no_clock_are_refused():
    with pytest.raises(InvalidInputError, match="arrivals asap"):
        ArrivalQueue(REQUESTS, ArrivalMode.TRACE, seconds_per_unit=None)


def test_the_queue_gives_what_has_arrived_and_no_more():
    queue = ArrivalQueue(REQUESTS, ArrivalMode.TRACE, seconds_per_unit=1e-9)
    assert queue.next_time_ns == 0
    assert take(queue, 19) == [(1, 0)]
    assert queue.next_time_ns == 20
    assert take(queue, 20) == [(0, 20), (2, 20)]
    assert queue.next_time_ns is None
    assert take(queue, 10**9) == []


def test_a_turn_arrives_its_delay_after_the_turn_before_and_not_before_its_own_time():
    queue = ArrivalQueue(TURNS, ArrivalMode.TRACE, seconds_per_unit=1e-9)
    assert take(queue, 100) == [(0, 0)]
    assert queue.next_time_ns is None
    queue.set_over(TURNS[0], 1)
    assert take(queue, 100) == [(1, 6)]  # 1 + 5, later than its own time 2
    queue.set_over(TURNS[1], 50)
    assert take(queue, 100) == [(2, 50)]  # without a time of its own


def test_without_times_of_the_trace_a_turn_arrives_at_the_end_of_the_turn_before():
    queue = ArrivalQueue(TURNS, ArrivalMode.ASAP)
    assert take(queue, 0) == [(0, 0)]
    queue.set_over(TURNS[0], 7)
    assert take(queue, 7) == [(1, 7)]
