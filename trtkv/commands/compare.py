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
        Path, typer.Argument(metavar="RESULT", help="Result to judge: JSON of trtkv, or TensorRT-LLM kvCacheStats.")
    ],
    reference: Annotated[
        str,
        typer.Argument(
            metavar="REFERENCE", help="A result file, the id of a bundled reference, or bundled: all of them that fit."
        ),
    ] = "bundled",
    tolerance: Annotated[
        float, typer.Option(help="Largest difference of a rate; of a count as a share of the reference.")
    ] = 0.0,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Compare this number; may be repeated.")
    ] = None,
    ignore_settings: Annotated[
        bool, typer.Option("--ignore-settings", help="Compare although block size, capacity or the like differ.")
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
