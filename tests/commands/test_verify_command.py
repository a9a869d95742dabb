"""The command ``trtkv verify``: output and exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.verify.rows import BUBBLE, HEADER, write_lines


def run_command(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trtkv", "verify", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_equal_programs_exit_with_0(tmp_path: Path) -> None:
    write_lines(tmp_path / "p.jsonl", HEADER, BUBBLE)
    done = run_command(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].split() == ["g", "1", "1", "0", "0"]


def test_mismatch_exits_with_1_and_writes_the_report(tmp_path: Path) -> None:
    write_lines(tmp_path / "p.jsonl", HEADER, {**BUBBLE, "ret": 0})
    done = run_command(tmp_path, "--json", tmp_path / "report.json")
    assert done.returncode == 1, done.stderr
    assert "op 1, get_sink_bubble_length: ret" in done.stdout
    assert json.loads((tmp_path / "report.json").read_text())["total"]["mismatches"] == 1


def test_report_on_standard_output_stands_alone(tmp_path: Path) -> None:
    write_lines(tmp_path / "p.jsonl", HEADER, {**BUBBLE, "ret": 0})
    done = run_command(tmp_path, "--json", "-")
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["failures"][0]["first_mismatch"]["got"] == 3


def test_bad_input_exits_with_2(tmp_path: Path) -> None:
    write_lines(tmp_path / "p.jsonl", HEADER, {**BUBBLE, "op": "get_bubble"})
    for path in (tmp_path, tmp_path / "missing.jsonl"):
        done = run_command(path)
        assert (done.returncode, done.stdout) == (2, "")
        assert str(path) in done.stderr
    assert "p.jsonl:2: op is 'get_bubble'" in run_command(tmp_path).stderr


def test_program_without_operations_is_no_program(tmp_path: Path) -> None:
    write_lines(tmp_path / "p.jsonl", HEADER)
    done = run_command(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        f"{tmp_path / 'p.jsonl'}:1: the header is all there is; without operations nothing is verified" in done.stderr
    )


def test_report_that_cannot_be_written_is_told_before_anything_runs(tmp_path: Path) -> None:
    write_lines(tmp_path / "p.jsonl", HEADER, BUBBLE)
    done = run_command(tmp_path, "--json", tmp_path / "nowhere" / "report.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nowhere/report.json: No such file or directory" in done.stderr
