"""All trace formats. To add one, write a module in this package and its name here."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Final

from trtkv.errors import InvalidInputError

if TYPE_CHECKING:
    from trtkv.traces.trace_format import TraceFormat

FORMAT_NAMES: Final = (
    # From the most special to the most general: the first format that recognises the first row takes it.
    "dynamo",
    "agentic",
    "bailian",
    "kvcache-simulator",
    "mooncake",
    "mooncake-delta",
    "tokens",
    "trtllm-bench",
    "sglang",
    "lmcache-agent",
    "sharegpt",
    "aiperf",
    "openai",
    "azure",
    "burstgpt",
    "vidur",
)
"""Format ``a-b`` is the ``FORMAT`` of the module ``a_b`` in this package, which is imported when it is needed."""

WRITTEN_FORMATS: Final = ("mooncake", "tokens")
"""Formats that a trace can be converted to."""


def find_format(name: str) -> TraceFormat:
    """The format of this name. Raises InvalidInputError if it is not known."""
    if name not in FORMAT_NAMES:
        raise InvalidInputError(f"unknown trace format {name!r}; known are {', '.join(FORMAT_NAMES)}")
    found: TraceFormat = import_module(f"trtkv.traces.formats.{name.replace('-', '_')}").FORMAT
    return found


def all_formats() -> Iterator[TraceFormat]:
    """Every format, in the order in which they are asked whether a row is theirs."""
    return map(find_format, FORMAT_NAMES)
