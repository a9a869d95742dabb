"""ProgramResult and its parts: the outcome of one verified program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtkv.common import WindowSize
from trtkv.verify.json_kinds import JsonValue


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Where an op of a program gave something else than recorded."""

    op_index: int
    """Counts the lines after the header from 1; the line in the file is one more."""
    op: str
    field: str
    """``ret``, ``error`` or ``obs``, with the path inside it."""
    expected: JsonValue
    got: JsonValue
    free_queues: dict[WindowSize, list[JsonValue]]
    """The port's free queues just after the op: level, priority and ids from front to back."""


@dataclass(frozen=True, slots=True)
class UnsupportedOp:
    """An op that cannot run here; the ops behind it are not compared."""

    op_index: int
    op: str
    reason: str


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Counts of one program, its first mismatch and the op that stopped the comparison."""

    path: Path
    group: str
    seed: int
    num_ops: int
    num_mismatches: int
    """Ops whose answer, error or observation differed."""
    num_unsupported: int
    """The op that cannot run and all ops behind it."""
    first_mismatch: Mismatch | None
    unsupported_op: UnsupportedOp | None

    @property
    def is_equal(self) -> bool:
        """Whether every op ran and gave what was recorded."""
        return self.num_mismatches == 0 and self.num_unsupported == 0
