"""A stand-in for replays that processes can import: a trace is a number, its report the sum with another number.

Each reading and each run is written down in a folder, so that tests see what happened in other processes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from trtkv.errors import ConfigurationError
from trtkv.replay.sweep.task import Report, SweepTask


class Trace(NamedTuple):
    """Trace settings: what to read, and where to write that down."""

    number: int
    log: str


class Run(NamedTuple):
    """Replay settings."""

    number: int
    log: str
    what: str = "add"


def read(trace: Trace) -> int:
    _log(trace.log, f"read {trace.number}")
    return trace.number


def run(number: int, settings: Run) -> Report:
    _log(settings.log, f"run {number} {settings.number}")
    if settings.what == "refuse":
        raise ConfigurationError("no room")
    if settings.what == "crash":
        raise ZeroDivisionError("by zero")
    if settings.what == "die":
        os._exit(7)
    if settings.what == "wait":
        time.sleep(0.3)
    return {"sum": number + settings.number}


def make_task(log: Path, trace: int, number: int, what: str = "add") -> SweepTask:
    configuration = {"trace": str(trace), "number": str(number)}
    return SweepTask(f"{trace}+{number}", configuration, Trace(trace, str(log)), Run(number, str(log), what))


def make_tasks(log: Path, traces: int, numbers: int) -> list[SweepTask]:
    return [make_task(log, trace, number) for trace in range(traces) for number in range(numbers)]


def read_log(log: Path) -> dict[int, list[str]]:
    """What each process did, in order."""
    return {int(path.name): path.read_text().splitlines() for path in sorted(log.iterdir())}


def _log(folder: str, line: str) -> None:
    with open(Path(folder) / str(os.getpid()), "a", encoding="utf-8") as stream:
        stream.write(line + "\n")
