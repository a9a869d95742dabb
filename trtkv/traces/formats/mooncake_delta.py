"""Mooncake rows whose later turns hold only what they add to the conversation."""

from __future__ import annotations

from dataclasses import replace

from trtkv.traces.formats import mooncake
from trtkv.traces.options import ReadOptions, Rows
from trtkv.traces.trace import TraceRequest


def read_mooncake_delta(rows: Rows, options: ReadOptions) -> list[TraceRequest]:
    """Requests in file order; a later turn's prompt is the one before it, its output, and the row's own tokens."""
    return mooncake.read_hash_rows(rows, options, is_delta=True)


FORMAT = replace(
    mooncake.FORMAT,
    name="mooncake-delta",
    summary="hash ids of what each turn adds",
    read=read_mooncake_delta,
    find_warnings=None,
)
"""Its rows look like those of mooncake, so it is never detected: the user has to name it."""
