"""The benchmark tools on tiny cases: what they write, not how fast anything is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BYTES = {"bytes_per_block", "bytes_per_cached_token", "bytes_per_token_of_full_pool"}
PHASES = {"add", "store", "decode", "remove", "prompt", "total"}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.jsonl"
    rows = [
        {"timestamp": index, "input_length": 1100 + index, "output_length": 3, "hash_ids": [1, 2, 10 + index]}
        for index in range(4)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def run_tool(root: Path, name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key not in ("TRTKV_PEERS", "TRTKV_SHARED")}
    command = [sys.executable, str(root / "tools" / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def test_block_manager_benchmark_fills_one_table(repository_root: Path, trace: Path, tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    sizes = [
        "--requests",
        4,
        "--live",
        2,
        "--repeat",
        1,
        "--operations",
        2,
        "--operation-tokens",
        2048,
        "--scale",
        1000,
    ]
    only = ["trace-30M", "cached", "new", "decode", "siblings", "siblings-bos", "events", "memory"]
    result = run_tool(
        repository_root, "bench_block_manager.py", "--trace", trace, *sizes, "--only", *only, "--json", history
    )
    assert result.returncode == 0, result.stderr
    (record,) = map(json.loads, history.read_text().splitlines())
    assert set(record) == {"time", "machine", "settings", "rows", "skipped"}
    rows = record["rows"]
    assert list(dict.fromkeys(row["group"] for row in rows)) == only
    assert {"vllm sha256", "sglang radix", "nano original"} <= set(record["skipped"])
    by_work = {(row["group"], row["subject"], row["label"]): row for row in rows}
    whole = by_work["trace-30M", "trtkv preallocated", ""]
    assert set(whole["values"]) >= PHASES
    assert whole["values"]["found_tokens"] == 3 * 1024
    assert whole["values"]["prompt"] == pytest.approx(
        sum(whole["values"][phase] for phase in ("add", "store", "remove"))
    )
    assert whole["ratios"]["preallocated total"] == 1
    assert by_work["trace-30M", "nano port", ""]["values"]["found_tokens"] == 3 * 1024
    assert set(by_work["siblings", "trtkv default", "500"]["ratios"]) == {"growth"}
    assert set(by_work["memory", "trtkv digests", ""]["values"]) == BYTES
    for text in (
        "trace, first 4, pool 30M tokens",
        "trtkv preallocated",
        " cached",
        "if full",
        "left out: vllm sha256",
    ):
        assert text in " ".join(result.stdout.split())


def test_second_run_is_appended_to_the_history(repository_root: Path, tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    for _ in range(2):
        result = run_tool(
            repository_root, "bench_block_manager.py", "--only", "hash", "--repeat", 1, "--systems", "nano",
            "--json", history,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
    first, second = map(json.loads, history.read_text().splitlines())
    assert [row["subject"] for row in first["rows"]] == [row["subject"] for row in second["rows"]]
    assert first["skipped"]["vllm sha256"] == "not among --systems"


def test_system_that_fails_is_left_out_with_its_reason(repository_root: Path, tmp_path: Path) -> None:
    (tmp_path / "vllm_src").mkdir()
    result = run_tool(
        repository_root, "bench_block_manager.py", "--peers", tmp_path, "--only", "decode", "--repeat", 1,
        "--systems", "vllm",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "left out: vllm sha256: failed at decode_step: ModuleNotFoundError" in result.stdout


def test_unknown_group_is_refused(repository_root: Path) -> None:
    result = run_tool(repository_root, "bench_block_manager.py", "--only", "nonsense")
    assert result.returncode == 2
    assert "unknown groups ['nonsense']" in result.stderr


BENCHES = ("bench_block_manager.py", "bench_command.py", "bench_replay.py")
TRACE_TOOLS = (*BENCHES, "check_scheduler_runs.py")


@pytest.mark.parametrize("name", TRACE_TOOLS)
@pytest.mark.parametrize("kind", ["missing", "folder", "no trace"])
def test_wrong_trace_is_one_line(repository_root: Path, tmp_path: Path, name: str, kind: str) -> None:
    if (name, kind) == ("bench_command.py", "no trace"):
        return  # it is the measured command that fails
    path = tmp_path / ("" if kind == "folder" else "t.jsonl")
    if kind == "no trace":
        path.write_text("hello\n")
    result = run_tool(repository_root, name, *(("--trace",) if "block_manager" in name else ()), path)
    check_one_line(result, str(path))


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("bench_block_manager.py", ("--peers", "nowhere"), "there is no folder nowhere"),
        ("bench_block_manager.py", ("--nano-vllm", "nowhere"), "there is no folder nowhere"),
        ("bench_block_manager.py", ("--vllm-python", "nowhere"), "there is no file nowhere"),
        ("bench_block_manager.py", ("--json", "nowhere/x.jsonl"), "there is no folder nowhere"),
        ("bench_block_manager.py", ("--repeat", 0), "0 is less than 1"),
        ("bench_block_manager.py", ("--live", -3), "-3 is less than 1"),
        ("bench_block_manager.py", ("--live", "x"), "'x'"),
        ("bench_block_manager.py", ("--systems", "nonsense"), "unknown systems ['nonsense']; choose from ["),
        ("bench_command.py", ("TRACE", "--simulator", "no-such-command"), "there is no command no-such-command"),
        ("bench_command.py", ("TRACE", "--json", "nowhere/x.jsonl"), "there is no folder nowhere"),
        ("bench_command.py", ("TRACE", "--repeat", 0), "0 is less than 1"),
        ("bench_replay.py", ("TRACE", "--nano-vllm", "nowhere"), "there is no folder nowhere"),
        ("bench_replay.py", ("TRACE", "--json", "nowhere/x.json"), "there is no folder nowhere"),
        ("bench_replay.py", ("TRACE", "--live", 0), "0 is less than 1"),
        ("bench_replay.py", ("TRACE",), "--block-size"),
        ("bench_replay.py", ("TRACE", "--block-size", 512, "--capacity-tokens", 5), "capacity_tokens is 5"),
        ("check_scheduler_runs.py", ("TRACE", "--checked", -1), "-1 is less than 0"),
        ("check_reference_runs.py", ("--shared", "nowhere"), "there is no folder nowhere"),
        ("check_reference_runs.py", ("--shared", "FOLDER"), "reference_runs.json"),
        ("end_to_end.py", ("--workloads", -1), "-1 is less than 0"),
        ("gpu_check.py", ("--json", "nowhere/x.json"), "there is no folder nowhere"),
        ("check_layers.py", ("--nonsense",), "--nonsense"),
        ("check_layers.py", ("nowhere",), "nowhere/trtkv does not exist"),
    ],
)
def test_wrong_arguments_are_one_line(
    repository_root: Path, trace: Path, tmp_path: Path, name: str, arguments: tuple[object, ...], told: str
) -> None:
    places: dict[object, object] = {"TRACE": trace, "FOLDER": tmp_path}
    check_one_line(run_tool(repository_root, name, *(places.get(part, part) for part in arguments)), told)


def check_one_line(result: subprocess.CompletedProcess[str], told: str) -> None:
    """Exit status 2, and what is wrong in the last line; before it at most the usage."""
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    assert "Traceback" not in result.stderr
    *usage, last = [line for line in result.stderr.splitlines() if not line.startswith(" ")]
    assert "error: " in last
    assert told in last
    assert all(line.startswith("usage: ") for line in usage)


def test_command_benchmark_alternates_two_commands(repository_root: Path, trace: Path, tmp_path: Path) -> None:
    simulator = tmp_path / "simulator"
    log, history = tmp_path / "log", tmp_path / "history.jsonl"
    simulator.write_text(f'#!/bin/sh\necho "$*" >>{log}\n')
    simulator.chmod(0o755)
    result = run_tool(
        repository_root, "bench_command.py", trace, "--simulator", simulator, "--repeat", 2, "--json", history
    )
    assert result.returncode == 0, result.stderr
    assert [line.split()[0] for line in log.read_text().splitlines()] == ["run", "run"]
    record = json.loads(history.read_text())
    assert list(record["commands"]) == ["trtkv replay", "kvcache-simulator run"]
    assert set(record["commands"]["trtkv replay"]) == {"wall_seconds", "cpu_seconds", "peak_mb"}
    assert record["commands"]["trtkv replay"]["peak_mb"] > 10
    assert "trtkv replay" in result.stdout


def test_failing_command_ends_the_benchmark(repository_root: Path, trace: Path) -> None:
    result = run_tool(repository_root, "bench_command.py", trace, "--simulator", "false", "--repeat", 1)
    assert result.returncode == 1
    assert "ended with status 1" in result.stderr
