"""Runs tasks on processes of this machine, each with its own copy of the trace."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from trtkv.errors import InvalidInputError, LogicError, TrtkvError
from trtkv.replay.sweep.grid import describe
from trtkv.replay.sweep.task import Report, SweepTask, TaskRunner

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess


def count_processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_in_processes(
    tasks: Sequence[SweepTask], runner: TaskRunner, num_processes: int
) -> Iterator[tuple[SweepTask, Report]]:
    """Each task with its report, as they finish; tasks are handed out in order, one at a time.

    When a task fails, running ones are still finished and yielded, then the error is raised. Leaving the iteration
    early ends the processes at once. With one process the tasks run in this one.
    """
    if num_processes < 1:
        raise InvalidInputError(f"number of processes is {num_processes}; give at least 1")
    if num_processes == 1 or len(tasks) < 2:
        for task in tasks:
            answer = attempt(runner, task)
            if isinstance(answer, Exception):
                raise answer
            yield task, answer
        return
    workers = [_Worker.start(runner) for _ in range(min(num_processes, len(tasks)))]
    try:
        yield from _hand_out(tasks, workers)
    finally:
        for worker in workers:
            worker.stop()


def _hand_out(tasks: Sequence[SweepTask], workers: list[_Worker]) -> Iterator[tuple[SweepTask, Report]]:
    waiting = iter(tasks)
    error: Exception | None = None
    for worker in workers:
        worker.give(next(waiting))
    while any(worker.task for worker in workers):
        ready = wait([worker.connection for worker in workers if worker.task])
        for worker in [worker for worker in workers if worker.connection in ready]:
            task = worker.task
            try:
                report = worker.take()
            except Exception as failure:
                error = error or failure
                continue
            following = None if error else next(waiting, None)
            if following is not None:
                worker.give(following)
            if task is not None:
                yield task, report
    if error is not None:
        raise error


@dataclass(slots=True)
class _Worker:
    """One process and what it is at."""

    process: SpawnProcess
    connection: Connection
    task: SweepTask | None = None

    @staticmethod
    def start(runner: TaskRunner) -> _Worker:
        # A spawned process has none of our pipes but its own, so it notices when this process is gone.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, runner), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def give(self, task: SweepTask) -> None:
        """Start a task."""
        self.task = task
        # A process that has died is noticed when its answer is asked for.
        with contextlib.suppress(OSError):
            self.connection.send(task)

    def take(self) -> Report:
        """The report of the task that is done, or its error."""
        task, self.task = self.task, None
        try:
            answer: Any = self.connection.recv()
        except (EOFError, OSError):
            self.process.join(timeout=10)
            raise TrtkvError(
                f"the process of {describe(task.configuration) if task else 'no task'} ended with code "
                f"{self.process.exitcode}; it may have run out of memory: try fewer --jobs"
            ) from None
        if isinstance(answer, Exception):
            raise answer
        report: Report = answer
        return report

    def stop(self) -> None:
        """End the process, whatever it is at."""
        self.connection.close()
        self.process.terminate()
        self.process.join()


def _serve(connection: Connection, runner: TaskRunner) -> None:
    """Body of a process: tasks in, reports or errors out, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too and ends this process
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        answer = attempt(runner, task)
        try:
            connection.send(answer)
        except OSError:
            return


def attempt(runner: TaskRunner, task: SweepTask) -> Report | Exception:
    """The report of a task, or its error with the configuration in the text."""
    try:
        return runner(task)
    except (TrtkvError, OSError) as error:
        return InvalidInputError(f"{describe(task.configuration)}: {error}")
    except Exception as error:
        return LogicError(f"{describe(task.configuration)}: {type(error).__name__}: {error}")
