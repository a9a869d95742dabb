"""Requests that no setting lets run: a warning when some are left out, an error when all are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from trtkv import cli

SYSTEMS = {
    "closed loop": (),
    "nano": ("--system", "nano"),
    "nano scheduler": ("--system", "nano-scheduler"),
    "max utilization": ("--scheduler", "max-utilization"),
    "guaranteed no evict": ("--scheduler", "guaranteed-no-evict"),
}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A request of 100 + 2 tokens and one of 1000 + 2."""
    path = tmp_path / "two.jsonl"
    rows = [
        {"timestamp": 0, "input_length": length, "output_length": 2, "hash_ids": list(range(length // 10))}
        for length in (100, 1000)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def replay(trace: Path, capacity: int, *more: object) -> Result:
    sizes = ("--block-size", 10, "--tokens-per-block", 10, "--capacity-tokens", capacity)
    return run("replay", trace, "--format", "mooncake", *sizes, *more)


@pytest.mark.parametrize("system", list(SYSTEMS))
@pytest.mark.parametrize("to_file", [False, True])
def test_run_of_nothing_is_an_error_that_shows_no_report(
    trace: Path, tmp_path: Path, system: str, to_file: bool
) -> None:
    report = tmp_path / "report.json"
    result = replay(trace, 50, *SYSTEMS[system], "--json", report if to_file else "-")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: none of the 2 requests can be run: ")
    assert result.stderr.count("\n") == 1
    for words in ("100 prompt", "5", "enlarge"):
        assert words in result.stderr
    assert not report.exists()


@pytest.mark.parametrize("system", list(SYSTEMS))
@pytest.mark.parametrize("json_file", [(), ("--json", "-")])
def test_requests_left_out_are_a_warning(trace: Path, system: str, json_file: tuple[str, ...]) -> None:
    result = replay(trace, 200, *SYSTEMS[system], *json_file)
    assert result.exit_code == 0, result.stderr
    assert "warning: 1 of 2 requests were never run; no count or rate includes them\n" in result.stderr
    assert replay(trace, 2000, *SYSTEMS[system], *json_file).stderr == ""


def test_limit_of_a_step_is_named_when_it_is_the_reason(trace: Path) -> None:
    result = replay(trace, 2000, *SYSTEMS["guaranteed no evict"], "--max-num-tokens", 60)
    assert result.exit_code == 2
    assert "none of the 2 requests can be run: request 0 needs a step of 100 tokens" in result.stderr
    assert "60" in result.stderr


@pytest.mark.parametrize("system", ["tensorrt-llm", "nano"])
def test_sweep_tells_of_runs_that_left_requests_out(trace: Path, tmp_path: Path, system: str) -> None:
    def sweep(capacities: str) -> Result:
        settings = {"block-size": 10, "tokens-per-block": 10, "system": system, "capacity-tokens": capacities}
        sets = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        return run("sweep", trace, *sets, "--jobs", 1, "--csv", tmp_path / "rows.csv")

    result = sweep("50,200,2000")
    assert result.exit_code == 0, result.stderr
    assert "warning: requests were never run in 2 of 3 runs, all of them in 1;" in result.stderr
    assert "warning" not in sweep("2000").stderr
    (tmp_path / "rows.csv").unlink()
    result = sweep("50,60")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "error: no run of the sweep can run a request; enlarge the cache" in result.stderr
    assert not (tmp_path / "rows.csv").exists()


def test_sweep_of_the_scheduler_loop_counts_its_refusals(trace: Path) -> None:
    sets = ("--set", "block-size=10", "--set", "tokens-per-block=10", "--set", "scheduler=max-utilization")
    result = run("sweep", trace, *sets, "--set", "capacity-tokens=200,2000", "--jobs", 1)
    assert result.exit_code == 0, result.stderr
    assert "warning: requests were never run in 1 of 2 runs, all of them in 0;" in result.stderr
