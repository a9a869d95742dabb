"""The call for reading traces that ``read_trace`` replaces; it works for one version."""

from __future__ import annotations

import os
import warnings
from typing import NamedTuple

from trtkv.traces.options import ReadOptions
from trtkv.traces.trace import RequestTrace
from trtkv.traces.trace_reader import read_trace


class LoadedTrace(NamedTuple):
    """A trace, and what told its format."""

    trace: RequestTrace
    detected: str


def read_requests(
    path: str | os.PathLike[str],
    options: ReadOptions | None = None,
    *,
    format_name: str | None = None,
    lenient: bool = False,
    limit: int | None = None,
    allow_lengths_only: bool = False,
) -> LoadedTrace:
    """``read_trace`` with three of its arguments in a record. Warns that it goes with the next version."""
    warnings.warn("read_requests is now trtkv.read_trace, which returns the trace", DeprecationWarning, stacklevel=2)
    options = options or ReadOptions()
    trace = read_trace(
        path,
        format_name=format_name,
        block_size=options.block_size,
        tokenizer=options.tokenizer,
        chat_template=options.chat_template,
        lenient=lenient,
        limit=limit,
        allow_lengths_only=allow_lengths_only,
    )
    return LoadedTrace(trace, trace.detected)
