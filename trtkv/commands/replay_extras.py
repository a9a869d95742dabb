"""What ``trtkv replay`` shows beyond counts and rates: causes, bounds, the curve over capacities, the page."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

import typer

from trtkv._version import __version__
from trtkv.commands.output_files import write_output
from trtkv.errors import InvalidInputError

if TYPE_CHECKING:
    from trtkv.replay.closed_loop.closed_loop import Progress
    from trtkv.replay.closed_loop.outcome import Outcome
    from trtkv.replay.closed_loop.result import ReplayResult
    from trtkv.replay.config import ReplayConfig
    from trtkv.traces.trace import RequestTrace

ProgressBar = Callable[[int], "AbstractContextManager[Progress | None]"]


class ExtraOptions(NamedTuple):
    """Options of the command, as given."""

    explain: bool
    explain_file: str | None
    bounds: bool
    curve: int | None
    html_file: str | None
    requests_file: str | None = None

    @property
    def files(self) -> tuple[str | None, ...]:
        """Files to be written."""
        return self.explain_file, self.html_file, self.requests_file

    @property
    def wants_causes(self) -> bool:
        """Whether tokens need causes."""
        return self.explain or self.explain_file is not None or self.html_file is not None


def check_extras(options: ExtraOptions, *, is_plain_replay: bool) -> None:
    """Refuse what cannot be done before anything is run. Raises MissingExtraError without the plot library."""
    from trtkv.replay.report.plots import require_plots

    needs_closed_loop = (options.explain_file, options.curve, options.requests_file)
    if not is_plain_replay and (options.explain or needs_closed_loop != (None, None, None)):
        raise InvalidInputError(
            "--explain, --explain-requests, --requests-json and --curve are about the closed loop of TensorRT-LLM's "
            "manager; leave --scheduler and --system out"
        )
    if options.curve is not None and options.curve < 1:
        raise InvalidInputError(f"--curve is {options.curve}; give the number of capacities, at least 1")
    if options.html_file is not None:
        require_plots()


def check_bounds(options: ExtraOptions, trace: RequestTrace, config: ReplayConfig) -> None:
    """Refuse bounds, causes and curves that cannot be given, before anything is run."""
    from trtkv.replay.bounds.bounds import has_bounds

    asked = (options.bounds, options.explain, options.explain_file is not None, options.curve is not None)
    if config.states is not None and any(asked):
        raise InvalidInputError(
            "--bounds, --explain, --explain-requests and --curve are not known for recurrent states, where the "
            "snapshots decide what is found; leave them out"
        )

    if options.bounds and not has_bounds(trace.requests, config):
        raise InvalidInputError(
            "--bounds is about full attention; give one --window full at least, and all windows the same room"
        )


def add_extras(result: ReplayResult, options: ExtraOptions, progress_bar: ProgressBar) -> ReplayResult:
    """The result with bounds and the curve that were asked for; a page gets both, the curve from the model alone."""
    from trtkv.replay.bounds.bounds import bounds_of
    from trtkv.replay.bounds.capacity_curve import model_curve
    from trtkv.replay.closed_loop.measured_curve import measure_curve

    trace, config = result.trace, result.config
    if options.bounds or options.html_file is not None:
        bounds = bounds_of(trace.requests, config)
        if bounds is not None:
            result = result.with_bounds(bounds)
    if options.curve is not None:
        with progress_bar(options.curve) as progress:
            jobs = os.cpu_count() or 1
            curve = measure_curve(trace, config, options.curve, jobs=jobs, progress=progress)
    elif options.html_file is not None and config.states is None:
        curve = model_curve(trace.requests, config.tokens_per_block)
    else:
        return result
    return result.with_curve(curve)


def write_extras(outcome: Outcome, options: ExtraOptions, command: str) -> None:
    """Write causes and outcomes of each request, and the page, which names the command."""
    from trtkv.replay.report.page import html_report
    from trtkv.tables.csv_text import csv_text
    from trtkv.tables.json_text import json_text

    if options.explain_file is not None and outcome.explanation is not None:
        write_output(options.explain_file, csv_text(outcome.explanation.requests_table()))
    if options.requests_file is not None and outcome.requests is not None:
        write_output(options.requests_file, json_text(outcome.requests))
    if options.html_file is not None:
        write_output(options.html_file, html_report(outcome, {"trtkv": __version__, "command": command}))
        if options.html_file != "-":
            typer.echo(f"page: {options.html_file}", err=True)
