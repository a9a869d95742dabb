"""The command ``trtkv replay``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import typer

from trtkv.commands.command_record import as_command, command_line
from trtkv.commands.never_run import warn_of_never_run
from trtkv.commands.output_files import check_outputs
from trtkv.commands.progress import progress_bar
from trtkv.commands.replay_extras import write_extras
from trtkv.commands.replay_job import TraceSettings, make_job, make_trace_settings, run_job
from trtkv.commands.replay_options import OUTPUT_FILES, ReplayOptions
from trtkv.commands.show import show

if TYPE_CHECKING:
    from trtkv.traces.trace import RequestTrace


def run_replay(options: ReplayOptions) -> None:
    """Replay a request trace through the manager and report hit rates.

    A fixed number of live requests is kept filled from the trace in file order; arrival times are not used. With
    --scheduler the capacity and the micro-batch scheduler decide instead, step by step on a virtual clock.
    """
    job = make_job(options, partial(typer.echo, err=True))
    check_outputs(
        (options.json_file, options.record, *job.extras.files), [options.trace, options.model, options.cache_spec]
    )
    outcome = run_job(job, _read(make_trace_settings(options), options.live), progress_bar)
    warning = warn_of_never_run(outcome)
    if warning is not None:
        typer.echo(warning, err=True)
    write_extras(outcome, job.extras, command_line("trtkv replay", options, without=OUTPUT_FILES))
    show(outcome, options.json_file)


def _read(settings: TraceSettings, live: int) -> RequestTrace:
    trace = settings.read()
    if settings.format_name is None:
        typer.echo(f"format: {trace.detected}", err=True)
    for note in trace.warnings:
        typer.echo(f"note: {note}", err=True)
    if live > 1 and not trace.sessions.session_count:
        typer.echo(
            f"note: the trace names no sessions, so with --live {live} turns of a conversation may overlap; "
            "--sessions infer guesses them",
            err=True,
        )
    if settings.block_size is not None and trace.block_size is None:
        typer.echo(f"note: --block-size has no meaning for format {trace.format}", err=True)
    return trace


replay = as_command(ReplayOptions, run_replay)
