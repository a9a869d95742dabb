"""The closed loop as a list of events: who is admitted, how long all decode, who is released; needs no manager.

What is live when follows from lengths, capacity and the number of live requests alone. So the events are the same for
every system that is replayed, and for the bounds that are computed without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from trtkv.checks import check_integer
from trtkv.errors import InvalidInputError
from trtkv.replay.config import EXTRA_BLOCKS_PER_REQUEST
from trtkv.replay.eligible_requests import EligibleRequests

if TYPE_CHECKING:
    from trtkv.traces.trace import TraceRequest


class Admit(NamedTuple):
    """These requests become live together, in this order."""

    requests: list[TraceRequest]


class Decode(NamedTuple):
    """Every live request generates this many tokens."""

    num_rounds: int


class Release(NamedTuple):
    """These requests are done, in this order."""

    requests: list[TraceRequest]


class Skip(NamedTuple):
    """This request needs more blocks than there are and never runs."""

    request: TraceRequest


Event: TypeAlias = "Admit | Decode | Release | Skip"


def num_needed_blocks(request: TraceRequest, tokens_per_block: int) -> int:
    """Blocks reserved for a request while it is live."""
    return (request.input_length + request.output_length) // tokens_per_block + EXTRA_BLOCKS_PER_REQUEST


def num_pool_blocks(requests: Iterable[TraceRequest], tokens_per_block: int, capacity_tokens: int | None) -> int:
    """Blocks of a pool of ``capacity_tokens``; None: as many as all requests need together."""
    if capacity_tokens is not None:
        return capacity_tokens // tokens_per_block
    return sum(num_needed_blocks(request, tokens_per_block) for request in requests)


def closed_loop_events(
    requests: Iterable[TraceRequest], *, tokens_per_block: int, num_blocks: int, live: int
) -> Iterator[Event]:
    """Events of the closed loop over ``num_blocks`` blocks with at most ``live`` requests at a time.

    Requests of output length 0 decode one round, as in the loop of trtkv.replay.closed_loop.closed_loop.
    """
    for name, value in (("tokens_per_block", tokens_per_block), ("num_blocks", num_blocks), ("live", live)):
        check_integer(name, value)
    if tokens_per_block < 1 or num_blocks < 1 or live < 1:
        raise InvalidInputError(
            f"tokens_per_block {tokens_per_block}, num_blocks {num_blocks} and live {live} must be at least 1"
        )
    return _events(requests, tokens_per_block, num_blocks, live)


def _events(requests: Iterable[TraceRequest], tokens_per_block: int, num_free: int, live: int) -> Iterator[Event]:
    waiting = EligibleRequests(requests)
    running: list[TraceRequest] = []
    left: dict[int, int] = {}
    while waiting.head is not None or running:
        admitted: list[TraceRequest] = []
        while (head := waiting.head) is not None and len(running) < live:
            needed = num_needed_blocks(head, tokens_per_block)
            if needed <= num_free:
                num_free -= needed
                left[head.index] = head.output_length
                running.append(head)
                admitted.append(head)
                waiting.take()
            elif running:
                break
            else:
                yield Skip(head)
                waiting.take()
                waiting.set_over(head)
        if admitted:
            yield Admit(admitted)
        if not running:
            return
        num_rounds = max(1, min(left[request.index] for request in running))
        yield Decode(num_rounds)
        for request in running:
            left[request.index] -= num_rounds
        done = [request for request in running if left[request.index] <= 0]
        running = [request for request in running if left[request.index] > 0]
        yield Release(done)
        for request in done:
            num_free += num_needed_blocks(request, tokens_per_block)
            waiting.set_over(request)
