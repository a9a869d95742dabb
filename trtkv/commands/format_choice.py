"""Values of ``--format``, written out so that help texts need no reader to be imported."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, TypeAlias

import typer


class FormatChoice(str, Enum):
    """``auto``, or a name of trtkv.traces.formats.registry."""

    AUTO = "auto"
    MOONCAKE = "mooncake"
    TOKENS = "tokens"
    DYNAMO = "dynamo"
    AGENTIC = "agentic"
    BAILIAN = "bailian"
    KVCACHE_SIMULATOR = "kvcache-simulator"
    SHAREGPT = "sharegpt"
    OPENAI = "openai"
    AZURE = "azure"
    BURSTGPT = "burstgpt"
    VIDUR = "vidur"

    @property
    def format_name(self) -> str | None:
        """Name for the reader; None: told by the first row."""
        return None if self is FormatChoice.AUTO else self.value


_NAMES = ", ".join(choice.value for choice in FormatChoice)

FormatOption: TypeAlias = Annotated[
    FormatChoice,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help=f"Format of the trace: {_NAMES}; auto tells it from the first row.",
    ),
]
