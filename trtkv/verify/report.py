"""VerificationReport: a row per group of programs, and the failures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from trtkv.tables.result import Result
from trtkv.tables.table import Table, list_table
from trtkv.verify.json_kinds import JsonValue
from trtkv.verify.program_result import Mismatch, ProgramResult

REPORT_FORMAT: Final = "trtkv.verify"
REPORT_VERSION: Final = 1
_MAX_VALUE_CHARACTERS: Final = 300


@dataclass(slots=True)
class GroupCounts:
    """Sums over the programs of a group."""

    num_programs: int = 0
    num_failed_programs: int = 0
    num_ops: int = 0
    num_mismatches: int = 0
    num_unsupported: int = 0

    def add(self, result: ProgramResult) -> None:
        """Count one program."""
        self.num_programs += 1
        self.num_failed_programs += not result.is_equal
        self.num_ops += result.num_ops
        self.num_mismatches += result.num_mismatches
        self.num_unsupported += result.num_unsupported

    def to_json(self) -> dict[str, JsonValue]:
        """The counts by name."""
        return {
            "programs": self.num_programs,
            "failed_programs": self.num_failed_programs,
            "ops": self.num_ops,
            "mismatches": self.num_mismatches,
            "unsupported": self.num_unsupported,
        }


def count_by_group(results: Iterable[ProgramResult]) -> dict[str, GroupCounts]:
    """Counts of each group, groups in order of their names."""
    counts: dict[str, GroupCounts] = {}
    for result in results:
        counts.setdefault(result.group, GroupCounts()).add(result)
    return dict(sorted(counts.items()))


def _count_all(results: Iterable[ProgramResult]) -> GroupCounts:
    total = GroupCounts()
    for result in results:
        total.add(result)
    return total


@dataclass(frozen=True, slots=True, repr=False)
class VerificationReport(Result):
    """Programs that were run, and how they compare."""

    results: Sequence[ProgramResult]

    @property
    def is_equal(self) -> bool:
        """Whether every program gave what was recorded."""
        return all(result.is_equal for result in self.results)

    def tables(self) -> list[Table]:
        """A row for each group, and one for all."""
        return [
            list_table(
                "",
                {
                    "group": lambda row: row[0],
                    "programs": lambda row: row[1].num_programs,
                    "ops": lambda row: row[1].num_ops,
                    "mismatches": lambda row: row[1].num_mismatches,
                    "unsupported": lambda row: row[1].num_unsupported,
                },
                [*count_by_group(self.results).items(), ("all", _count_all(self.results))],
            )
        ]

    def notes(self) -> list[str]:
        """Each failing program."""
        return [line for result in self.results if not result.is_equal for line in ("", *_describe_failure(result))]

    def to_json(self) -> dict[str, object]:
        """Counts by group, and failures."""
        return {
            "format": REPORT_FORMAT,
            "version": REPORT_VERSION,
            "equal": self.is_equal,
            "total": _count_all(self.results).to_json(),
            "groups": {name: counts.to_json() for name, counts in count_by_group(self.results).items()},
            "failures": [_failure_to_json(result) for result in self.results if not result.is_equal],
        }


def _describe_failure(result: ProgramResult) -> list[str]:
    lines = []
    mismatch = result.first_mismatch
    if mismatch is not None:
        lines += [
            f"{result.path}: op {mismatch.op_index}, {mismatch.op}: {mismatch.field}",
            *describe_mismatch(mismatch),
        ]
    unsupported = result.unsupported_op
    if unsupported is not None:
        lines.append(f"{result.path}: op {unsupported.op_index}, {unsupported.op}: unsupported ({unsupported.reason})")
    return lines


def describe_mismatch(mismatch: Mismatch) -> list[str]:
    """What was recorded, what came instead, and the free queues."""
    lines = [f"  expected  {_shorten(mismatch.expected)}", f"  got       {_shorten(mismatch.got)}"]
    for window, queues in mismatch.free_queues.items():
        for level, priority, ids in queues:
            lines.append(f"  free      window {window}, level {level}, priority {priority}: {_shorten(ids)}")
    return lines


def _shorten(value: JsonValue) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MAX_VALUE_CHARACTERS else text[: _MAX_VALUE_CHARACTERS - 3] + "..."


def _failure_to_json(result: ProgramResult) -> dict[str, JsonValue]:
    mismatch, unsupported = result.first_mismatch, result.unsupported_op
    return {
        "file": str(result.path),
        "group": result.group,
        "seed": result.seed,
        "ops": result.num_ops,
        "mismatches": result.num_mismatches,
        "unsupported": result.num_unsupported,
        "first_mismatch": None if mismatch is None else mismatch_to_json(mismatch),
        "unsupported_op": None
        if unsupported is None
        else {"op_index": unsupported.op_index, "op": unsupported.op, "reason": unsupported.reason},
    }


def mismatch_to_json(mismatch: Mismatch) -> dict[str, JsonValue]:
    """A mismatch by the names of its fields."""
    return {
        "op_index": mismatch.op_index,
        "op": mismatch.op,
        "field": mismatch.field,
        "expected": mismatch.expected,
        "got": mismatch.got,
        "free_queues": {str(window): queues for window, queues in mismatch.free_queues.items()},
    }
