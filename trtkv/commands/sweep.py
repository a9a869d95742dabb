"""The command ``trtkv sweep``."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
import typer.main

from trtkv.commands.command_record import as_command
from trtkv.commands.never_run import warn_of_sweep
from trtkv.commands.output_files import check_outputs, output_path, write_output
from trtkv.commands.progress import progress_bar
from trtkv.commands.replay_job import ReplayJob, TraceSettings, make_job, make_trace_settings, run_job, short_report
from trtkv.commands.replay_options import OUTPUT_FILES, ReplayOptions
from trtkv.commands.show import show

if TYPE_CHECKING:
    from trtkv.replay.sweep.columns import Cell
    from trtkv.replay.sweep.grid import Configuration
    from trtkv.replay.sweep.task import Report, SweepTask
    from trtkv.traces.trace import RequestTrace

NOT_SET: Final = ("trace", *OUTPUT_FILES, "curve", "help")
"""Parameters of a replay that a sweep does not set: traces are named by themselves, a file belongs to one replay, and a
curve is a sweep of its own."""


def sweep(
    traces: Annotated[list[str], typer.Argument(metavar="TRACE", help="Request traces: files or folders.")],
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="NAME=V[,V...]",
            help="Values of an option of trtkv replay, e.g. tokens-per-block=16,32; every combination is run.",
        ),
    ],
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Keep finished runs here as JSON lines; runs already in it are not repeated."
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Number of processes.  [default: all processors]")] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Run on a Ray cluster: auto, ray://HOST:PORT, or local to start one here."
        ),
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the rows as CSV.")] = None,
    parquet: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the rows as Parquet.")] = None,
) -> None:
    """Replay traces with every combination of settings, on all processors or a cluster; resumable."""
    from trtkv.eviction.registry import EVICTIONS
    from trtkv.replay.sweep.columns import make_row
    from trtkv.replay.sweep.grid import parse_settings
    from trtkv.replay.sweep.parquet import check_parquet, write_parquet
    from trtkv.replay.sweep.results_file import ResultsFile
    from trtkv.replay.sweep.sweep import run_sweep
    from trtkv.replay.sweep.sweep_table import SweepTable
    from trtkv.tables.csv_text import csv_text

    options = OptionParser()
    grid = {"trace": traces, **parse_settings(settings, options.names)}
    if grid.get("eviction") == ["all"]:
        grid["eviction"] = list(EVICTIONS)
    tasks = make_tasks(grid, options, _once(functools.partial(typer.echo, err=True)))
    check_outputs((results, csv, parquet), traces)
    if parquet is not None:
        check_parquet()
    start = time.perf_counter()
    with ExitStack() as stack:
        file = None if results is None else stack.enter_context(ResultsFile(results))
        progress = stack.enter_context(progress_bar(len({task.key for task in tasks}), what="sweep"))
        outcome = run_sweep(tasks, _executor(jobs, ray), file, progress)
    seconds = time.perf_counter() - start
    typer.echo(f"{outcome.num_run} runs in {seconds:.1f} s, {outcome.num_found} found in the results file", err=True)
    warning = warn_of_sweep(outcome.reports)
    if warning is not None:
        typer.echo(warning, err=True)
    pairs = zip(tasks, outcome.reports, strict=True)
    table = SweepTable([make_row(options.cells(dict(task.configuration)), report) for task, report in pairs], grid)
    show(table, None)
    if csv is not None:
        write_output(csv, csv_text(table.all_columns()))
    if parquet is not None:
        with output_path(parquet) as path:
            write_parquet(table.rows, path)


def read_trace(settings: TraceSettings) -> RequestTrace:
    """The trace of these settings."""
    return settings.read()


def run_replay(trace: RequestTrace, job: ReplayJob) -> Report:
    """The report of a run; shows nothing."""
    return short_report(run_job(job, trace, functools.partial(progress_bar, quiet=True)))


def _once(tell: Callable[[str], None]) -> Callable[[str], None]:
    """Says each line once, however many runs of the grid have it."""
    said: set[str] = set()

    def tell_once(line: str) -> None:
        if line not in said:
            said.add(line)
            tell(line)

    return tell_once


def make_tasks(
    grid: Mapping[str, Sequence[str]], options: OptionParser, tell: Callable[[str], None] | None = None
) -> list[SweepTask]:
    """A task for each combination, in order. InvalidInputError names one that cannot be run.

    ``tell`` is called with what the memory of each model became, and with the notes on the model.
    """
    from trtkv.errors import InvalidInputError, TrtkvError
    from trtkv.replay.sweep.grid import describe, expand_grid

    digest = functools.cache(_digest)
    tasks = []
    for configuration in expand_grid(grid):
        try:
            tasks.append(_make_task(configuration, options, digest, tell))
        except TrtkvError as error:
            raise InvalidInputError(f"{describe(configuration)}: {error}") from error
    return tasks


def _make_task(
    configuration: Configuration,
    options: OptionParser,
    digest: Callable[[str], str | None],
    tell: Callable[[str], None] | None,
) -> SweepTask:
    from trtkv._version import __version__
    from trtkv.replay.sweep.task import SweepTask

    given = options.parse(configuration)
    trace, job = make_trace_settings(given), make_job(given, tell)
    about = {
        "version": __version__,
        "trace": {
            **asdict(trace),
            "path": digest(trace.path),
            "tokenizer": None if trace.tokenizer is None else digest(str(trace.tokenizer)),
            "chat_template": trace.chat_template and (digest(trace.chat_template) or trace.chat_template),
        },
        "job": asdict(job),
    }
    key = hashlib.sha256(json.dumps(about, sort_keys=True, default=_plain).encode()).hexdigest()[:32]
    return SweepTask(key, configuration, trace, job)


def _plain(value: object) -> object:
    """What JSON has no word for: an enumeration by its value."""
    return value.value if isinstance(value, Enum) else str(value)


class OptionParser:
    """Reads the options of ``trtkv replay`` that a sweep can set, as the command itself does."""

    def __init__(self) -> None:
        self._read: list[ReplayOptions] = []
        app = typer.Typer(add_completion=False)
        app.command()(as_command(ReplayOptions, self._read.append))
        self._command = typer.main.get_command(app)
        self._parameters: dict[str, Any] = {
            parameter.opts[0].lstrip("-").replace("-", "_"): parameter
            for parameter in self._command.params
            if parameter.name not in NOT_SET
        }

    @property
    def names(self) -> list[str]:
        """Options by name, with underscores."""
        return list(self._parameters)

    def parse(self, configuration: Configuration) -> ReplayOptions:
        """All options of a configuration, which names a trace too."""
        from trtkv.errors import InvalidInputError

        arguments = [configuration["trace"]]
        for name, value in configuration.items():
            if name != "trace":
                arguments += _arguments(self._parameters[name], name, value)
        try:
            self._command.main(arguments, prog_name="trtkv sweep", standalone_mode=False)
        except typer.BadParameter as error:
            raise InvalidInputError(error.format_message()) from error
        return self._read.pop()

    def cells(self, configuration: Configuration) -> dict[str, Cell]:
        """The values of a configuration by name, each of its option's type; lists are text."""
        options = self.parse(configuration)
        fields = {name: parameter.name for name, parameter in self._parameters.items()} | {"trace": "trace"}
        return {name: _cell(getattr(options, fields[name])) for name in configuration}


def _cell(value: object) -> Cell:
    from trtkv.replay.sweep.grid import LIST_SEPARATOR

    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, list):
        return LIST_SEPARATOR.join(map(str, value))
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _arguments(parameter: Any, name: str, value: str) -> list[str]:
    from trtkv.errors import InvalidInputError
    from trtkv.replay.sweep.grid import LIST_SEPARATOR

    option = parameter.opts[0]
    if parameter.is_flag:
        if value.lower() not in ("true", "false"):
            raise InvalidInputError(f"{name} is {value!r}; it is a switch: give true or false")
        return [option] if value.lower() == "true" else []
    values = value.split(LIST_SEPARATOR) if parameter.multiple else [value]
    return [part for entry in values for part in (option, entry)]


def _executor(
    jobs: int | None, ray_address: str | None
) -> Callable[[Sequence[SweepTask]], Iterator[tuple[SweepTask, Report]]]:
    from trtkv.replay.sweep.process_pool import count_processors, run_in_processes
    from trtkv.replay.sweep.ray_pool import run_on_ray
    from trtkv.replay.sweep.task import TaskRunner

    if ray_address is not None:
        return functools.partial(run_on_ray, read=read_trace, run=run_replay, address=ray_address, num_workers=jobs)
    runner = TaskRunner(read_trace, run_replay)
    return functools.partial(
        run_in_processes, runner=runner, num_processes=count_processors() if jobs is None else jobs
    )


def _digest(path: str) -> str | None:
    """SHA-256 of a file, or of the files of a folder with their names; None where nothing is."""
    from trtkv.errors import InvalidInputError

    if path == "-":
        raise InvalidInputError("a sweep reads its traces more than once; standard input can be read once only")
    root = Path(path)
    files = sorted(file for file in root.rglob("*") if file.is_file()) if root.is_dir() else [root]
    if not root.exists():
        return None
    result = hashlib.sha256()
    for file in files:
        result.update(f"{file.relative_to(root)}\0{file.stat().st_size}\0".encode() if root.is_dir() else b"")
        with open(file, "rb") as stream:
            while chunk := stream.read(1 << 20):
                result.update(chunk)
    return result.hexdigest()
