"""Requests that have no number yet, and their numbering."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

from trtkv.traces.fields import check_total_length
from trtkv.traces.rows import RowFaultError
from trtkv.traces.trace import KeyConstraints, TokenIds, TokenSource, TraceRequest


class Arrival(NamedTuple):
    """One request as its row gives it."""

    timestamp: float
    input_length: int
    output_length: int
    source: TokenSource
    constraints: KeyConstraints | None = None


def token_arrival(timestamp: float, prompt: array[int], output_length: int) -> Arrival:
    """A request of which the tokens are known. Raises RowFaultError if there are none or too many."""
    if not prompt:
        raise RowFaultError("the prompt has no token")
    check_total_length(len(prompt), output_length)
    return Arrival(timestamp, len(prompt), output_length, TokenIds(prompt))


def numbered(arrivals: Iterable[Arrival | None], *, by_time: bool = False) -> list[TraceRequest]:
    """Requests in replay order: that of the file, or of arrival with equal times in file order. None is left out."""
    found = [arrival for arrival in arrivals if arrival is not None]
    if by_time:
        found.sort(key=lambda arrival: arrival.timestamp)
    return [TraceRequest(index, *arrival) for index, arrival in enumerate(found)]
