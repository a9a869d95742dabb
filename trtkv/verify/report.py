"""Report of a verification: a line per group and the failures, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

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


def write_text(results: Sequence[ProgramResult]) -> str:
    """A line per group, a line for all, then each failing program. Ends with a newline."""
    counts = {**count_by_group(results), "all": _count_all(results)}
    lines = [f"{'group':16} {'programs':>8} {'ops':>8} {'mismatches':>10} {'unsupported':>11}"]
    lines += [
        f"{name:16} {c.num_programs:8} {c.num_ops:8} {c.num_mismatches:10} {c.num_unsupported:11}"
        for name, c in counts.items()
    ]
    for result in results:
        if not result.is_equal:
            lines += ["", *_describe_failure(result)]
    return "\n".join(lines) + "\n"


def _describe_failure(result: ProgramResult) -> list[str]:
    lines = []
    mismatch = result.first_mismatch
    if mismatch is not None:
        lines += [f"{result.path}: op {mismatch.op_index}, {mismatch.op}: {mismatch.field}", *_describe(mismatch)]
    unsupported = result.unsupported_op
    if unsupported is not None:
        lines.append(f"{result.path}: op {unsupported.op_index}, {unsupported.op}: unsupported ({unsupported.reason})")
    return lines


def _describe(mismatch: Mismatch) -> list[str]:
    lines = [f"  expected  {_shorten(mismatch.expected)}", f"  got       {_shorten(mismatch.got)}"]
    for window, queues in mismatch.free_queues.items():
        for level, priority, ids in queues:
            lines.append(f"  free      window {window}, level {level}, priority {priority}: {_shorten(ids)}")
    return lines


def _shorten(value: JsonValue) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MAX_VALUE_CHARACTERS else text[: _MAX_VALUE_CHARACTERS - 3] + "..."


def write_json(results: Sequence[ProgramResult]) -> str:
    """The same as one JSON object with a fixed order of keys. Ends with a newline."""
    report = {
        "format": REPORT_FORMAT,
        "version": REPORT_VERSION,
        "equal": all(result.is_equal for result in results),
        "total": _count_all(results).to_json(),
        "groups": {name: counts.to_json() for name, counts in count_by_group(results).items()},
        "failures": [_failure_to_json(result) for result in results if not result.is_equal],
    }
    return json.dumps(report, indent=2) + "\n"


def _failure_to_json(result: ProgramResult) -> dict[str, JsonValue]:
    mismatch, unsupported = result.first_mismatch, result.unsupported_op
    return {
        "file": str(result.path),
        "group": result.group,
        "seed": result.seed,
        "ops": result.num_ops,
        "mismatches": result.num_mismatches,
        "unsupported": result.num_unsupported,
        "first_mismatch": None if mismatch is None else _mismatch_to_json(mismatch),
        "unsupported_op": None
        if unsupported is None
        else {"op_index": unsupported.op_index, "op": unsupported.op, "reason": unsupported.reason},
    }


def _mismatch_to_json(mismatch: Mismatch) -> dict[str, JsonValue]:
    return {
        "op_index": mismatch.op_index,
        "op": mismatch.op,
        "field": mismatch.field,
        "expected": mismatch.expected,
        "got": mismatch.got,
        "free_queues": {str(window): queues for window, queues in mismatch.free_queues.items()},
    }
