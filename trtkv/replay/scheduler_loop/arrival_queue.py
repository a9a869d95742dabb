"""ArrivalQueue: requests of a trace in order of arrival on the virtual clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from trtkv.errors import InvalidInputError

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


def make_arrivals(
    requests: Sequence[TraceRequest], mode: ArrivalMode, seconds_per_unit: float | None = None
) -> list[Arrival]:
    """Arrivals in order; those of equal times in replay order. ``seconds_per_unit``: of the trace's timestamps."""
    if mode is ArrivalMode.ASAP:
        return [Arrival(0, request) for request in requests]
    if seconds_per_unit is None:
        raise InvalidInputError("the trace has no times of one clock; replay it with arrivals asap")
    ns_per_unit = seconds_per_unit * NS_PER_SECOND
    start = min((request.timestamp for request in requests), default=0)
    arrivals = [Arrival(round((request.timestamp - start) * ns_per_unit), request) for request in requests]
    return sorted(arrivals, key=lambda arrival: arrival.time_ns)


class ArrivalQueue:
    """Arrivals that have not been taken yet."""

    def __init__(self, arrivals: Iterable[Arrival]) -> None:
        self._rest = iter(arrivals)
        self._head = next(self._rest, None)

    @property
    def next_time_ns(self) -> int | None:
        """Time of the next arrival; None when there is none."""
        return None if self._head is None else self._head.time_ns

    def take_until(self, time_ns: int) -> Iterator[Arrival]:
        """Take all that have arrived by then, in order."""
        while self._head is not None and self._head.time_ns <= time_ns:
            arrival, self._head = self._head, next(self._rest, None)
            yield arrival
