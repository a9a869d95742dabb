"""Requests that have no number yet, and their numbering."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from trtkv.traces.trace import TokenSource, TraceRequest


class Arrival(NamedTuple):
    """One request as its row gives it."""

    timestamp: float
    input_length: int
    output_length: int
    source: TokenSource


def numbered(arrivals: Iterable[Arrival | None], *, by_time: bool = False) -> list[TraceRequest]:
    """Requests in replay order: that of the file, or of arrival with equal times in file order. None is left out."""
    found = [arrival for arrival in arrivals if arrival is not None]
    if by_time:
        found.sort(key=lambda arrival: arrival.timestamp)
    return [TraceRequest(index, *arrival) for index, arrival in enumerate(found)]
