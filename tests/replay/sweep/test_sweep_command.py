"""``trtkv sweep``: settings of replays, resuming, interruption."""

from __future__ import annotations

import csv
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.replay.helpers import DATA
from trtkv import cli
from trtkv.commands.replay import replay as replay_command
from trtkv.commands.sweep import NOT_SET, OptionParser

CHAT = str(DATA / "chat_120.jsonl")
MODEL = str(DATA / "models" / "llama-3.1-8b.json")
SMALL = ("sweep", CHAT, "--set", "block-size=64", "--set", "limit=30")
GRID = ("--set", "tokens-per-block=32,64", "--set", "capacity-tokens=40k,inf")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments)


def keys(path: Path) -> list[str]:
    return [json.loads(line)["key"] for line in path.read_text().splitlines()]


def test_rows_are_those_of_single_replays(tmp_path: Path) -> None:
    results = tmp_path / "r.jsonl"
    settings = ("--set", "system=tensorrt-llm,nano", "--set", "live=4", "--set", "no-partial-reuse=true")
    outcome = run(*SMALL, *GRID, *settings, "--jobs", "2", "--results", str(results))
    assert outcome.exit_code == 0, outcome.output
    assert "Sweep of 8 configurations" in outcome.output
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    replay = run(
        *("replay", CHAT, "--block-size", "64", "--limit", "30", "--live", "4", "--tokens-per-block", "64"),
        *("--capacity-tokens", "40k", "--no-partial-reuse", "--json", "-"),
    )
    assert json.loads(replay.stdout) == rows[4]["report"]
    assert rows[4]["configuration"]["tokens_per_block"] == "64"
    assert [row["report"]["system"] for row in rows] == ["tensorrt-llm", "nano"] * 4


def test_columns_of_settings_have_the_type_of_their_option(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    settings = ("--set", "limit=10,20", "--set", "explain=true", "--set", "bounds=true", "--set", "window=64+full,full")
    arguments = ("sweep", CHAT, "--set", "block-size=64", *settings, "--jobs", "1", "--csv", str(path))
    assert run(*arguments).exit_code == 0
    rows = list(csv.DictReader(path.open(encoding="utf-8", newline="")))
    options = OptionParser()
    cells = options.cells({"trace": CHAT, "limit": "10", "explain": "true", "bounds": "true", "window": "64+full"})
    assert cells == {"trace": CHAT, "limit": 10, "explain": True, "bounds": True, "window": "64+full"}
    assert [(row["limit"], row["bounds"], row["window"]) for row in rows][:2] == [
        ("10", "True", "64+full"),
        ("10", "True", "full"),
    ]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_files_are_the_same_however_many_processes(tmp_path: Path, jobs: str) -> None:
    reference = tmp_path / "reference.csv"
    assert run(*SMALL, *GRID, "--jobs", "1", "--csv", str(reference)).exit_code == 0
    path = tmp_path / "r.csv"
    assert run(*SMALL, *GRID, "--jobs", jobs, "--csv", str(path)).exit_code == 0
    assert path.read_bytes() == reference.read_bytes()
    assert len(path.read_text().splitlines()) == 5


def test_a_second_run_finds_everything_and_a_wider_one_most(tmp_path: Path) -> None:
    path = str(tmp_path / "r.jsonl")
    assert "4 runs in" in run(*SMALL, *GRID, "--jobs", "1", "--results", path).stderr
    again = run(*SMALL, *GRID, "--jobs", "1", "--results", path)
    assert "0 runs in" in again.stderr
    assert "4 found in the results file" in again.stderr
    # Written otherwise, these are the same runs.
    same = ("--set", "tokens-per-block=32,64", "--set", "capacity-tokens=40000,inf", "--set", "live=1")
    assert "0 runs in" in run(*SMALL, *same, "--jobs", "1", "--results", path).stderr
    wider = ("--set", "tokens-per-block=32,64", "--set", "capacity-tokens=40k,50k,inf")
    assert "2 runs in" in run(*SMALL, *wider, "--jobs", "1", "--results", path).stderr
    assert len(set(keys(Path(path)))) == 6


def test_another_content_of_the_trace_is_another_run(tmp_path: Path) -> None:
    trace, path = tmp_path / "t.jsonl", str(tmp_path / "r.jsonl")
    arguments = ("sweep", str(trace), "--set", "block-size=64", "--jobs", "1", "--results", path)
    rows = (DATA / "chat_120.jsonl").read_text().splitlines()
    trace.write_text("\n".join(rows[:10]) + "\n")
    assert "1 runs in" in run(*arguments).stderr
    trace.write_text("\n".join(rows[:11]) + "\n")
    assert "1 runs in" in run(*arguments).stderr
    moved = tmp_path / "moved.jsonl"
    trace.rename(moved)
    assert "0 runs in" in run("sweep", str(moved), *arguments[2:]).stderr


def test_models_and_memory_can_be_swept(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    outcome = run(
        *SMALL, "--set", f"model={MODEL}", "--set", "memory=4GiB,8GiB", "--set", "kv-dtype=fp8,bf16", "--csv", str(path)
    )
    assert outcome.exit_code == 0, outcome.output
    lines = [line.split(",") for line in path.read_text().splitlines()]
    column = lines[0].index("capacity_tokens")
    assert [int(line[column]) for line in lines[1:]] == [65536, 32768, 131072, 65536]


def test_several_traces_and_bounds(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    outcome = run(
        *("sweep", CHAT, str(DATA / "rag_100.jsonl"), "--set", "block-size=64", "--set", "limit=20"),
        *("--set", "bounds=true", "--set", "window=full", "--jobs", "1", "--csv", str(path)),
    )
    assert outcome.exit_code == 0, outcome.output
    assert [line.split(",")[0] for line in path.read_text().splitlines()[1:]] == [CHAT, str(DATA / "rag_100.jsonl")]
    assert "clairvoyant_token_hit_rate" in path.read_text()


def test_causes_and_schedulers_become_columns(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    assert run(*SMALL, "--set", "explain=true", "--jobs", "1", "--csv", str(path)).exit_code == 0
    header, values = (line.split(",") for line in path.read_text().splitlines())
    row = dict(zip(header, values, strict=True))
    causes = {
        name: int(value) for name, value in row.items() if name in ("hit_tokens", "cold_tokens", "evicted_tokens")
    }
    assert causes["hit_tokens"] == int(row["prepopulated_tokens"])
    settings = ("--set", "scheduler=max-utilization,guaranteed-no-evict", "--set", "max-num-tokens=4096")
    outcome = run(*SMALL, *settings, "--jobs", "1", "--csv", str(path), "--results", str(tmp_path / "r.jsonl"))
    assert outcome.exit_code == 0, outcome.output
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    for name in ("scheduler", "steps", "token_hit_rate", "first_token_seconds_p90", "first_admissions_found_tokens"):
        assert name in lines[0].split(",")
    assert "per_request" not in (tmp_path / "r.jsonl").read_text()


def test_windows_of_several_layers_are_one_value() -> None:
    outcome = run(*SMALL, "--set", "window=full,128+full", "--jobs", "1")
    assert outcome.exit_code == 0, outcome.output
    assert "128+full" in outcome.output


def test_every_option_about_the_run_can_be_set() -> None:
    shown = run("sweep", CHAT, "--set", "nothing=1").stderr
    known = shown.partition("known are ")[2].strip().split(", ")
    parameters = [name for name in inspect.signature(replay_command).parameters if name not in NOT_SET]
    names = {"trace_format": "format"}
    assert sorted(known) == sorted(names.get(name, name).replace("_", "-") for name in parameters)
    for option in ("window", "system", "memory", "bounds", "explain", "scheduler", "limit"):
        assert option in known


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("sweep", CHAT), "--set"),
        ((*SMALL, "--set", "live=0"), "live=0: live is 0; give at least 1"),
        ((*SMALL, "--set", "live=many"), "live=many: Invalid value for '--live'"),
        ((*SMALL, "--set", "compatibility=yes"), "compatibility is 'yes'; it is a switch"),
        ((*SMALL, "--set", "system=nano,sglang"), "system=sglang: Invalid value for '--system'"),
        ((*SMALL, "--set", "system=nano", "--set", "host-tokens=0,1k"), "host_tokens=1k: --system nano knows none of"),
        ((*SMALL, "--set", "bounds=true", "--set", "window=128"), "--bounds is about full attention"),
        ((*SMALL, "--set", "memory=1GiB"), "give both"),
        ((*SMALL, "--jobs", "0"), "number of processes is 0"),
        ((*SMALL, "--csv", "/no/such/folder/r.csv"), "/no/such/folder/r.csv"),
        (("sweep", "-", "--set", "live=1"), "standard input can be read once only"),
        (("sweep", "/no/such/trace", "--set", "live=1"), "cannot open trace /no/such/trace"),
        (("sweep", CHAT, "--set", "block-size=512"), "hash_ids holds"),
    ],
)
def test_wrong_input_exits_with_2_and_names_the_combination(arguments: tuple[str, ...], told: str) -> None:
    outcome = run(*arguments)
    assert outcome.exit_code == 2
    assert told in " ".join(outcome.output.split())
    assert "Traceback" not in outcome.output


def test_a_killed_sweep_leaves_a_file_to_go_on_with(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    grid = ("--set", "tokens-per-block=8,16,32,64", "--set", "capacity-tokens=30k,40k,60k,80k,100k,inf")
    arguments = ("sweep", CHAT, "--set", "block-size=64", *grid, "--jobs", "2", "--results", str(path))
    process = subprocess.Popen(
        [sys.executable, "-m", "trtkv", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while (not path.exists() or path.read_bytes().count(b"\n") < 3) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    left = path.read_bytes()
    finished = keys(path) if left.endswith(b"\n") else [json.loads(line)["key"] for line in left.splitlines()[:-1]]
    assert 3 <= len(finished) <= 24
    outcome = run(*arguments)
    assert outcome.exit_code == 0, outcome.output
    assert f"{24 - len(finished)} runs in" in outcome.stderr
    straight = tmp_path / "straight.jsonl"
    assert run(*arguments[:-1], str(straight)).exit_code == 0
    assert path.read_bytes() == straight.read_bytes()
