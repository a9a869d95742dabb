"""PlanComparison: several cache plans side by side, as a result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtkv.sizing.plan_report import PlanReport, window_name
from trtkv.tables.result import Result
from trtkv.tables.table import Cell, Column, Table


@dataclass(frozen=True, slots=True, repr=False)
class PlanComparison(Result):
    """A column for each plan."""

    reports: Sequence[PlanReport]

    def to_json(self) -> dict[str, object]:
        """The report of each plan, in order."""
        return {"caches": [report.to_json() for report in self.reports]}

    def tables(self) -> list[Table]:
        """One table with a row for each figure; what a plan lacks is empty."""
        columns = [_facts(report) for report in self.reports]
        names = dict.fromkeys(name for column in columns for name in column)
        heads = (Column("what", True), *(Column(str(number)) for number in range(1, len(columns) + 1)))
        rows = [(name, *(column.get(name) for column in columns)) for name in names]
        return [Table("Caches side by side", heads, (rows,))]  # type: ignore[arg-type]  # rows of cells

    def notes(self) -> list[str]:
        """Notes of each plan with the number of its column."""
        return [f"{number}: {line}" for number, report in enumerate(self.reports, 1) for line in report.notes()]


def _facts(report: PlanReport) -> dict[str, Cell]:
    plan = report.plan
    tokens = [row.primary_tokens for row in plan.windows if row.primary_tokens is not None]
    host_tokens = [row.secondary_tokens for row in plan.windows if row.secondary_tokens is not None]
    return {
        "model": plan.shape.name,
        **report.facts(),
        "windows": ", ".join(map(window_name, plan.windows)),
        "tokens that fit on the device": min(tokens),
        "tokens that fit on the host": min(host_tokens),
        **report.room_facts(),
    }
