"""What a scheduler lets through fits, under random settings; see ``fitting_schedules``."""

from __future__ import annotations

from collections import Counter

from tests.stress.fitting_schedules import run_loop


def test_what_a_scheduler_lets_through_fits() -> None:
    counts: Counter[str] = Counter()
    for seed in range(40):
        loop = run_loop(seed)
        assert not loop.refusals, (seed, loop.setting, loop.refusals)
        counts += loop.counts
    assert counts["admissions"] > 500
    assert counts["pauses"] > 20
