"""What a user says about a trace besides its path, and what every reader gets rows from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from trtkv.traces.rows import Row
from trtkv.traces.trace import RowFault

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Settings that formats make use of; each format says which."""

    block_size: int | None = None
    """Tokens that one hash id stands for."""
    tokenizer: Path | None = None
    """A tokenizer file, or a folder with tokenizer.json in it."""
    chat_template: str | None = None
    """``chatml``, or the path of a template file; None: the one that comes with the tokenizer."""
    output_length: int | None = None
    """Generated tokens of a row that does not say how many; None: such a row is refused."""


class Rows(Protocol):
    """Rows of one trace, read once from front to back. TraceRows is one kind."""

    name: str
    faults: list[RowFault]

    def records(self, convert: Callable[[Row], Record]) -> Iterator[Record]:
        """Each row through ``convert``; rows refused by RowFaultError raise TraceFormatError or go to ``faults``."""

    def first(self, usable: Callable[[Row], Record]) -> Record | None:
        """``usable`` of the first row that it does not refuse; no row is used up. None without rows.

        Raises TraceFormatError if the first row is refused or, in lenient reading, all rows are.
        """
