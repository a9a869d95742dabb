"""A sweep: runs what is not finished yet, and keeps what finishes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from trtkv.replay.sweep.results_file import ResultsFile
from trtkv.replay.sweep.task import Report, SweepTask, in_trace_order

Execute = Callable[[Sequence[SweepTask]], Iterator[tuple[SweepTask, Report]]]
"""Runs tasks and gives each with its report, in any order."""


class SweepOutcome(NamedTuple):
    """All reports of a sweep."""

    reports: list[Report]
    """One for each task, in the order of the tasks."""
    num_run: int
    num_found: int
    """Different runs that the results file had already."""


def run_sweep(
    tasks: Sequence[SweepTask],
    execute: Execute,
    results: ResultsFile | None = None,
    progress: Callable[[int], None] | None = None,
) -> SweepOutcome:
    """Run the tasks whose keys are not among the results, each key once.

    Every report is added to ``results`` as soon as it is there; at the end the file is put into the order of the tasks
    and closed. ``progress`` is called with the number of different runs that are done.
    """
    unique = {task.key: task for task in reversed(tasks)}
    first = {task.key: None for task in tasks}
    finished = {key: report for key in first if results is not None and (report := results.get(key)) is not None}
    num_found = len(finished)
    missing = [unique[key] for key in first if key not in finished]
    if progress is not None:
        progress(num_found)
    for task, report in execute(in_trace_order(missing)):
        if results is not None:
            results.add(task, report)
        finished[task.key] = report
        if progress is not None:
            progress(len(finished))
    if results is not None:
        results.close_sorted(first)
    return SweepOutcome([finished[task.key] for task in tasks], len(missing), num_found)
