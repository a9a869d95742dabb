"""The command ``trtkv replay``."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtkv.commands.format_choice import FormatChoice
from trtkv.commands.replay_extras import ExtraOptions, add_extras, check_bounds, check_extras, write_extras
from trtkv.commands.scheduler_replay import (
    ArrivalsChoice,
    ChunkPolicyChoice,
    SchedulerChoice,
    SchedulerOptions,
    make_loop_config,
    refuse_without_scheduler,
    run_scheduler_loop,
    show_loop_result,
)

if TYPE_CHECKING:
    from trtkv.replay.loop_config import LoopConfig
    from trtkv.replay.loop_result import LoopResult
    from trtkv.replay.readers.options import ReadOptions
    from trtkv.replay.replay_config import ReplayConfig
    from trtkv.replay.replay_result import ReplayResult
    from trtkv.replay.trace import RequestTrace


class SystemChoice(str, Enum):
    """Values of ``--system``."""

    TENSORRT_LLM = "tensorrt-llm"
    NANO = "nano"
    NANO_SCHEDULER = "nano-scheduler"


def replay(
    trace: Annotated[str, typer.Argument(help="Request trace, plain or gzip, or a folder; - is standard input.")],
    system: Annotated[
        SystemChoice, typer.Option(help="Whose block manager; nano-scheduler lets nano-vllm's scheduler preempt.")
    ] = SystemChoice.TENSORRT_LLM,
    trace_format: Annotated[
        FormatChoice, typer.Option("--format", help="Format of the trace; auto tells it from the first row.")
    ] = FormatChoice.AUTO,
    block_size: Annotated[
        int | None, typer.Option(help="Tokens that one hash id stands for. Needed for Mooncake rows (theirs: 512).")
    ] = None,
    tokens_per_block: Annotated[int, typer.Option(help="Tokens of a cache block.")] = 32,
    capacity_tokens: Annotated[
        str, typer.Option(metavar="N|inf", help="Tokens that the cache holds, e.g. 30000000, 30M or inf.")
    ] = "inf",
    host_tokens: Annotated[str, typer.Option(metavar="N", help="Tokens that the host tier holds.")] = "0",
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
    from trtkv.replay.readers.options import ReadOptions
    from trtkv.replay.replay_config import ReplayConfig

    config = ReplayConfig(
        tokens_per_block=tokens_per_block,
        capacity_tokens=_parse_capacity(capacity_tokens),
        host_tokens=_parse_tokens("--host-tokens", host_tokens),
        live=live,
        partial_reuse=not no_partial_reuse,
        copy_on_partial_reuse=not no_copy_on_partial_reuse,
        windows=tuple(map(_parse_window, window or ["full"])),
        compatibility=compatibility,
    )
    _check_system(system, config)
    scheduler_options = SchedulerOptions(
        scheduler,
        max_batch_size,
        max_num_tokens,
        arrivals,
        step_time,
        chunked_context,
        chunk_policy,
        chunk_unit,
        record,
    )
    loop_config = _loop_config(scheduler_options, config, system, bounds)
    extras = ExtraOptions(explain, explain_file, bounds, curve, html_file)
    is_plain_replay = loop_config is None and system is SystemChoice.TENSORRT_LLM
    check_extras(extras, is_plain_replay=is_plain_replay)
    for path in (json_file, record, *extras.files):
        _check_writable(path)
    options = ReadOptions(block_size, tokenizer, chat_template)
    requests = _read(trace, trace_format.format_name, options, lenient, limit)
    if loop_config is not None:
        show_loop_result(_run_loop(requests, loop_config, record), json_file)
        return
    if is_plain_replay:
        _show(_run(requests, config, extras), json_file)
    else:
        shown_bounds = _bounds(requests, config, system) if bounds else None
        _show_nano(_run_nano(requests, config, system), shown_bounds, json_file)


def _check_system(system: SystemChoice, config: ReplayConfig) -> None:
    """nano-vllm has one tier, full attention and whole blocks; options about anything else are refused."""
    from trtkv.errors import ConfigurationError

    if system is SystemChoice.TENSORRT_LLM:
        return
    if config.host_tokens or config.windows != (None,) or config.compatibility:
        raise ConfigurationError(
            f"--system {system.value} knows neither --host-tokens nor --window nor --compatibility; leave them out"
        )


def _loop_config(
    options: SchedulerOptions, config: ReplayConfig, system: SystemChoice, bounds: bool
) -> LoopConfig | None:
    """Settings of the scheduler loop, or None for the closed loop; refuses options of the other one."""
    from trtkv.errors import InvalidInputError

    if options.scheduler is None:
        refuse_without_scheduler(options)
        return None
    if config.live != 1 or bounds or system is not SystemChoice.TENSORRT_LLM:
        raise InvalidInputError("--live, --bounds and --system do not go with --scheduler; leave them out")
    return make_loop_config(options, config)


def _read(path: str, format_name: str | None, options: ReadOptions, lenient: bool, limit: int | None) -> RequestTrace:
    from trtkv.replay.readers.registry import read_requests

    loaded = read_requests(path, options, format_name=format_name, lenient=lenient, limit=limit)
    if format_name is None:
        typer.echo(f"format: {loaded.detected}", err=True)
    if options.block_size is not None and loaded.trace.block_size is None:
        typer.echo(f"note: --block-size has no meaning for format {loaded.trace.format}", err=True)
    return loaded.trace


def _bounds(trace: RequestTrace, config: ReplayConfig, system: SystemChoice) -> dict[str, Any]:
    from trtkv.errors import InvalidInputError
    from trtkv.replay.bounds import compute_bounds

    if system is SystemChoice.NANO_SCHEDULER:
        raise InvalidInputError("--bounds is about the closed loop; use --system nano")
    return compute_bounds(
        trace.requests,
        tokens_per_block=config.tokens_per_block,
        capacity_tokens=config.capacity_tokens,
        host_tokens=config.host_tokens,
        live=config.live,
        partial_reuse=False,
    ).to_json()


def _run_nano(trace: RequestTrace, config: ReplayConfig, system: SystemChoice) -> dict[str, object]:
    from trtkv.replay.nano_driver import run_nano, run_nano_scheduler
    from trtkv.replay.nano_report import nano_report
    from trtkv.replay.report import progress_bar

    run = run_nano if system is SystemChoice.NANO else run_nano_scheduler
    with progress_bar(len(trace.requests)) as progress, _without_cycle_collector():
        counts = run(
            trace.requests,
            tokens_per_block=config.tokens_per_block,
            capacity_tokens=config.capacity_tokens,
            live=config.live,
            progress=progress,
        )
    return nano_report(trace, counts)


def _run_loop(trace: RequestTrace, config: LoopConfig, record: str | None) -> LoopResult:
    from trtkv.replay.report import progress_bar

    with _without_cycle_collector():
        return run_scheduler_loop(trace, config, record, progress_bar)


def _run(trace: RequestTrace, config: ReplayConfig, extras: ExtraOptions) -> ReplayResult:
    from trtkv.replay.replay_result import replay_trace
    from trtkv.replay.report import progress_bar

    check_bounds(extras, trace, config)
    with progress_bar(len(trace.requests)) as progress, _without_cycle_collector():
        result, _ = replay_trace(trace, config, progress=progress, explain=extras.wants_causes)
    result = add_extras(result, extras, progress_bar)
    write_extras(result, extras)
    return result


@contextmanager
def _without_cycle_collector() -> Iterator[None]:
    """A replay makes no cyclic garbage, but the collector would walk all cached blocks again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _show(result: ReplayResult, json_file: str | None) -> None:
    from trtkv.replay.report import json_report, notes, print_report

    if json_file == "-":
        sys.stdout.write(json_report(result))
        for line in notes(result):
            typer.echo(line, err=True)
        return
    print_report(result)
    if json_file is not None:
        with open(json_file, "w", encoding="utf-8") as stream:
            stream.write(json_report(result))


def _show_nano(report: dict[str, object], bounds: dict[str, Any] | None, json_file: str | None) -> None:
    from trtkv.replay.nano_report import print_nano_report

    if json_file == "-":
        sys.stdout.write(_json_text(report, bounds))
        return
    print_nano_report(report)
    _print_bounds(bounds)
    if json_file is not None:
        with open(json_file, "w", encoding="utf-8") as stream:
            stream.write(_json_text(report, bounds))


def _json_text(report: dict[str, object], bounds: dict[str, Any] | None) -> str:
    """The report, with its bounds as last entry if there are any."""
    return json.dumps(report if bounds is None else {**report, "bounds": bounds}, indent=2) + "\n"


def _print_bounds(bounds: dict[str, Any] | None) -> None:
    if bounds is not None:
        from rich.console import Console

        from trtkv.replay.nano_report import print_rates

        print_rates("Bounds", bounds["rates"], Console())


def _check_writable(path: str | None) -> None:
    """Fail before a long run rather than after it. Leaves no new file and no changed one behind."""
    if path is None or path == "-":
        return
    is_new = not os.path.exists(path)
    with open(path, "a", encoding="utf-8"):
        pass
    if is_new:
        os.unlink(path)


_FACTORS = {"k": 10**3, "m": 10**6, "g": 10**9}


def _parse_tokens(option: str, text: str) -> int:
    from trtkv.errors import InvalidInputError

    digits, factor = text.strip(), 1
    if digits and digits[-1].lower() in _FACTORS:
        digits, factor = digits[:-1], _FACTORS[digits[-1].lower()]
    try:
        return int(digits) * factor
    except ValueError:
        raise InvalidInputError(f"{option} is {text!r}; give a number of tokens such as 30000000 or 30M") from None


def _parse_capacity(text: str) -> int | None:
    return None if text.strip().lower() == "inf" else _parse_tokens("--capacity-tokens", text)


def _parse_window(text: str) -> int | None:
    return None if text.strip().lower() == "full" else _parse_tokens("--window", text)
