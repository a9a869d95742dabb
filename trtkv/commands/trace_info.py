"""The command ``trtkv trace info``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtkv.commands.output_files import check_outputs
from trtkv.commands.show import show
from trtkv.commands.trace_options import (
    FormatOption,
    MaxLineBytesOption,
    OutputLengthOption,
    OutputsOption,
    SessionsOption,
)
from trtkv.traces.sessions.protocol import Outputs, Sessions


def info(
    trace: Annotated[
        str,
        typer.Argument(
            metavar="TRACE", help="Request trace: a file, plain or compressed, a folder, or - for standard input."
        ),
    ],
    trace_format: FormatOption = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens per hash id.")] = None,
    tokens_per_block: Annotated[
        int | None, typer.Option(help="Tokens per block in the figures.  [default: those of a hash id, else 32]")
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer file or folder, for traces with text.")] = None,
    chat_template: Annotated[str | None, typer.Option(help="Chat template file, or chatml.")] = None,
    limit: Annotated[int | None, typer.Option(help="Read only the first N rows.")] = None,
    lenient: Annotated[bool, typer.Option("--lenient", help="Skip malformed rows and report how many.")] = False,
    output_length: OutputLengthOption = None,
    max_line_bytes: MaxLineBytesOption = None,
    sessions: SessionsOption = Sessions.TRACE,
    outputs: OutputsOption = Outputs.TRACE,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON; - is standard output.")
    ] = None,
) -> None:
    """Describe a trace: requests, tokens, shared prefixes, reuse distances, working sets."""
    from trtkv.errors import InvalidInputError
    from trtkv.traces.info.trace_info import describe_trace
    from trtkv.traces.trace_reader import read_trace

    if tokens_per_block is not None and tokens_per_block < 1:
        raise InvalidInputError(f"--tokens-per-block is {tokens_per_block}; give at least 1")
    check_outputs([json_file], [trace])
    loaded = read_trace(
        trace,
        format_name=trace_format,
        block_size=block_size,
        tokenizer=tokenizer,
        chat_template=chat_template,
        lenient=lenient,
        limit=limit,
        output_length=output_length,
        max_line_bytes=max_line_bytes,
        allow_lengths_only=True,
        sessions=sessions,
        outputs=outputs,
    )
    typer.echo(f"format: {loaded.detected}", err=True)
    for note in loaded.warnings:
        typer.echo(f"note: {note}", err=True)
    show(describe_trace(loaded, tokens_per_block=tokens_per_block), json_file)
