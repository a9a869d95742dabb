"""Outcome: what every kind of replay gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trtkv.replay.schedule import num_needed_blocks, num_pool_blocks
from trtkv.tables.result import Result

if TYPE_CHECKING:
    from trtkv.replay.bounds.bounds import Bounds
    from trtkv.replay.bounds.capacity_curve import CapacityCurve
    from trtkv.replay.causes.explanation import Explanation
    from trtkv.replay.utilisation import UtilisationSamples
    from trtkv.traces.trace import RequestTrace


class Outcome(Result, Protocol):
    """A result of a replay, and what a command has to know of it."""

    __slots__ = ()

    @property
    def num_run(self) -> int:
        """Requests that were run to their end."""
        ...

    @property
    def num_never_run(self) -> int:
        """Requests that can never be run with these settings."""
        ...

    def why_never_run(self) -> str:
        """Why the easiest request cannot run, and what to do; only where one was never run."""
        ...

    def to_json(self) -> dict[str, object]:
        """Everything, in a fixed order."""
        ...

    @property
    def bounds(self) -> Bounds | None:
        """What was possible at best, if that was asked for."""
        return None

    @property
    def explanation(self) -> Explanation | None:
        """Why tokens were found or not, if that was asked for."""
        return None

    @property
    def curve(self) -> CapacityCurve | None:
        """Hit rates at other capacities, if they were asked for."""
        return None

    @property
    def requests(self) -> dict[str, object] | None:
        """What became of each request, if that is kept."""
        return None

    @property
    def over_time(self) -> UtilisationSamples | None:
        """Steps over time, if steps were run."""
        return None


def describe_smallest(
    trace: RequestTrace, tokens_per_block: int, capacity_tokens: int | None, *, reserves: bool = True
) -> str:
    """The smallest request beside the capacity that does not hold it. ``reserves``: whether blocks are set aside."""
    request = min(trace.requests, key=lambda request: request.input_length + request.output_length)
    needed = f" and needs {num_needed_blocks(request, tokens_per_block)} blocks of {tokens_per_block}"
    num_blocks = num_pool_blocks(trace.requests, tokens_per_block, capacity_tokens)
    return (
        f"the smallest has {request.input_length} prompt and {request.output_length} output tokens"
        f"{needed if reserves else ''}, the capacity of {capacity_tokens} tokens holds {num_blocks} blocks; "
        "enlarge it (--capacity-tokens, or --memory)"
    )
