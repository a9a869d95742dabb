"""The command ``trtkv replay``."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtkv.commands.format_choice import FormatOption
from trtkv.commands.model_options import (
    HostMemoryOption,
    KvDtypeChoice,
    KvDtypeOption,
    MaxSeqLenOption,
    MemoryOption,
    ModelOption,
    TpOption,
    WindowSharesOption,
)
from trtkv.commands.never_run import warn_of_never_run
from trtkv.commands.output_files import check_outputs, write_output
from trtkv.commands.replay_extras import write_extras
from trtkv.commands.replay_job import (
    ReplayJob,
    SystemChoice,
    TraceSettings,
    make_job,
    make_trace_settings,
    run_job,
)
from trtkv.commands.scheduler_replay import ArrivalsChoice, ChunkPolicyChoice, SchedulerChoice, show_loop_result

if TYPE_CHECKING:
    from trtkv.replay.result import ReplayResult
    from trtkv.traces.trace import RequestTrace


def replay(
    trace: Annotated[
        str, typer.Argument(metavar="TRACE", help="Request trace, plain or gzip, or a folder; - is standard input.")
    ],
    system: Annotated[
        SystemChoice, typer.Option(help="Whose block manager; nano-scheduler lets nano-vllm's scheduler preempt.")
    ] = SystemChoice.TENSORRT_LLM,
    trace_format: FormatOption = None,
    block_size: Annotated[
        int | None, typer.Option(help="Tokens that one hash id stands for. Needed for Mooncake rows (theirs: 512).")
    ] = None,
    tokens_per_block: Annotated[int, typer.Option(help="Tokens of a cache block.")] = 32,
    capacity_tokens: Annotated[
        str | None,
        typer.Option(metavar="N|inf", help="Tokens that the cache holds, e.g. 30000000, 30M or inf.  [default: inf]"),
    ] = None,
    host_tokens: Annotated[
        str | None, typer.Option(metavar="N", help="Tokens that the host tier holds.  [default: 0]")
    ] = None,
    model: ModelOption = None,
    memory: MemoryOption = None,
    host_memory: HostMemoryOption = None,
    kv_dtype: KvDtypeOption = KvDtypeChoice.AUTO,
    tp: TpOption = 1,
    max_seq_len: MaxSeqLenOption = None,
    window_shares: WindowSharesOption = None,
    live: Annotated[int, typer.Option(help="Most requests live at a time.")] = 1,
    window: Annotated[
        list[str] | None,
        typer.Option(
            metavar="W|full", help="Attention window of a layer in tokens; may be repeated. Without it: full."
        ),
    ] = None,
    no_partial_reuse: Annotated[
        bool, typer.Option("--no-partial-reuse", help="Reuse whole cached blocks only.")
    ] = False,
    no_copy_on_partial_reuse: Annotated[
        bool,
        typer.Option("--no-copy-on-partial-reuse", help="Take a part of a block over in place or not at all."),
    ] = False,
    compatibility: Annotated[
        bool, typer.Option("--compatibility", help="Behave exactly like the original, its faults included.")
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Read only the first N rows of the file.")] = None,
    lenient: Annotated[bool, typer.Option("--lenient", help="Count and skip malformed rows.")] = False,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer file or folder, for traces with text.")] = None,
    chat_template: Annotated[str | None, typer.Option(help="Chat template file, or chatml.")] = None,
    bounds: Annotated[
        bool, typer.Option("--bounds", help="Show what no policy could beat: unlimited cache, clairvoyant eviction.")
    ] = False,
    scheduler: Annotated[
        SchedulerChoice | None,
        typer.Option(help="Run the schedulers step by step on a virtual clock instead of the closed loop."),
    ] = None,
    max_batch_size: Annotated[
        int | None, typer.Option(help="With --scheduler: most requests in a step.  [default: 64]")
    ] = None,
    max_num_tokens: Annotated[
        int | None, typer.Option(help="With --scheduler: most tokens computed in a step.  [default: 8192]")
    ] = None,
    arrivals: Annotated[
        ArrivalsChoice | None,
        typer.Option(help="With --scheduler: all requests at once, or at the trace's times.  [default: asap]"),
    ] = None,
    step_time: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="With --scheduler: linear:base=6ms,context=40us,generation=20us,cached=50ns, or parts of it.",
        ),
    ] = None,
    chunked_context: Annotated[
        bool, typer.Option("--chunked-context", help="With --scheduler: cut prompts into chunks to fill steps.")
    ] = False,
    chunk_policy: Annotated[
        ChunkPolicyChoice | None,
        typer.Option(help="With --chunked-context: who gets the tokens.  [default: first-come-first-served]"),
    ] = None,
    chunk_unit: Annotated[
        int | None, typer.Option(help="With --chunked-context: chunks are multiples of it.  [default: a block]")
    ] = None,
    record: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="With --scheduler: write the run as a program for trtkv verify."),
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON; - is standard output.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Give every prompt token a cause: found, or why not.")
    ] = False,
    explain_file: Annotated[
        str | None,
        typer.Option("--explain-requests", metavar="FILE", help="Write the causes of each request as CSV."),
    ] = None,
    curve: Annotated[int | None, typer.Option(metavar="N", help="Run at N other capacities too, on all cores.")] = None,
    html_file: Annotated[
        str | None,
        typer.Option("--html", metavar="FILE", help="Write one self-contained page, with --explain and --bounds."),
    ] = None,
) -> None:
    """Replay a request trace through the manager and report hit rates.

    A fixed number of live requests is kept filled from the trace in file order; arrival times are not used. With
    --scheduler the capacity and the micro-batch scheduler decide instead, step by step on a virtual clock.
    """
    options = dict(locals())
    job = make_job(options, partial(typer.echo, err=True))
    check_outputs((json_file, record, *job.extras.files), [trace])
    requests = _read(make_trace_settings(options))
    _show_outcome(job, requests, json_file)


def _read(settings: TraceSettings) -> RequestTrace:
    trace = settings.read()
    if settings.format_name is None:
        typer.echo(f"format: {trace.detected}", err=True)
    if settings.block_size is not None and trace.block_size is None:
        typer.echo(f"note: --block-size has no meaning for format {trace.format}", err=True)
    return trace


def _show_outcome(job: ReplayJob, requests: RequestTrace, json_file: str | None) -> None:
    """Run the job and show what came of it, in the way of its kind."""
    from trtkv.replay.report.terminal import progress_bar
    from trtkv.replay.result import ReplayResult
    from trtkv.replay.scheduler_loop.loop_result import LoopResult

    outcome = run_job(job, requests, progress_bar)
    warning = warn_of_never_run(job, requests, outcome)
    if warning is not None:
        typer.echo(warning, err=True)
    if isinstance(outcome, LoopResult):
        show_loop_result(outcome, json_file)
    elif isinstance(outcome, ReplayResult):
        write_extras(outcome, job.extras)
        _show(outcome, json_file)
    else:
        _show_nano(outcome, json_file)


def _show(result: ReplayResult, json_file: str | None) -> None:
    from trtkv.replay.report.terminal import json_report, notes, print_report

    if json_file == "-":
        sys.stdout.write(json_report(result))
        for line in notes(result):
            typer.echo(line, err=True)
        return
    print_report(result)
    if json_file is not None:
        write_output(json_file, json_report(result))


def _show_nano(report: dict[str, object], json_file: str | None) -> None:
    from rich.console import Console

    from trtkv.replay.report.nano_report import print_nano_report, print_rates

    text = json.dumps(report, indent=2) + "\n"
    if json_file == "-":
        sys.stdout.write(text)
        return
    print_nano_report(report)
    bounds: Any = report.get("bounds")
    if bounds is not None:
        print_rates("Bounds", bounds["rates"], Console())
    if json_file is not None:
        write_output(json_file, text)
