"""Sweeps on Ray: a local instance where the package is installed, and a stand-in for everything else."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.replay.sweep import numbers
from trtkv.errors import ConfigurationError, InvalidInputError, MissingExtraError, TrtkvError
from trtkv.replay.sweep import ray_pool
from trtkv.replay.sweep.ray_pool import run_on_ray


class FakeRayError(Exception):
    """ray.exceptions.RayError."""


class FakeRay:
    """One process plays driver, store and nodes; results are there as soon as they are asked for."""

    def __init__(self, num_cpus: int = 2, version: str | None = None) -> None:
        self.exceptions = SimpleNamespace(RayError=FakeRayError)
        self.calls: list[str] = []
        self.num_workers = 0
        self._num_cpus = num_cpus
        self._version = version
        self._store: dict[str, Any] = {}

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: Any) -> None:
        self.calls.append(f"init {options['address']}")

    def shutdown(self) -> None:
        self.calls.append("shutdown")

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(self._num_cpus)}

    def put(self, value: Any) -> str:
        name = f"ref{len(self._store)}"
        self._store[name] = value
        return name

    def get(self, reference: Any) -> Any:
        if isinstance(reference, list):
            return [self.get(entry) for entry in reference]
        value = self._store[reference]
        if isinstance(value, FakeRayError):
            raise value
        return value

    def wait(self, references: list[str], num_returns: int) -> tuple[list[str], list[str]]:
        return references[-num_returns:], references[:-num_returns]

    def kill(self, worker: Any) -> None:
        self.calls.append("kill")

    def remote(self, num_cpus: int) -> Any:
        return lambda actor: SimpleNamespace(remote=lambda *arguments: self._make_worker(actor(*arguments)))

    def _make_worker(self, actor: Any) -> Any:
        self.num_workers += 1
        version = self._version or actor.version()

        def run(task: Any) -> str:
            if task.replay_settings.what == "lost":
                return self.put(FakeRayError("node lost"))
            return self.put(actor.run(task))

        return SimpleNamespace(
            version=SimpleNamespace(remote=lambda: self.put(version)), run=SimpleNamespace(remote=run)
        )


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    return ray


def sums(tasks: list[Any], **options: Any) -> dict[str, object]:
    return {task.key: report["sum"] for task, report in run_on_ray(tasks, numbers.read, numbers.run, **options)}


def test_traces_are_read_here_and_once(tmp_path: Path, fake_ray: FakeRay) -> None:
    tasks = numbers.make_tasks(tmp_path, traces=3, numbers=4)
    assert sums(tasks) == {task.key: sum(map(int, task.key.split("+"))) for task in tasks}
    lines = Counter(line for lines in numbers.read_log(tmp_path).values() for line in lines)
    assert {line: count for line, count in lines.items() if line.startswith("read")} == {
        f"read {trace}": 1 for trace in range(3)
    }
    assert fake_ray.calls == ["init local", "kill", "kill", "shutdown"]


def test_configurations_stay_those_that_were_given(tmp_path: Path, fake_ray: FakeRay) -> None:
    tasks = numbers.make_tasks(tmp_path, 1, 3)
    assert [task for task, _ in run_on_ray(tasks, numbers.read, numbers.run, num_workers=1)] == tasks
    assert fake_ray.num_workers == 1


def test_failures_are_told_and_everything_is_shut_down(tmp_path: Path, fake_ray: FakeRay) -> None:
    refused = [numbers.make_task(tmp_path, 0, 1), numbers.make_task(tmp_path, 0, 2, "refuse")]
    with pytest.raises(InvalidInputError, match="trace=0 number=2: no room"):
        sums(refused, address="auto")
    with pytest.raises(TrtkvError, match="trace=0 number=2: the Ray worker failed: node lost"):
        sums([numbers.make_task(tmp_path, 0, 2, "lost")])
    assert fake_ray.calls == ["init auto", "kill", "kill", "shutdown", "init local", "kill", "shutdown"]


def test_nodes_with_another_version_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", FakeRay(version="0.0.1"))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"nodes of the Ray cluster have trtkv 0\.0\.1"):
        sums(numbers.make_tasks(tmp_path, 1, 2))


def test_no_tasks_need_no_cluster(fake_ray: FakeRay) -> None:
    assert sums([]) == {}
    assert fake_ray.calls == []
    with pytest.raises(InvalidInputError, match="number of workers is 0"):
        sums([], num_workers=0)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"trtkv\[ray\]"):
        sums([])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_a_local_ray_instance_gives_what_processes_give(tmp_path: Path) -> None:
    tasks = numbers.make_tasks(tmp_path, traces=2, numbers=3)
    assert ray_pool.LOCAL_ADDRESS == "local"
    assert sums(tasks, num_workers=2) == {task.key: sum(map(int, task.key.split("+"))) for task in tasks}
    log = numbers.read_log(tmp_path)
    assert len(log) == 3  # the driver, which reads, and two workers, which run
    with pytest.raises(InvalidInputError, match="trace=0 number=1: no room"):
        sums([numbers.make_task(tmp_path, 0, 1, "refuse")], num_workers=1)
