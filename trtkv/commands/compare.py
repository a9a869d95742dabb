"""The command ``trtkv compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtkv.commands.output_files import check_outputs
from trtkv.commands.show import show

EXIT_DIFFERS = 1


def compare(
    result: Annotated[
        Path,
        typer.Argument(
            metavar="RESULT", help="Result to compare: JSON written by trtkv, or TensorRT-LLM kvCacheStats."
        ),
    ],
    reference: Annotated[
        str,
        typer.Argument(
            metavar="REFERENCE", help="Result file, id of a bundled reference, or bundled for all that apply."
        ),
    ] = "bundled",
    tolerance: Annotated[
        float, typer.Option(help="Maximum difference: absolute for rates, relative to the reference for counts.")
    ] = 0.0,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Compare only this number; repeatable.")
    ] = None,
    ignore_settings: Annotated[
        bool, typer.Option("--ignore-settings", help="Compare even if block size, capacity or other settings differ.")
    ] = False,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the comparison as JSON; - is standard output.")
    ] = None,
) -> None:
    """Compare a result with reference numbers, a recorded run, other statistics or an earlier result.

    Exit code 0: all numbers agree; 1: some differ; 2: the two sides do not measure the same thing.
    """
    from trtkv.compare.comparison import Comparisons
    from trtkv.compare.facts import load_facts
    from trtkv.compare.resolve import compare_with

    check_outputs([json_file], [result, reference])
    comparisons = Comparisons(
        compare_with(
            load_facts(result), reference, tolerance=tolerance, only=only or (), ignore_settings=ignore_settings
        )
    )
    show(comparisons, json_file)
    if not comparisons.agrees:
        raise typer.Exit(EXIT_DIFFERS)
