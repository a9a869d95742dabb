"""Requests that have no number yet, their numbering, and which of them wait for which."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple

from trtkv.common import MAX_INT32
from trtkv.errors import TraceFormatError
from trtkv.traces.continued_tokens import ContinuedTokens
from trtkv.traces.fields import check_total_length
from trtkv.traces.rows import RowFaultError
from trtkv.traces.trace import HashIdTokens, KeyConstraints, KnownOutput, TokenIds, TokenSource, TraceRequest


class Link(NamedTuple):
    """How a row belongs to others."""

    session: str | None = None
    """None: that of its first predecessor, else its own key."""
    key: Hashable = None
    """By which others wait for it."""
    wait_for: tuple[Hashable, ...] | None = None
    """Keys of its predecessors; None: the row before it in the session, in replay order."""
    delay_seconds: float = 0.0
    parent_session: str | None = None
    is_delta: bool = False


class Arrival(NamedTuple):
    """One request as its row gives it."""

    timestamp: float | None
    """None: the row has none."""
    input_length: int
    output_length: int
    source: TokenSource
    constraints: KeyConstraints | None = None
    link: Link | None = None
    """None: the row stands alone."""
    output: KnownOutput | None = None
    completion: HashIdTokens | None = None


class CycleGuard:
    """Refuses a row that waits for itself, directly or through rows read before it."""

    def __init__(self) -> None:
        self._wait_for: dict[Hashable, tuple[Hashable, ...]] = {}
        self._awaited: set[Hashable] = set()

    def check(self, key: Hashable, wait_for: tuple[Hashable, ...], shown: str, *, may_repeat: bool = False) -> None:
        """Raise RowFaultError if the row closes a cycle, or if its key was used before. Keeps nothing."""
        if key in self._wait_for and not may_repeat:
            raise RowFaultError(f"{shown} {key!r:.80} was used before")
        seen: set[Hashable] = set()
        pending = list(wait_for) if key in self._awaited or key in wait_for else []
        while pending:
            found = pending.pop()
            if found == key:
                raise RowFaultError(f"{shown} {key!r:.80} waits for itself")
            if found not in seen:
                seen.add(found)
                pending += self._wait_for.get(found, ())

    def add(self, key: Hashable, wait_for: tuple[Hashable, ...]) -> None:
        """Keep a row that was checked."""
        self._wait_for[key] = wait_for
        self._awaited.update(wait_for)


def token_arrival(
    timestamp: float | None,
    prompt: array[int],
    output_length: int,
    link: Link | None = None,
    output: array[int] | None = None,
    *,
    num_unknown: int = 0,
    constraints: KeyConstraints | None = None,
) -> Arrival:
    """A request of which the tokens are known. Raises RowFaultError if there are none or too many.

    ``output`` are known generated tokens, from place ``num_unknown`` on; those past the output length are left out.
    """
    if not prompt:
        raise RowFaultError("the prompt has no token")
    check_total_length(len(prompt), output_length)
    known = known_output(output, output_length, num_unknown)
    return Arrival(timestamp, len(prompt), output_length, TokenIds(prompt), constraints, link, known)


def known_output(tokens: array[int] | None, output_length: int, num_unknown: int = 0) -> KnownOutput | None:
    """Known generated tokens, cut to the output length; None if nothing is left."""
    length = min(len(tokens or ()), output_length - num_unknown)
    return None if tokens is None or length <= 0 else KnownOutput(TokenIds(tokens), length, num_unknown)


def numbered(arrivals: Iterable[Arrival | None], *, by_time: bool = False) -> list[TraceRequest]:
    """Requests in replay order: that of the file, or of arrival with equal times in file order. None is left out."""
    found = [arrival for arrival in arrivals if arrival is not None]
    if by_time:
        found.sort(key=lambda arrival: arrival.timestamp or 0)
    indices = {arrival.link.key: index for index, arrival in enumerate(found) if arrival.link is not None}
    sessions = _Sessions(indices)
    requests: list[TraceRequest] = []
    for index, arrival in enumerate(found):
        timestamp = 0.0 if arrival.timestamp is None else arrival.timestamp
        request = TraceRequest(
            index, timestamp, arrival.input_length, arrival.output_length, arrival.source, arrival.constraints
        )
        if arrival.link is not None or arrival.timestamp is None or arrival.output is not None:
            request = replace(request, is_timed=arrival.timestamp is not None, output=arrival.output)
        if arrival.completion is not None:
            request = replace(request, completion=arrival.completion)
        requests.append(request if arrival.link is None else sessions.linked(request, arrival.link, requests))
    return requests


class _Sessions:
    """The sessions met so far."""

    def __init__(self, indices: dict[Hashable, int]) -> None:
        self._indices = indices
        self._last: dict[str, int] = {}
        self._num_turns: dict[str, count[int]] = {}

    def linked(self, request: TraceRequest, link: Link, earlier: Sequence[TraceRequest]) -> TraceRequest:
        """The request as part of its session."""
        predecessors = self._predecessors(link)
        first = predecessors[0] if predecessors else request.index
        session = link.session
        if session is None:
            session = (earlier[first].session if first < request.index else None) or str(link.key)
        self._last[session] = request.index
        linked = replace(
            request,
            session=session,
            turn=next(self._num_turns.setdefault(session, count())),
            predecessors=predecessors,
            num_missing=len(set(link.wait_for or ()) - self._indices.keys()),
            delay_seconds=link.delay_seconds,
            parent_session=link.parent_session,
            is_delta=link.is_delta,
        )
        if not linked.is_timed and first < request.index:
            linked = replace(linked, timestamp=earlier[first].timestamp)
        return _continued(linked, earlier[first]) if link.is_delta and first < request.index else linked

    def _predecessors(self, link: Link) -> tuple[int, ...]:
        if link.wait_for is not None:
            return tuple(sorted(self._indices[key] for key in set(link.wait_for) if key in self._indices))
        last = None if link.session is None else self._last.get(link.session)
        return () if last is None else (last,)


def _continued(request: TraceRequest, predecessor: TraceRequest) -> TraceRequest:
    """A row that holds only what its prompt adds, with the whole prompt."""
    length = predecessor.input_length + max(predecessor.output_length, 1) + request.input_length
    if length + request.output_length >= MAX_INT32:
        raise TraceFormatError(f"the prompts of session {request.session} add up to {length} tokens, more than 32 bits")
    source = ContinuedTokens(predecessor, request.source, request.input_length)
    return replace(request, source=source, input_length=length)
