"""The commands ``trtkv reference ...``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtkv.commands.output_files import check_outputs, write_output
from trtkv.commands.show import show
from trtkv.tables.json_text import json_text

if TYPE_CHECKING:
    from trtkv.compare.checks import Check
    from trtkv.compare.reference import ReferenceNumber

reference_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Show and check the reference numbers that come with trtkv."
)

EXIT_DIFFERS = 1

JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write JSON instead; - is standard output.")
]


@reference_app.command("list")
def list_references(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Only ids with this prefix.")] = "",
    runs: Annotated[bool, typer.Option("--runs", help="List the recorded runs of the original manager.")] = False,
    json_file: JsonOption = None,
) -> None:
    """List reference numbers with their definitions and sources."""
    from trtkv.compare.reference import load_runs

    numbers = _numbers(prefix)
    run_ids = [run for run in load_runs() if run.startswith(prefix)]
    if json_file is not None:
        entries: Sequence[object] = run_ids if runs else [number._asdict() for number in numbers]
        write_output(json_file, json_text(entries))
    elif runs:
        typer.echo("\n".join(run_ids))
    else:
        # No table, as ids are long and have to be copied.
        typer.echo("Bundled reference numbers")
        for number in numbers:
            typer.echo(f"{number.id}  {number.text}\n    {number.what}; {number.source} ({number.mark})")
        typer.echo(f"and {len(run_ids)} recorded runs of the original manager (ids: --runs)")


@reference_app.command()
def check(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder with the public trace files, at any depth.")],
    prefix: Annotated[str, typer.Option(help="Only ids with this prefix.")] = "",
    json_file: JsonOption = None,
) -> None:
    """Recompute reference numbers from the public trace files and show expected against actual.

    Files are told by name and checksum. Exit code 0: all agree, those of papers within the tolerance shown; 1: some
    differ; 2: no trace at hand.
    """
    from trtkv.compare.checks import Checks, check_numbers, find_traces

    traces = find_traces(folder)
    check_outputs([json_file], traces.values())
    numbers = [number for number in _numbers(prefix) if number.method and number.trace in traces]
    checks: list[Check] = []
    for found in check_numbers(numbers, traces):
        checks.append(found)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{len(checks)} of {len(numbers)}")
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    found_again = Checks(checks)
    if json_file is None:
        show(found_again, None)
    else:
        write_output(json_file, json_text(found_again.to_json()))
    if not found_again.agrees:
        raise typer.Exit(EXIT_DIFFERS)


def _numbers(prefix: str) -> list[ReferenceNumber]:
    from trtkv.compare.reference import load_numbers

    return [number for number in load_numbers() if number.id.startswith(prefix)]
