"""Programs in which transfers, files and listeners fail; see ``failing_operations``."""

from __future__ import annotations

from collections import Counter

from tests.stress.failing_operations import run_programs
from tests.stress.scenarios import SCENARIOS


def test_failures_leave_the_manager_sound() -> None:
    counts: Counter[str] = Counter()
    for program, _ in zip(run_programs(7), SCENARIOS, strict=False):
        counts += program.counts
    assert counts["operations"] > 5000
    for kind in ("copy", "offload", "onboard", "on_match", "on_allocation", "on_removed", "on_moved"):
        assert counts[f"failures of {kind}"], kind
