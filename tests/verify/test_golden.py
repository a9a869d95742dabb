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
FRESH_GROUPS = (
    "r27_rules",
    "x01_big",
    "x02_windows",
    "x03_batches",
    "x04_beams",
    "x05_extremes",
    "x06_mm",
    "x07_chunks",
    "x08_pins",
    "x09_connector",
    "x10_linear",
    "x11_tight",
    "x12_cross",
    "x13_long",
    "x14_vgqa",
    "x15_trunc",
    "x16_fan",
    "x17_fanw",
    "x18_internal",
    "x19_sched",
    "x20_beamgen",
    "x21_inputs",
    "y22_wide",
    "y22_windows",
    "y23_wide",
    "y24_wide",
)
"""Recorded later, with other ranges."""
FOLDERS = {"golden": GROUPS, "golden_fresh": FRESH_GROUPS}


def test_no_recorded_group_is_left_out(shared_dir: Path) -> None:
    for folder, groups in FOLDERS.items():
        found = sorted(path.name for path in (shared_dir / folder).iterdir() if path.is_dir())
        assert found == sorted(groups)


@pytest.mark.parametrize(("folder", "group"), [(folder, group) for folder in FOLDERS for group in FOLDERS[folder]])
def test_group_is_reproduced(shared_dir: Path, folder: str, group: str) -> None:
    results = list(verify_programs(find_programs([shared_dir / folder / group])))
    assert results
    assert all(result.is_equal for result in results), VerificationReport(results).notes()
