"""The command ``trtkv trace convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtkv.commands.output_files import check_outputs, open_output
from trtkv.commands.trace_options import FormatOption, MaxLineBytesOption, OutputLengthOption
from trtkv.traces.formats.registry import WRITTEN_FORMATS


def _check_target(name: str) -> str:
    if name not in WRITTEN_FORMATS:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(WRITTEN_FORMATS)}")
    return name


def convert(
    trace: Annotated[str, typer.Argument(metavar="IN", help="Request trace of any format; - is standard input.")],
    output: Annotated[str, typer.Argument(metavar="OUT", help="Output file; - is standard output.")],
    target: Annotated[
        str, typer.Option("--to", metavar="FORMAT", callback=_check_target, help=f"{' or '.join(WRITTEN_FORMATS)}.")
    ],
    anonymise: Annotated[
        bool, typer.Option("--anonymise", help="Rename all ids; shared prefixes stay shared.")
    ] = False,
    to_block_size: Annotated[
        int | None,
        typer.Option(help="Tokens per hash id in the output.  [default: those of the trace, else 32]", min=1),
    ] = None,
    trace_format: FormatOption = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens per hash id of IN.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer file or folder, for traces with text.")] = None,
    chat_template: Annotated[str | None, typer.Option(help="Chat template file, or chatml.")] = None,
    limit: Annotated[int | None, typer.Option(help="Read only the first N rows.")] = None,
    lenient: Annotated[bool, typer.Option("--lenient", help="Skip malformed rows and report how many.")] = False,
    output_length: OutputLengthOption = None,
    max_line_bytes: MaxLineBytesOption = None,
) -> None:
    """Write a trace of any format as Mooncake rows or as token ids. No text is written."""
    from trtkv.traces.conversion import TargetFormat, converted_lines, hash_block_size
    from trtkv.traces.trace_reader import read_trace

    check_outputs([output], [trace])
    loaded = read_trace(
        trace,
        format_name=trace_format,
        block_size=block_size,
        tokenizer=tokenizer,
        chat_template=chat_template,
        limit=limit,
        lenient=lenient,
        output_length=output_length,
        max_line_bytes=max_line_bytes,
    )
    for line in (f"format: {loaded.detected}", *(f"note: {warning}" for warning in loaded.warnings)):
        typer.echo(line, err=True)
    kind = TargetFormat(target)
    with open_output(output) as stream:
        stream.writelines(converted_lines(loaded, kind, block_size=to_block_size, anonymise=anonymise))
    if kind is TargetFormat.MOONCAKE:
        size = hash_block_size(loaded, to_block_size)
        typer.echo(f"{len(loaded.requests)} requests; read them with --block-size {size}", err=True)
