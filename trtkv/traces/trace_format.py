"""TraceFormat: what a format declares about itself, in the module that reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from trtkv.traces.options import ReadOptions, Rows
    from trtkv.traces.rows import Row
    from trtkv.traces.trace import TraceRequest

    Read: TypeAlias = "Callable[[Rows, ReadOptions], list[TraceRequest]]"
    Recognise: TypeAlias = "Callable[[Row], str | None]"
    FindWarnings: TypeAlias = "Callable[[list[TraceRequest]], list[str]]"


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """One format. Its module has one as ``FORMAT``."""

    name: str
    """As given with ``--format``; with underscores for hyphens it is the name of the module."""
    summary: str
    """What a row is, in a few words."""
    read: Read
    """Requests in replay order, from all rows of a trace."""
    keys: tuple[str, ...] = ()
    """Keys or columns that each row has; they detect the format unless ``recognise`` does."""
    recognise: Recognise | None = None
    """Why a row is of this format, or None if it is not."""
    seconds_per_unit: float | None = None
    """Seconds of one unit of its timestamps; None if they are not times of one clock."""
    needs_block_size: bool = False
    """Whether nothing but ``--block-size`` says how many tokens a hash id stands for."""
    has_tokens: bool = True
    """False: only lengths are known."""
    has_text: bool = False
    """Whether rows are or may be text, from which a tokenizer makes tokens."""
    find_warnings: FindWarnings | None = None
    """What the user should know about the requests of a trace, a line each."""

    @property
    def is_csv(self) -> bool:
        """Whether its files are CSV."""
        return not self.has_tokens

    def match(self, row: Row) -> str | None:
        """Why a row is of this format, or None if it is not."""
        if self.recognise is not None:
            return self.recognise(row)
        if not all(key in row for key in self.keys):
            return None
        return f"{'the columns include' if self.is_csv else 'the first row has'} {', '.join(self.keys)}"
