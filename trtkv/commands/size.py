"""The command ``trtkv size``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import typer

from trtkv.commands.command_record import as_command
from trtkv.commands.model_options import make_options
from trtkv.commands.output_files import check_outputs
from trtkv.commands.show import show
from trtkv.commands.size_options import SizeOptions
from trtkv.errors import InvalidInputError

if TYPE_CHECKING:
    from trtkv.sizing.cache_plan import SizingOptions
    from trtkv.sizing.plan_report import PlanReport
    from trtkv.sizing.request_room import RequestLength

EXIT_MISMATCH = 1

_ANY_MEMORY: Final = "1TiB"
"""Stands in for --memory where the memory is what is looked for."""


def run_size(options: SizeOptions) -> None:
    """Size a cache: bytes per token, blocks and tokens of each window, for a model and an amount of memory."""
    from trtkv.sizing.plan_comparison import PlanComparison

    check_outputs([options.json_file], [options.model, options.cache_spec])
    if options.list_models:
        _list_models(options.json_file)
        return
    columns = [options, *(options.changed(text) for text in options.versus or [])]
    reports = [_size(column) for column in columns]
    show(reports[0] if len(reports) == 1 else PlanComparison(reports), options.json_file)
    if any(report.check is not None and not report.check.is_good for report in reports):
        raise typer.Exit(EXIT_MISMATCH)


def _list_models(json_file: str | None) -> None:
    from trtkv.sizing.known_models import load_known_models
    from trtkv.sizing.known_models_report import KnownModelsReport

    show(KnownModelsReport(load_known_models()), json_file)


def _size(options: SizeOptions) -> PlanReport:
    """The report of one column."""
    from trtkv.sizing.cache_plan import make_cache_plan
    from trtkv.sizing.model_source import read_model
    from trtkv.sizing.plan_check import check_plan
    from trtkv.sizing.plan_report import PlanReport
    from trtkv.sizing.request_room import find_needed_memory, measure_room

    length, sizing = _request_length(options), _sizing_options(options)
    shape = read_model(options.model, options.cache_spec, ask_checkpoint=sizing.kv_dtype == "auto")
    needed = None
    if options.requests is None:
        plan = make_cache_plan(shape, sizing)
    else:
        if length is None:
            raise InvalidInputError("--requests is about requests of one length: add --input-len and --output-len")
        needed = find_needed_memory(shape, sizing, length, options.requests)
        plan = needed.plan
    return PlanReport(
        plan,
        check_plan(plan) if options.check else None,
        None if length is None else measure_room(plan, length),
        needed,
    )


def _request_length(options: SizeOptions) -> RequestLength | None:
    from trtkv.sizing.request_room import RequestLength

    if options.input_len is None and options.output_len is None:
        return None
    if options.input_len is None:
        raise InvalidInputError("--output-len needs --input-len")
    return RequestLength(options.input_len, options.output_len or 0)


def _sizing_options(options: SizeOptions) -> SizingOptions:
    if (options.memory is None) == (options.requests is None):
        raise InvalidInputError(
            "give --memory to see what fits, or --requests with --input-len and --output-len to see what is needed"
        )
    if options.requests is not None and options.reserved is not None:
        raise InvalidInputError("--reserved is a part of --memory; the memory that --requests shows is the cache's")
    return replace(
        make_options(
            _ANY_MEMORY if options.memory is None else options.memory,
            options.host_memory,
            options.kv_dtype,
            options.tp,
            options.tokens_per_block,
            options.max_seq_len,
            options.window_shares,
            options.reserved,
        ),
        pp_size=options.pp,
        windows=tuple(map(_parse_window, options.window or [])),
        max_batch_size=options.max_batch_size,
        block_reuse=not options.no_reuse,
        snapshot_interval=options.snapshot_interval,
    )


def _parse_window(text: str) -> int | None:
    if text.strip().lower() == "full":
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidInputError(f"--window is {text!r}; give a number of tokens, or full") from None


size = as_command(SizeOptions, run_size)
