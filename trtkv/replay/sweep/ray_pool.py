"""Runs tasks on a Ray cluster. Traces are read here once and handed over, so nodes need no files, only the package."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from trtkv._version import __version__
from trtkv.errors import ConfigurationError, InvalidInputError, MissingExtraError, TrtkvError
from trtkv.replay.sweep.grid import describe
from trtkv.replay.sweep.process_pool import attempt
from trtkv.replay.sweep.task import ReadTrace, Report, RunReplay, SweepTask, TaskRunner

LOCAL_ADDRESS: Final = "local"
"""Address of a Ray instance that is started for this sweep alone."""


def run_on_ray(
    tasks: Sequence[SweepTask],
    read: ReadTrace,
    run: RunReplay,
    *,
    address: str = LOCAL_ADDRESS,
    num_workers: int | None = None,
) -> Iterator[tuple[SweepTask, Report]]:
    """Each task with its report, as they finish; one processor a worker, by default all of the cluster.

    ``address`` is that of ray.init: auto, ray://HOST:PORT, or local. An instance that is connected already is used and
    left alone. Raises MissingExtraError without the package ray, ConfigurationError for nodes with another version.
    """
    ray = _import_ray()
    if num_workers is not None and num_workers < 1:
        raise InvalidInputError(f"number of workers is {num_workers}; give at least 1")
    if not tasks:
        return
    is_ours = not ray.is_initialized()
    if is_ours:
        options = {"num_cpus": num_workers, "include_dashboard": False} if address == LOCAL_ADDRESS else {}
        ray.init(address=address, log_to_driver=False, configure_logging=False, **options)
    workers: list[Any] = []
    try:
        count = num_workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        actor = ray.remote(num_cpus=1)(RayWorker)
        workers += [actor.remote(run) for _ in range(min(count, len(tasks)))]
        _check_versions(ray.get([worker.version.remote() for worker in workers]))
        yield from _hand_out(ray, tasks, read, workers)
    finally:
        for worker in workers:
            ray.kill(worker)
        if is_ours:
            ray.shutdown()


class RayWorker:
    """Body of a worker: keeps the trace of the task before."""

    def __init__(self, run: RunReplay) -> None:
        import ray

        self._runner = TaskRunner(ray.get, run)

    def version(self) -> str:
        """Version of the package on this node."""
        return __version__

    def run(self, task: SweepTask) -> Report | Exception:
        """The report of a task whose trace settings are a reference to the trace, or its error."""
        return attempt(self._runner, task)


def _hand_out(
    ray: Any, tasks: Sequence[SweepTask], read: ReadTrace, workers: Sequence[Any]
) -> Iterator[tuple[SweepTask, Report]]:
    waiting = iter(tasks)
    traces = _TraceStore(ray, read)
    running: dict[Any, tuple[SweepTask, Any]] = {}
    error: Exception | None = None

    def give(worker: Any) -> None:
        task = None if error else next(waiting, None)
        if task is not None:
            running[worker.run.remote(replace(task, trace_settings=traces.get(task.trace_settings)))] = (task, worker)

    for worker in workers:
        give(worker)
    while running:
        (done,), _ = ray.wait(list(running), num_returns=1)
        task, worker = running.pop(done)
        answer = _answer(ray, done, task)
        if isinstance(answer, Exception):
            error = error or answer
            continue
        give(worker)
        yield task, answer
    if error is not None:
        raise error


class _TraceStore:
    """The trace that is being handed out, in Ray's object store."""

    def __init__(self, ray: Any, read: ReadTrace) -> None:
        self._ray = ray
        self._read = read
        self._settings: Hashable = None
        self._reference: Any = None

    def get(self, settings: Hashable) -> Any:
        """A reference to the trace of these settings; reads it unless it is the last one."""
        if self._reference is None or self._settings != settings:
            self._reference = self._ray.put(self._read(settings))
            self._settings = settings
        return self._reference


def _answer(ray: Any, done: Any, task: SweepTask) -> Report | Exception:
    try:
        answer: Report | Exception = ray.get(done)
    except ray.exceptions.RayError as error:
        return TrtkvError(f"{describe(task.configuration)}: the Ray worker failed: {error}")
    return answer


def _check_versions(versions: Sequence[str]) -> None:
    others = sorted(set(versions) - {__version__})
    if others:
        raise ConfigurationError(
            f"nodes of the Ray cluster have trtkv {', '.join(others)}, this machine {__version__}; install one version"
        )


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError('a sweep on a cluster needs Ray: pip install "trtkv[ray]"') from error
    return ray
