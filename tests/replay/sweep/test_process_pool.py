"""Processes: who reads and runs what, and what happens when a run fails or a process dies."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from pathlib import Path

import pytest

from tests.replay.sweep import numbers
from trtkv.errors import InvalidInputError, LogicError, TrtkvError
from trtkv.replay.sweep.process_pool import count_processors, run_in_processes
from trtkv.replay.sweep.task import SweepTask, TaskRunner, in_trace_order

RUNNER = TaskRunner(numbers.read, numbers.run)


def run_all(tasks: list[SweepTask], num_processes: int) -> dict[str, object]:
    runner = TaskRunner(numbers.read, numbers.run)
    return {task.key: report["sum"] for task, report in run_in_processes(tasks, runner, num_processes)}


@pytest.mark.parametrize("num_processes", [1, 2])
def test_every_task_is_run_once_and_traces_are_read_once_a_process(tmp_path: Path, num_processes: int) -> None:
    tasks = numbers.make_tasks(tmp_path, traces=2, numbers=5)
    expected = {f"{trace}+{number}": trace + number for trace in range(2) for number in range(5)}
    assert run_all(tasks, num_processes) == expected
    log = numbers.read_log(tmp_path)
    assert len(log) <= num_processes
    done = Counter(line for lines in log.values() for line in lines if line.startswith("run"))
    assert done == {f"run {trace} {number}": 1 for trace in range(2) for number in range(5)}
    for lines in log.values():
        reads = [line for line in lines if line.startswith("read")]
        assert len(reads) == len(set(reads))


def test_both_processes_work(tmp_path: Path) -> None:
    tasks = [numbers.make_task(tmp_path, 0, number, "wait") for number in range(6)]
    run_all(tasks, 2)
    assert len(numbers.read_log(tmp_path)) == 2


def test_tasks_of_one_trace_follow_each_other() -> None:
    tasks = [numbers.make_task(Path(), trace, number) for number in range(2) for trace in range(3)]
    assert [task.key for task in in_trace_order(tasks)] == ["0+0", "0+1", "1+0", "1+1", "2+0", "2+1"]


@pytest.mark.parametrize("num_processes", [1, 2])
@pytest.mark.parametrize(
    ("what", "error", "told"),
    [
        ("refuse", InvalidInputError, "trace=0 number=2: no room"),
        ("crash", LogicError, "trace=0 number=2: ZeroDivisionError: by zero"),
    ],
)
def test_a_failing_run_is_named_and_what_finished_before_is_kept(
    tmp_path: Path, what: str, error: type[Exception], told: str, num_processes: int
) -> None:
    tasks = numbers.make_tasks(tmp_path, 1, 8)
    tasks[2] = numbers.make_task(tmp_path, 0, 2, what)
    kept: list[str] = []
    with pytest.raises(error, match=told):
        kept.extend(task.key for task, _ in run_in_processes(tasks, RUNNER, num_processes))
    assert {"0+0", "0+1"} <= set(kept)
    done = sum(line.startswith("run") for lines in numbers.read_log(tmp_path).values() for line in lines)
    assert done == len(kept) + 1


def test_a_process_that_dies_is_noticed(tmp_path: Path) -> None:
    tasks = [numbers.make_task(tmp_path, 0, number, "die" if number == 1 else "add") for number in range(4)]
    with pytest.raises(TrtkvError, match="the process of trace=0 number=1 ended with code 7"):
        run_all(tasks, 2)


def test_leaving_early_ends_the_processes(tmp_path: Path) -> None:
    tasks = [numbers.make_task(tmp_path, 0, number, "wait") for number in range(20)]
    running = run_in_processes(tasks, RUNNER, 2)
    next(running)
    assert len(multiprocessing.active_children()) == 2
    running.close()  # type: ignore[attr-defined]
    assert multiprocessing.active_children() == []


def test_number_of_processes() -> None:
    assert count_processors() >= 1
    with pytest.raises(InvalidInputError, match="number of processes is 0"):
        next(run_in_processes([], RUNNER, 0))
    assert list(run_in_processes([], RUNNER, 2)) == []
