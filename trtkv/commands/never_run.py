"""Requests that a replay could not run: a warning, or an error if it could run none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from trtkv.replay.closed_loop.outcome import Outcome


class RunCount(NamedTuple):
    """Requests that were run, and those that can never be run with these settings."""

    num_run: int
    num_never_run: int


def count_requests(report: Mapping[str, Any]) -> RunCount:
    """Requests of a JSON report, of whatever kind of replay."""
    if "counts" in report:
        counts = report["counts"]
        return RunCount(counts["finished_requests"], counts["refused_requests"])
    return RunCount(report["requests"], report["skipped_requests"])


def warn_of_never_run(outcome: Outcome) -> str | None:
    """A line about requests that were never run; None if all were run. Raises InvalidInputError if none was run."""
    from trtkv.errors import InvalidInputError

    if outcome.num_never_run == 0:
        return None
    num_requests = outcome.num_run + outcome.num_never_run
    if outcome.num_run == 0:
        raise InvalidInputError(f"none of the {num_requests} requests can be run: {outcome.why_never_run()}")
    return f"warning: {outcome.num_never_run} of {num_requests} requests were never run; no count or rate includes them"


def warn_of_sweep(reports: Sequence[Mapping[str, Any]]) -> str | None:
    """The same for all runs of a sweep; an error only if no run could run a request."""
    from trtkv.errors import InvalidInputError

    counts = [count_requests(report) for report in reports]
    num_empty = sum(count.num_run == 0 for count in counts)
    num_partial = sum(count.num_never_run > 0 for count in counts) - num_empty
    if num_empty and num_empty == len(counts):
        raise InvalidInputError(
            "no run of the sweep can run a request; enlarge the cache (capacity-tokens, or memory), or see with "
            "trtkv replay what a request needs"
        )
    if not num_empty and not num_partial:
        return None
    return (
        f"warning: requests were never run in {num_empty + num_partial} of {len(counts)} runs, all of them in "
        f"{num_empty}; no count or rate includes them"
    )
