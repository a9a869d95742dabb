"""DefaultReport: which programs depart from what was recorded on the default behaviour, where, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from trtkv.tables.result import Result
from trtkv.tables.table import Table, list_table
from trtkv.verify.default_run import DefaultResult, Departure
from trtkv.verify.report import REPORT_VERSION, describe_mismatch, mismatch_to_json

REPORT_FORMAT: Final = "trtkv.verify_default"


@dataclass(frozen=True, slots=True, repr=False)
class DefaultReport(Result):
    """Programs that were run on the default behaviour, and their departures."""

    results: Sequence[DefaultResult]

    @property
    def is_explained(self) -> bool:
        """Whether a decision explains each departure."""
        return all(result.is_explained for result in self.results)

    def tables(self) -> list[Table]:
        """A row for each group, for each decision, and for each program that departs."""
        every, first = self._count_decisions()
        departing = [result for result in self.results if result.departures]
        return [
            list_table(
                "",
                {
                    "group": lambda row: row[0],
                    "programs": lambda row: len(row[1]),
                    "departing": lambda row: sum(bool(result.departures) for result in row[1]),
                    "unexplained": lambda row: sum(not result.is_explained for result in row[1]),
                    "ops": lambda row: sum(result.num_ops for result in row[1]),
                    "compared": lambda row: sum(result.num_compared for result in row[1]),
                },
                [*_by_group(self.results).items(), ("all", self.results)],
            ),
            list_table(
                "Decisions in docs/decisions",
                {
                    "decision": lambda row: row[0],
                    "programs": lambda row: row[1],
                    "first departure": lambda row: first[row[0]],
                },
                sorted(every.items()),
            ),
            list_table(
                "First departure of each program",
                {
                    "program": lambda result: result.path.stem,
                    "op": lambda result: result.departures[0].mismatch.op_index,
                    "name": lambda result: result.departures[0].mismatch.op,
                    "field": lambda result: result.departures[0].mismatch.field,
                    "decision": lambda result: _name(result.departures[0]),
                    "compared": lambda result: f"{result.num_compared} of {result.num_ops} ops",
                },
                departing,
            ),
        ]

    def notes(self) -> list[str]:
        """Each departure that no decision explains."""
        lines = []
        for result in self.results:
            for departure in result.departures:
                if departure.decision is None:
                    mismatch = departure.mismatch
                    where = f"{result.path}: op {mismatch.op_index}, {mismatch.op}: {mismatch.field}"
                    lines += ["", f"{where} (no decision explains this)", *describe_mismatch(mismatch)]
        return lines

    def to_json(self) -> dict[str, object]:
        """Counts, and for each program that departs the first departure of each decision."""
        every, first = self._count_decisions()
        return {
            "format": REPORT_FORMAT,
            "version": REPORT_VERSION,
            "explained": self.is_explained,
            "programs": len(self.results),
            "departing": sum(bool(result.departures) for result in self.results),
            "ops": sum(result.num_ops for result in self.results),
            "compared": sum(result.num_compared for result in self.results),
            "decisions": {name: {"programs": count, "first": first[name]} for name, count in sorted(every.items())},
            "departures": [_result_to_json(result) for result in self.results if result.departures],
        }

    def _count_decisions(self) -> tuple[Counter[str], Counter[str]]:
        """Programs in which each decision explains a departure, and those in which it explains the first one."""
        names = [[_name(departure) for departure in result.departures] for result in self.results]
        return Counter(name for found in names for name in found), Counter(found[0] for found in names if found)


def _name(departure: Departure) -> str:
    return departure.decision or "none"


def _by_group(results: Iterable[DefaultResult]) -> dict[str, list[DefaultResult]]:
    groups: dict[str, list[DefaultResult]] = {}
    for result in results:
        groups.setdefault(result.group, []).append(result)
    return dict(sorted(groups.items()))


def _result_to_json(result: DefaultResult) -> dict[str, object]:
    return {
        "file": str(result.path),
        "group": result.group,
        "seed": result.seed,
        "ops": result.num_ops,
        "compared": result.num_compared,
        "departures": [
            {"decision": departure.decision, **mismatch_to_json(departure.mismatch)} for departure in result.departures
        ],
    }
