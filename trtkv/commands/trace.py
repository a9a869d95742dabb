"""The commands ``trtkv trace ...``."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from trtkv.commands.output_files import open_output
from trtkv.commands.trace_convert import convert
from trtkv.commands.trace_info import info

trace_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Generate, describe and convert request traces."
)
trace_app.command()(info)
trace_app.command()(convert)


class KindChoice(str, Enum):
    """Values of ``--kind``."""

    CHAT = "chat"
    AGENT = "agent"
    RAG = "rag"


@trace_app.command()
def generate(
    kind: Annotated[KindChoice, typer.Option(help="Kind of workload; docs/workloads.md describes each.")],
    requests: Annotated[int, typer.Option(metavar="N", help="Number of requests.")],
    seed: Annotated[int, typer.Option(metavar="S", help="Random seed; the same seed gives the same trace.")],
    block_size: Annotated[int, typer.Option(help="Tokens per hash id.")] = 512,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Output file; - is standard output.")
    ] = "-",
) -> None:
    """Write a generated workload as Mooncake JSONL, sorted by time."""
    from random import Random

    from trtkv.traces.generate.workload import generate_workload

    rows = generate_workload(kind.value, requests, Random(seed), block_size)
    lines = (row.to_json() + "\n" for row in rows)
    with open_output(output) as stream:
        stream.writelines(lines)
