"""The command ``trtkv size``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from trtkv.commands.model_options import (
    MEMORY_HELP,
    MODEL_HELP,
    HostMemoryOption,
    KvDtypeChoice,
    KvDtypeOption,
    MaxSeqLenOption,
    TpOption,
    WindowSharesOption,
    make_options,
    make_plan,
)
from trtkv.commands.output_files import check_outputs
from trtkv.commands.show import show

EXIT_MISMATCH = 1


def size(
    model: Annotated[Path, typer.Option("--model", metavar="FILE", help=MODEL_HELP)],
    memory: Annotated[str, typer.Option("--memory", metavar="SIZE", help=MEMORY_HELP)],
    host_memory: HostMemoryOption = None,
    kv_dtype: KvDtypeOption = KvDtypeChoice.AUTO,
    tp: TpOption = 1,
    tokens_per_block: Annotated[int, typer.Option(help="Tokens of a cache block.")] = 32,
    max_seq_len: MaxSeqLenOption = None,
    window: Annotated[
        list[str] | None,
        typer.Option(metavar="W|full", help="Window of a layer instead of the model's; repeated over the layers."),
    ] = None,
    window_shares: WindowSharesOption = None,
    max_batch_size: Annotated[
        int, typer.Option(help="Sequences at a time; counts for recurrent states with --no-reuse only.")
    ] = 1,
    no_reuse: Annotated[bool, typer.Option("--no-reuse", help="Without block reuse.")] = False,
    snapshot_interval: Annotated[
        int | None, typer.Option(help="Tokens between two snapshots of recurrent states.  [default: 256]")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Allocate the pools in little memory on the CPU and compare (needs torch).")
    ] = False,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON; - is standard output.")
    ] = None,
) -> None:
    """Show what fits: bytes a token, blocks and tokens of each window, for a model and an amount of memory."""
    from trtkv.sizing.plan_check import check_plan
    from trtkv.sizing.plan_report import PlanReport

    options = replace(
        make_options(memory, host_memory, kv_dtype, tp, tokens_per_block, max_seq_len, window_shares),
        windows=tuple(map(_parse_window, window or [])),
        max_batch_size=max_batch_size,
        block_reuse=not no_reuse,
        snapshot_interval=snapshot_interval,
    )
    check_outputs([json_file], [model])
    plan = make_plan(model, options)
    outcome = check_plan(plan) if check else None
    show(PlanReport(plan, outcome), json_file)
    if outcome is not None and not outcome.is_good:
        raise typer.Exit(EXIT_MISMATCH)


def _parse_window(text: str) -> int | None:
    from trtkv.errors import InvalidInputError

    if text.strip().lower() == "full":
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidInputError(f"--window is {text!r}; give a number of tokens, or full") from None
