"""The command ``trtkv replay``."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from enum import Enum
from typing import IO, TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from trtkv.replay.replay_config import ReplayConfig
    from trtkv.replay.replay_result import ReplayResult
    from trtkv.replay.trace import RequestTrace


class FormatChoice(str, Enum):
    """Values of ``--format``."""

    AUTO = "auto"
    MOONCAKE = "mooncake"
    TOKENS = "tokens"


def replay(
    trace: Annotated[str, typer.Argument(help="Request trace, plain or gzip; - is standard input.")],
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
    bounds: Annotated[
        bool, typer.Option("--bounds", help="Show what an unlimited and what a clairvoyant cache would find.")
    ] = False,
    curve: Annotated[
        int | None, typer.Option(metavar="N", help="Run at N capacities too, on all cores, and show the curve.")
    ] = None,
    html_file: Annotated[
        str | None,
        typer.Option("--html", metavar="FILE", help="Write one self-contained page; implies --explain and --bounds."),
    ] = None,
) -> None:
    """Replay a request trace through the manager and report hit rates.

    A fixed number of live requests is kept filled from the trace in file order; arrival times are not used.
    """
    from trtkv.replay.plots import require_plots
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
    if html_file is not None:
        require_plots()
    for path in (json_file, explain_file, html_file):
        _check_writable(path)
    requests = _read(trace, trace_format, block_size, lenient, limit)
    with_page = html_file is not None
    result = _run(requests, config, explain=explain or explain_file is not None or with_page)
    result = _extend(result, bounds=bounds or with_page, curve=curve, model=with_page)
    _write_extras(result, explain_file, html_file)
    _show(result, json_file)


def _read(path: str, choice: FormatChoice, block_size: int | None, lenient: bool, limit: int | None) -> RequestTrace:
    from trtkv.replay.formats import FORMATS, read_trace

    format_name = None if choice is FormatChoice.AUTO else choice.value
    trace = read_trace(path, format_name=format_name, block_size=block_size, lenient=lenient, limit=limit)
    if format_name is None:
        keys = ", ".join(FORMATS[trace.format].keys)
        typer.echo(f"format: {trace.format} (the first row has {keys})", err=True)
    if block_size is not None and trace.block_size is None:
        typer.echo(f"note: --block-size has no meaning for format {trace.format}", err=True)
    return trace


def _run(trace: RequestTrace, config: ReplayConfig, *, explain: bool) -> ReplayResult:
    from trtkv.replay.replay_result import replay_trace
    from trtkv.replay.report import progress_bar

    with progress_bar(len(trace.requests)) as progress, _without_cycle_collector():
        result, _ = replay_trace(trace, config, progress=progress, explain=explain)
    return result


def _extend(result: ReplayResult, *, bounds: bool, curve: int | None, model: bool) -> ReplayResult:
    """The result with bounds, and with a curve over capacities: run, or the model alone."""
    from trtkv.replay.bounds import bounds_of
    from trtkv.replay.capacity_curve import measure_curve, model_curve
    from trtkv.replay.report import progress_bar

    trace, config = result.trace, result.config
    if bounds:
        found = bounds_of(trace.requests, config)
        if found is None:
            typer.echo(
                "note: bounds need an attention window as wide as the longest sequence; none are given", err=True
            )
        else:
            result = result.with_bounds(found)
    if curve is not None:
        with progress_bar(curve) as progress:
            jobs = os.cpu_count() or 1
            result = replace(result, curve=measure_curve(trace, config, curve, jobs=jobs, progress=progress))
    elif model:
        result = replace(result, curve=model_curve(trace.requests, config.tokens_per_block))
    return result


def _write_extras(result: ReplayResult, explain_file: str | None, html_file: str | None) -> None:
    from trtkv.replay.html_report import html_report

    if explain_file is not None and result.explanation is not None:
        with _open_output(explain_file) as stream:
            result.explanation.write_requests(stream)
    if html_file is not None:
        with _open_output(html_file) as stream:
            stream.write(html_report(result))


def _open_output(path: str) -> AbstractContextManager[IO[str]]:
    return nullcontext(sys.stdout) if path == "-" else open(path, "w", encoding="utf-8", newline="")


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
