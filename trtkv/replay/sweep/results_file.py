"""ResultsFile: finished runs of a sweep, one JSON line each, written as they finish."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

from trtkv.errors import InvalidInputError
from trtkv.replay.sweep.task import Report, SweepTask


class FinishedRun(NamedTuple):
    """One line of the file."""

    key: str
    configuration: Mapping[str, str]
    report: Report

    def to_line(self) -> bytes:
        """The line, with its end."""
        return (json.dumps(self._asdict()) + "\n").encode()


class ResultsFile:
    """Runs that are finished, by key. A file of its own, open for this process alone until it is closed.

    A line is written whole or, when the process is killed in the middle of it, not ended; such a rest is cut off when
    the file is opened again. Runs of other sweeps in the file stay there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._stream: IO[bytes] = open(self.path, "a+b", buffering=0)  # noqa: SIM115 - closed by close()
        try:
            _lock(self._stream, self.path)
            self._runs = _read_runs(self._stream, self.path)
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __contains__(self, key: str) -> bool:
        return key in self._runs

    def get(self, key: str) -> Report | None:
        """The report of a finished run, or None."""
        run = self._runs.get(key)
        return None if run is None else run.report

    def add(self, task: SweepTask, report: Report) -> None:
        """Write a finished run to the disk at once."""
        run = FinishedRun(task.key, dict(task.configuration), report)
        self._runs[task.key] = run
        line = run.to_line()
        while line:
            line = line[self._stream.write(line) or 0 :]
        os.fsync(self._stream.fileno())

    def close_sorted(self, keys: Iterable[str]) -> None:
        """Put the runs of these keys into this order, behind those of other sweeps, and let the file go.

        The file is replaced in one step, so it is whole at every moment.
        """
        self._sort(keys)
        self.close()

    def _sort(self, keys: Iterable[str]) -> None:
        order = dict.fromkeys(keys)
        others = [key for key in self._runs if key not in order]
        wanted = [*others, *(key for key in order if key in self._runs)]
        if wanted == list(self._runs):
            return
        self._runs = {key: self._runs[key] for key in wanted}
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        with open(temporary, "wb") as stream:
            stream.writelines(run.to_line() for run in self._runs.values())
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, self.path)

    def close(self) -> None:
        """Let the file go; nothing may be added any more."""
        self._stream.close()


def _read_runs(stream: IO[bytes], path: Path) -> dict[str, FinishedRun]:
    """All runs of the file; cuts off an unfinished last line."""
    stream.seek(0)
    content = stream.read()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        if not content[end:].startswith(b"{"):
            raise InvalidInputError(f"{path} ends in something that is not a result of a sweep; choose another file")
        stream.truncate(end)
    runs = {}
    for line_number, line in enumerate(content[:end].splitlines(), 1):
        run = _parse_line(line, path, line_number)
        runs[run.key] = run
    return runs


def _parse_line(line: bytes, path: Path, line_number: int) -> FinishedRun:
    try:
        row: Any = json.loads(line)
        run = FinishedRun(row["key"], row["configuration"], row["report"])
    except (ValueError, KeyError, TypeError):
        run = None
    if run is None or not isinstance(run.key, str) or not isinstance(run.report, dict):
        raise InvalidInputError(
            f"{path}:{line_number}: this is not a result of a sweep; choose another file, or take the line out"
        )
    return run


def _lock(stream: IO[bytes], path: Path) -> None:
    """Keep other sweeps out; where the system has no such locks (Windows), nothing keeps them out."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidInputError(f"{path} is in use by another sweep; wait for it, or choose another file") from None
