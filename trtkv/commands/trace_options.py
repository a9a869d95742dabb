"""Options about reading a trace. Names of formats come from the registry; no reader is imported."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from trtkv.traces.formats.registry import FORMAT_NAMES
from trtkv.traces.sessions.protocol import Outputs, Sessions

AUTO = "auto"


def format_or_none(name: str | None) -> str | None:
    """The name of a format; None for ``auto``. Raises typer.BadParameter for any other name."""
    if name is None or name == AUTO:
        return None
    if name not in FORMAT_NAMES:
        raise typer.BadParameter(f"{name!r} is not one of {AUTO}, {', '.join(FORMAT_NAMES)}")
    return name


FormatOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        callback=format_or_none,
        show_default=AUTO,
        help=f"Format of the trace: {', '.join(FORMAT_NAMES)}; auto detects it from the first row.",
    ),
]
"""None: told by the first row."""

OutputLengthOption: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="Output length of rows that have none.")
]

MaxLineBytesOption: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="Maximum row length in bytes.  [default: 268435456]")
]

SessionsOption: TypeAlias = Annotated[
    Sessions,
    typer.Option(
        help="Which requests wait for an earlier one: those in the trace, those inferred from prompts too, or none."
    ),
]

OutputsOption: TypeAlias = Annotated[
    Outputs, typer.Option(help="Generated tokens: the trace's where known, or made-up ones (synthetic).")
]
