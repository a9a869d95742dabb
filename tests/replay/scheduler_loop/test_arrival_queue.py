from __future__ import annotations

import pytest

from tests.replay.trace_builders import token_request
from trtkv.errors import InvalidInputError
from trtkv.replay.scheduler_loop.arrival_queue import ArrivalMode, ArrivalQueue, make_arrivals

REQUESTS = [
    token_request(0, [1], timestamp=30),
    token_request(1, [1], timestamp=10),
    token_request(2, [1], timestamp=30),
]


def indices_and_times(arrivals):
    return [(arrival.request.index, arrival.time_ns) for arrival in arrivals]


def test_trace_times_count_from_the_earliest_and_equal_ones_keep_replay_order():
    arrivals = make_arrivals(REQUESTS, ArrivalMode.TRACE, seconds_per_unit=1e-3)
    assert indices_and_times(arrivals) == [(1, 0), (0, 20_000_000), (2, 20_000_000)]


def test_asap_is_replay_order_at_time_0_and_needs_no_unit():
    assert indices_and_times(make_arrivals(REQUESTS, ArrivalMode.ASAP)) == [(0, 0), (1, 0), (2, 0)]


def test_times_of_no_clock_are_refused():
    with pytest.raises(InvalidInputError, match="arrivals asap"):
        make_arrivals(REQUESTS, ArrivalMode.TRACE, seconds_per_unit=None)


def test_the_queue_gives_what_has_arrived_and_no_more():
    queue = ArrivalQueue(make_arrivals(REQUESTS, ArrivalMode.TRACE, seconds_per_unit=1e-9))
    assert queue.next_time_ns == 0
    assert indices_and_times(queue.take_until(19)) == [(1, 0)]
    assert queue.next_time_ns == 20
    assert indices_and_times(queue.take_until(20)) == [(0, 20), (2, 20)]
    assert queue.next_time_ns is None
    assert list(queue.take_until(10**9)) == []
