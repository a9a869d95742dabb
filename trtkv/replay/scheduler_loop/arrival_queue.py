"""ArrivalQueue: requests of a trace in order of arrival on the virtual clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

from trtkv.errors import InvalidInputError
from trtkv.replay.eligible_requests import EligibleRequests

if TYPE_CHECKING:
    from trtkv.traces.trace import TraceRequest

NS_PER_SECOND: Final = 1_000_000_000


class ArrivalMode(str, Enum):
    """When requests arrive."""

    ASAP = "asap"
    """All at time 0, in replay order."""
    TRACE = "trace"
    """At the trace's times, counted from its earliest."""


class Arrival(NamedTuple):
    """A request and the time it arrives, in nanoseconds of the virtual clock."""

    time_ns: int
    request: TraceRequest


class ArrivalQueue:
    """Requests that have not arrived or not been taken, by time of arrival; equal times in replay order.

    A request without predecessors arrives at its own time: 0 with ``ASAP``, else its timestamp, counted from the
    earliest of the trace. One with predecessors arrives when the last of them is over, with ``TRACE`` after its delay
    and not before its own time. ``seconds_per_unit``: of the trace's timestamps.
    """

    def __init__(
        self, requests: Sequence[TraceRequest], mode: ArrivalMode, seconds_per_unit: float | None = None
    ) -> None:
        if mode is ArrivalMode.TRACE and seconds_per_unit is None:
            raise InvalidInputError("the trace has no times of one clock; replay it with arrivals asap")
        self._has_times = mode is ArrivalMode.TRACE
        self._ns_per_unit = (seconds_per_unit or 0) * NS_PER_SECOND
        self._start = min((request.timestamp for request in requests if request.is_timed), default=0)
        self._arrived = EligibleRequests(requests)
        self._arrivals: list[tuple[int, int, TraceRequest]] = []
        self._release(0)

    def _own_time_ns(self, request: TraceRequest) -> int:
        if not self._has_times or not request.is_timed:
            return 0
        return round((request.timestamp - self._start) * self._ns_per_unit)

    def _release(self, now_ns: int) -> None:
        """Fix the arrivals of requests whose predecessors are over by now."""
        while (request := self._arrived.head) is not None:
            self._arrived.take()
            time_ns = self._own_time_ns(request)
            if request.predecessors:
                delay_ns = round(request.delay_seconds * NS_PER_SECOND) if self._has_times else 0
                time_ns = max(time_ns, now_ns + delay_ns)
            heappush(self._arrivals, (time_ns, request.index, request))

    @property
    def next_time_ns(self) -> int | None:
        """Time of the next arrival; None when there is none."""
        return self._arrivals[0][0] if self._arrivals else None

    def take_until(self, time_ns: int) -> Iterator[Arrival]:
        """Take all that have arrived by then, in order."""
        while self._arrivals and self._arrivals[0][0] <= time_ns:
            arrival_ns, _, request = heappop(self._arrivals)
            yield Arrival(arrival_ns, request)

    def set_over(self, request: TraceRequest, time_ns: int) -> None:
        """A request is over: those that waited for it alone arrive."""
        self._arrived.set_over(request)
        self._release(time_ns)
