"""One run of a sweep, and what runs it with the trace of the run before where that is the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Report: TypeAlias = "dict[str, object]"
"""The JSON report of a replay."""

ReadTrace = Callable[[Any], Any]
"""Trace settings -> trace."""
RunReplay = Callable[[Any, Any], Report]
"""Trace and replay settings -> report."""


@dataclass(frozen=True, slots=True)
class SweepTask:
    """A configuration that is to be run. Both settings are opaque here and can be pickled."""

    key: str
    """Equal for equal runs: of everything that a result depends on."""
    configuration: Mapping[str, str]
    trace_settings: Hashable
    replay_settings: Any


class TaskRunner:
    """Runs tasks one after the other and keeps the last trace, so that tasks of one trace in a row read it once."""

    def __init__(self, read: ReadTrace, run: RunReplay) -> None:
        self._read = read
        self._run = run
        self._settings: Hashable = None
        self._trace: Any = None

    def __call__(self, task: SweepTask) -> Report:
        """The report of a task; reads its trace first unless it is the one at hand."""
        if self._trace is None or self._settings != task.trace_settings:
            self._trace = None  # gives its memory back before the next one is read
            self._trace = self._read(task.trace_settings)
            self._settings = task.trace_settings
        return self._run(self._trace, task.replay_settings)


def in_trace_order(tasks: list[SweepTask]) -> list[SweepTask]:
    """The tasks so that those of one trace follow each other; otherwise in their order."""
    groups: dict[Hashable, list[SweepTask]] = {}
    for task in tasks:
        groups.setdefault(task.trace_settings, []).append(task)
    return [task for group in groups.values() for task in group]
