"""All recorded programs, group by group, replayed in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtkv.verify.report import VerificationReport
from trtkv.verify.runner import find_programs, verify_programs

GROUPS = (
    "g01_alloc",
    "g02_reuse",
    "g03_partial",
    "g04_evict",
    "g05_offload",
    "g06_keys",
    "g07_chunked",
    "g08_sched",
    "g09_swa",
    "g10_vswa",
    "g11_vgqa",
    "g12_cross",
    "g13_linear",
    "g14_events",
    "g15_budget",
    "g16_mixed",
    "g17_errors",
    "g18_fanout",
    "g19_internal",
    "g20_truncate",
    "g21_connector",
    "g22_capacity",
    "g23_microbatch",
    "g24_loop",
    "g25_rewind",
    "g26_growth",
)


def test_no_recorded_group_is_left_out(shared_dir: Path) -> None:
    folders = sorted(path.name for path in (shared_dir / "golden").iterdir() if path.is_dir())
    assert folders == sorted(GROUPS)


@pytest.mark.parametrize("group", GROUPS)
def test_group_is_reproduced(shared_dir: Path, group: str) -> None:
    results = list(verify_programs(find_programs([shared_dir / "golden" / group])))
    assert results
    assert all(result.is_equal for result in results), VerificationReport(results).notes()
