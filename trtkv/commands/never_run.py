"""Requests that a replay could not run: a warning, or an error if it could run none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from trtkv.commands.replay_job import Outcome, ReplayJob
    from trtkv.traces.trace import RequestTrace


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


def warn_of_never_run(job: ReplayJob, trace: RequestTrace, outcome: Outcome) -> str | None:
    """A line about requests that were never run; None if all were run. Raises InvalidInputError if none was run."""
    from trtkv.errors import InvalidInputError

    count = _count_outcome(outcome)
    if count.num_never_run == 0:
        return None
    num_requests = count.num_run + count.num_never_run
    if count.num_run == 0:
        raise InvalidInputError(f"none of the {num_requests} requests can be run: {_reason(job, trace, outcome)}")
    return f"warning: {count.num_never_run} of {num_requests} requests were never run; no count or rate includes them"


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


def _count_outcome(outcome: Outcome) -> RunCount:
    from trtkv.replay.result import ReplayResult
    from trtkv.replay.scheduler_loop.loop_result import LoopResult

    if isinstance(outcome, LoopResult):
        return RunCount(outcome.counts.finished_requests, len(outcome.counts.refusals))
    if isinstance(outcome, ReplayResult):
        return RunCount(outcome.counts.requests, outcome.counts.skipped_requests)
    return count_requests(outcome)


def _reason(job: ReplayJob, trace: RequestTrace, outcome: Outcome) -> str:
    """Why not even the easiest request runs, and what to do."""
    from trtkv.commands.replay_job import SystemChoice
    from trtkv.replay.scheduler_loop.loop_result import LoopResult

    if isinstance(outcome, LoopResult):
        easiest = min(outcome.counts.refusals, key=lambda refusal: refusal.prompt_tokens + refusal.output_tokens)
        return easiest.reason
    config = job.config
    request = min(trace.requests, key=lambda request: request.input_length + request.output_length)
    lengths = f"the smallest has {request.input_length} prompt and {request.output_length} output tokens"
    needed = f" and needs {config.num_needed_blocks(request)} blocks of {config.tokens_per_block}"
    if job.system is SystemChoice.NANO_SCHEDULER:
        needed = ""
    return (
        f"{lengths}{needed}, the capacity of {config.capacity_tokens} tokens holds "
        f"{config.num_primary_blocks(trace.requests)} blocks; enlarge it (--capacity-tokens, or --memory)"
    )
