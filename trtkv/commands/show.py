"""How commands show and write what they found."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from trtkv.commands.output_files import write_output

if TYPE_CHECKING:
    from trtkv.tables.result import Result


def show(result: Result, json_file: str | None, *, boxed: bool = True) -> None:
    """Tables on standard output and JSON to a file; or (``-``) JSON on standard output and notes on standard error."""
    from trtkv.tables.json_text import json_text
    from trtkv.tables.terminal import print_result

    if json_file == "-":
        sys.stdout.write(json_text(result.to_json()))
        for line in result.notes():
            typer.echo(line, err=True)
        return
    print_result(result, boxed=boxed)
    if json_file is not None:
        write_output(json_file, json_text(result.to_json()))
