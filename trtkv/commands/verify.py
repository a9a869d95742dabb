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
    jobs: Annotated[int, typer.Option("--jobs", "-j", metavar="N", min=1, help="Number of processes.")] = 1,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write a JSON report; - replaces the text on standard output."),
    ] = None,
    default: Annotated[
        bool,
        typer.Option("--default", help="Run the default behaviour and name the decision that explains each departure."),
    ] = False,
) -> None:
    """Replay recorded programs on this manager and compare every answer, error and observation.

    With --default the programs run on the default behaviour, with the recorded one beside it. Each program that departs
    is listed with its first departure and the decision in docs/decisions that explains it.

    Exit status: 0 all equal (with --default: all explained), 1 something differs (is not explained) or cannot run here,
    2 the input cannot be read.
    """
    from trtkv.verify.default_report import DefaultReport
    from trtkv.verify.default_run import verify_default
    from trtkv.verify.report import VerificationReport
    from trtkv.verify.runner import find_programs, map_programs, verify_programs

    programs = find_programs(paths)
    check_outputs([json_file], programs)
    report: DefaultReport | VerificationReport
    if default:
        report = DefaultReport(list(map_programs(verify_default, programs, jobs)))
        is_good = report.is_explained
    else:
        report = VerificationReport(list(verify_programs(programs, jobs)))
        is_good = report.is_equal
    show(report, None if json_file is None else str(json_file), boxed=False)
    if not is_good:
        raise typer.Exit(EXIT_DIFFERENT)
