"""ClairvoyantCache: the most hits that any eviction could give under the closed loop, by Belady's rule on a tree.

Everything is counted in units: single tokens, or full blocks. The units of an edge of the tree have the same past and
the same future, so an edge is held, kept and given up as a run; of a run that does not fit its end goes first.

Rules. A live request holds its prompt and what it has generated; units that several requests hold count once. What
no request holds may be kept or given up at will; held and kept units together never exceed the capacity. A prompt finds
the units that are held or kept, from its start to the first that is not. Generated units can be found once their
request is done.

Text can be generated again: a unit that a request in between leaves anyway need not be kept until then. So a unit has
uses (prompts that contain it) and supplies (ends of requests that generated it), and is kept from one of these to the
next use only.

Belady's rule gives up the unit whose next use lies farthest ahead. A unit is never needed later than the ones behind
it, so what the rule keeps is always a whole prefix, and the rule is optimal: keeping a unit from one use to the next
takes one place for that time and gains one hit, and what is held does not depend on what is kept.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from trtkv.common import ceil_div
from trtkv.errors import InvalidInputError, OutOfBlocksError, check
from trtkv.replay.schedule import Admit, Decode, Event, Release

if TYPE_CHECKING:
    from trtkv.traces.prefixes.prefix_tree import Edge
    from trtkv.traces.trace import TraceRequest


class UnitRequest(NamedTuple):
    """A request in units."""

    path: list[Edge]
    """All it stores; edges end where the findable part ends, and where the full units of the prompt end."""
    num_findable: int
    """Leading units that its prompt may find."""
    prompt_tokens: int


class _Run:
    """State of one edge."""

    __slots__ = ("depth", "holders", "kept", "length", "next_use", "supplies", "uses", "version")

    def __init__(self, edge: Edge) -> None:
        self.depth = edge.start
        self.length = len(edge)
        self.holders = 0
        self.kept = 0
        """Leading units that are kept while no request holds the run."""
        self.uses: list[tuple[int, bool]] = []
        """Requests still to come whose prompt has this run, the next one last; whether they may find it."""
        self.supplies: list[int] = []
        """Numbers of the events still to come at which a request that generated this run ends, the next one last."""
        self.next_use = inf
        self.version = 0


class _Live(NamedTuple):
    """What a live request holds."""

    position: int
    num_generated: int
    """Decode rounds so far."""


class ClairvoyantCache:
    """One run of the closed loop; ``num_hits`` is the number of units found."""

    def __init__(self, requests: Sequence[UnitRequest], events: Sequence[Event], *, unit: int, capacity: int) -> None:
        if unit < 1 or capacity < 1:
            raise InvalidInputError(f"unit {unit} and capacity {capacity} must be at least 1")
        self.num_hits = 0
        self._requests = requests
        self._events = events
        self._unit = unit
        self._now = 0
        self._admitted_at: list[int] = []  # by position: number of the event
        self._capacity = capacity
        self._num_held = 0
        self._num_kept = 0
        self._num_admitted = 0
        self._live: dict[int, _Live] = {}
        self._runs: dict[Edge, _Run] = {}
        self._candidates: list[tuple[float, int, int, int, _Run]] = []
        """Heap of kept runs, the one to give up first on top: (-next use, -depth, tie, version, run)."""
        self._num_pushed = 0
        self._note_uses()

    def run(self) -> None:
        """Go through all events, which must be those of the requests, in the same order."""
        for number, event in enumerate(self._events):
            self._now = number
            if isinstance(event, Admit):
                for request in event.requests:
                    self._admit(request)
            elif isinstance(event, Decode):
                self._decode(event.num_rounds)
            elif isinstance(event, Release):
                for request in event.requests:
                    self._release(request)
            self._shrink()

    def _note_uses(self) -> None:
        released_at: dict[int, int] = {}
        indices: list[int] = []
        for number, event in enumerate(self._events):
            if isinstance(event, Admit):
                self._admitted_at += [number] * len(event.requests)
                indices += [request.index for request in event.requests]
            elif isinstance(event, Release):
                released_at.update((request.index, number) for request in event.requests)
        for position in reversed(range(len(self._requests))):
            request = self._requests[position]
            for edge in request.path:
                run = self._runs.get(edge)
                if run is None:
                    run = self._runs[edge] = _Run(edge)
                if edge.end <= self._num_full(request):
                    run.uses.append((position, edge.end <= request.num_findable))
                else:
                    run.supplies.append(released_at[indices[position]])
        for run in self._runs.values():
            run.supplies.sort(reverse=True)

    def _num_full(self, request: UnitRequest) -> int:
        return request.prompt_tokens // self._unit

    def _admit(self, trace_request: TraceRequest) -> None:
        position = self._num_admitted
        self._num_admitted += 1
        self._live[trace_request.index] = _Live(position, 0)
        request = self._requests[position]
        complete = True
        for edge in request.path:
            if edge.end > self._num_full(request):
                break
            run = self._runs[edge]
            if edge.end <= request.num_findable:
                num_found = run.length if run.holders else run.kept
                check(complete or not num_found, "a unit is kept although one before it was given up")
                self.num_hits += num_found
                complete = complete and num_found == run.length
            self._hold(run, position)
        self._num_held += self._num_private(request, 0)

    def _hold(self, run: _Run, position: int) -> None:
        next_position, _ = run.uses.pop()
        check(next_position == position, "uses of a run out of order")
        if not run.holders:
            self._num_kept -= run.kept
            self._num_held += run.length
            run.kept = 0
            run.version += 1
        run.holders += 1

    def _num_private(self, request: UnitRequest, num_rounds: int) -> int:
        """Units after the full ones of the prompt; the newest generated token is not stored yet."""
        stored = request.prompt_tokens + max(0, num_rounds - 1)
        return ceil_div(stored, self._unit) - self._num_full(request)

    def _decode(self, num_rounds: int) -> None:
        for index, live in self._live.items():
            request = self._requests[live.position]
            grown = live.num_generated + num_rounds
            self._num_held += self._num_private(request, grown) - self._num_private(request, live.num_generated)
            self._live[index] = _Live(live.position, grown)

    def _release(self, trace_request: TraceRequest) -> None:
        live = self._live.pop(trace_request.index)
        request = self._requests[live.position]
        self._num_held -= self._num_private(request, live.num_generated)
        for edge in request.path:
            run = self._runs[edge]
            if edge.end <= self._num_full(request):
                run.holders -= 1
                if not run.holders:
                    self._num_held -= run.length
                    self._keep(run)
            elif not run.holders:
                self._keep(run)

    def _keep(self, run: _Run) -> None:
        """Keep a whole run if a later request will find it."""
        self._num_kept -= run.kept
        run.kept = 0
        run.version += 1
        if not run.uses or not run.uses[-1][1]:
            return
        while run.supplies and run.supplies[-1] <= self._now:
            run.supplies.pop()
        if run.supplies and run.supplies[-1] < self._admitted_at[run.uses[-1][0]]:
            return
        run.next_use = run.uses[-1][0]
        run.kept = run.length
        self._num_kept += run.length
        self._push(run)

    def _push(self, run: _Run) -> None:
        self._num_pushed += 1
        heapq.heappush(self._candidates, (-run.next_use, -run.depth, self._num_pushed, run.version, run))

    def _shrink(self) -> None:
        """Give up what is needed last until everything fits."""
        excess = self._num_held + self._num_kept - self._capacity
        while excess > 0:
            if not self._candidates:
                raise OutOfBlocksError(
                    f"live requests hold {self._num_held} units, more than the capacity of {self._capacity}"
                )
            *_, version, run = heapq.heappop(self._candidates)
            if version != run.version:
                continue
            given_up = min(excess, run.kept)
            run.kept -= given_up
            self._num_kept -= given_up
            excess -= given_up
            if run.kept:
                self._push(run)
