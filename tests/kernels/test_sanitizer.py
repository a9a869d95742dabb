"""Runs under compute-sanitizer: clean is only what came to its end and was found to be so."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.sanitizer import FINISHED, SUMMARIES, Verdict, judge, run_sanitizer, run_to_end


def complete(tool: str) -> str:
    return f"equal block copy\n{FINISHED}\n========= {SUMMARIES[tool]} displayed\n"


@pytest.mark.parametrize("tool", SUMMARIES)
@pytest.mark.parametrize(
    ("return_code", "output", "verdict"),
    [
        (0, "COMPLETE", Verdict.CLEAN),
        (None, "COMPLETE", Verdict.NOT_FINISHED),
        (9, "COMPLETE", Verdict.ERRORS),
        (1, "COMPLETE", Verdict.ERRORS),
        (0, f"{FINISHED}\n", Verdict.NOT_FINISHED),  # the sanitizer did not attach
        (0, "nothing to check here: torch finds no CUDA device\n", Verdict.NOT_FINISHED),
        (255, "Error: no device supported\n", Verdict.NOT_FINISHED),
        (-9, "", Verdict.NOT_FINISHED),
    ],
)
def test_verdict(tool: str, return_code: int | None, output: str, verdict: Verdict) -> None:
    assert judge(tool, return_code, output.replace("COMPLETE", complete(tool))) is verdict


def test_a_tool_without_end_is_told_and_counts_as_not_clean(capsys: pytest.CaptureFixture[str]) -> None:
    def run(command: Sequence[str], _seconds: float) -> tuple[int | None, str]:
        return (0, complete("memcheck")) if "--tool=memcheck" in command else (None, "half of it")

    assert run_sanitizer(["program"], 45, "sanitizer", run) == ["compute-sanitizer racecheck (not finished)"]
    assert capsys.readouterr().out.splitlines() == [
        "compute-sanitizer memcheck: clean",
        "compute-sanitizer racecheck: NOT FINISHED in 45 s",
        "half of it",
    ]


def test_the_program_is_ended_with_the_sanitizer_when_time_is_up(tmp_path: Path) -> None:
    witness = tmp_path / "alive"
    child = f"import time, pathlib; time.sleep(3); pathlib.Path({str(witness)!r}).touch()"
    parent = f"import subprocess, sys; print('started', flush=True); subprocess.run([sys.executable, '-c', {child!r}])"
    return_code, output = run_to_end([sys.executable, "-c", parent], 1)
    assert return_code is None
    # The pipe is closed only when every process that holds it has ended, so nobody is left to write the file.
    assert output in ("", "started\n")
    assert not witness.exists()


def test_a_program_that_ends_gives_its_code_and_both_outputs() -> None:
    command = [sys.executable, "-c", "import sys; print('out'); sys.stderr.write('err'); sys.exit(3)"]
    return_code, output = run_to_end(command, 60)
    assert return_code == 3
    assert sorted(output.split()) == ["err", "out"]
