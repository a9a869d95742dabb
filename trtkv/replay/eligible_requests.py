"""EligibleRequests: the requests of a trace that may start, in replay order; successors wait for their predecessors."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtkv.traces.trace import TraceRequest


class EligibleRequests:
    """``head`` is the first request in replay order that has not been taken and whose predecessors are all over.

    Predecessors that are not among the requests count as over. O(log n) a request.
    """

    def __init__(self, requests: Iterable[TraceRequest]) -> None:
        self._requests = list(requests)
        positions = {request.index: position for position, request in enumerate(self._requests)}
        self._successors: dict[int, list[int]] = {}
        self._num_waited_for: dict[int, int] = {}
        self._eligible: list[int] = []  # positions; sorted, so a heap from the start
        for position, request in enumerate(self._requests):
            waits_for = [index for index in request.predecessors if index in positions]
            for index in waits_for:
                self._successors.setdefault(index, []).append(position)
            if waits_for:
                self._num_waited_for[position] = len(waits_for)
            else:
                self._eligible.append(position)

    @property
    def head(self) -> TraceRequest | None:
        """The next request; None if none may start now."""
        return self._requests[self._eligible[0]] if self._eligible else None

    def take(self) -> None:
        """Take the head away."""
        heappop(self._eligible)

    def set_over(self, request: TraceRequest) -> None:
        """A request ended, or will never run: those that waited for it alone may start."""
        for position in self._successors.pop(request.index, ()):
            self._num_waited_for[position] -= 1
            if not self._num_waited_for[position]:
                heappush(self._eligible, position)
