"""A sweep as a whole: what is run, what is found, and in which order results come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.replay.sweep import numbers
from trtkv.replay.sweep.results_file import ResultsFile
from trtkv.replay.sweep.sweep import run_sweep
from trtkv.replay.sweep.task import Report, SweepTask


class Executor:
    """Runs tasks here, in the order asked for, and stops after some."""

    def __init__(self, stop_after: int | None = None, backwards: bool = False) -> None:
        self.done: list[str] = []
        self._stop_after = stop_after
        self._backwards = backwards

    def __call__(self, tasks: Sequence[SweepTask]) -> Iterator[tuple[SweepTask, Report]]:
        for task in reversed(tasks) if self._backwards else tasks:
            if len(self.done) == self._stop_after:
                raise KeyboardInterrupt
            self.done.append(task.key)
            yield task, {"key": task.key}


def test_reports_come_in_the_order_of_the_tasks() -> None:
    tasks = numbers.make_tasks(Path(), 2, 3)
    outcome = run_sweep(tasks, Executor(backwards=True))
    assert [report["key"] for report in outcome.reports] == [task.key for task in tasks]
    assert (outcome.num_run, outcome.num_found) == (6, 0)


def test_an_interrupted_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    tasks = numbers.make_tasks(tmp_path, 2, 3)
    first = Executor(stop_after=2, backwards=True)
    with ResultsFile(path) as results, pytest.raises(KeyboardInterrupt):
        run_sweep(tasks, first, results)
    second = Executor()
    with ResultsFile(path) as results:
        outcome = run_sweep(tasks, second, results)
    assert (outcome.num_run, outcome.num_found) == (4, 2)
    assert sorted(first.done + second.done) == sorted(task.key for task in tasks)
    third = Executor()
    with ResultsFile(path) as results:
        assert run_sweep(tasks, third, results).num_run == 0
    assert third.done == []
    straight = tmp_path / "straight.jsonl"
    with ResultsFile(straight) as results:
        run_sweep(tasks, Executor(), results)
    assert path.read_bytes() == straight.read_bytes()


def test_equal_runs_are_made_once() -> None:
    task = numbers.make_task(Path(), 0, 1)
    executor = Executor()
    outcome = run_sweep([task, task], executor)
    assert executor.done == [task.key]
    assert len(outcome.reports) == 2
    assert outcome.num_run == 1


def test_progress_counts_different_runs(tmp_path: Path) -> None:
    tasks = numbers.make_tasks(tmp_path, 1, 3)
    seen: list[int] = []
    run_sweep(tasks, Executor(), progress=seen.append)
    assert seen == [0, 1, 2, 3]
