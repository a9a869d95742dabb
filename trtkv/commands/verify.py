"""``trtkv verify``: replay recorded programs on the port and compare them value by value."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtkv.commands.output_files import check_outputs
from trtkv.commands.show import show

EXIT_DIFFERENT = 1


def verify(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", help="Programs (format trtkv.ops), or folders with *.jsonl files."),
    ],
    jobs: Annotated[int, typer.Option("--jobs", "-j", metavar="N", min=1, help="Processes to use.")] = 1,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write a JSON report; with - it takes the place of the text."),
    ] = None,
) -> None:
    """Replay recorded programs on this manager and compare every answer, error and observation.

    Exit status: 0 all equal, 1 something differs or cannot run here, 2 the input cannot be read.
    """
    from trtkv.verify.report import VerificationReport
    from trtkv.verify.runner import find_programs, verify_programs

    programs = find_programs(paths)
    check_outputs([json_file], programs)
    report = VerificationReport(list(verify_programs(programs, jobs)))
    show(report, None if json_file is None else str(json_file), boxed=False)
    if not report.is_equal:
        raise typer.Exit(EXIT_DIFFERENT)
