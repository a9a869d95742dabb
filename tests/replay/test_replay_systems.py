"""``trtkv replay`` with nano-vllm, with bounds, and with every kind of trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands.test_commands import trtkv
from tests.replay.helpers import DATA

CHAT = str(DATA / "chat_120.jsonl")
SMALL = (CHAT, "--block-size", "64", "--tokens-per-block", "64", "--capacity-tokens", "200k", "--live", "4")


def test_both_systems_run_the_same_requests():
    reports = {}
    for system in ("tensorrt-llm", "nano"):
        code, out, err = trtkv("replay", *SMALL, "--system", system, "--json", "-")
        assert code == 0, err
        reports[system] = json.loads(out)
    ours, nano = reports["tensorrt-llm"], reports["nano"]
    for key in ("trace", "requests", "prompt_tokens", "prompt_blocks", "decode_calls", "tokens_per_block", "live"):
        assert ours[key] == nano[key], key
    assert nano["system"] == "nano"
    assert 0 < nano["prepopulated_tokens"] <= nano["prompt_tokens"]
    assert nano["reused"] + nano["missed"] == nano["prompt_blocks"]


def test_nano_report_is_a_table_too(tmp_path: Path):
    path = tmp_path / "out.json"
    code, out, err = trtkv("replay", *SMALL, "--system", "nano-scheduler", "--json", str(path))
    assert code == 0, err
    for text in ("Replay of chat_120.jsonl on nano-vllm", "preemptions", "token_hit_rate", "ratio of sums"):
        assert text in out
    assert json.loads(path.read_text())["loop"] == "scheduler"


@pytest.mark.parametrize("system", ["tensorrt-llm", "nano"])
def test_bounds_stand_beside_the_measured_rate(system: str):
    code, out, err = trtkv("replay", *SMALL, "--system", system, "--bounds", "--json", "-")
    assert code == 0, err
    report = json.loads(out)
    bounds = report["bounds"]
    assert (bounds["requests"], bounds["prompt_tokens"]) == (report["requests"], report["prompt_tokens"])
    assert report["prepopulated_tokens"] <= bounds["clairvoyant_hit_tokens"] <= bounds["infinite_hit_tokens"]
    assert bounds["partial_reuse"] == (system == "tensorrt-llm")
    code, out, _ = trtkv("replay", *SMALL, "--system", system, "--bounds")
    assert "clairvoyant_token_hit_rate" in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--system", "nano", "--host-tokens", "1k"), "--system nano knows none of --host-tokens, --window"),
        (("--system", "nano", "--window", "128"), "--system nano knows none of"),
        (("--system", "nano", "--compatibility"), "--system nano knows none of"),
        (("--bounds", "--window", "128"), "--bounds is about full attention"),
        (("--bounds", "--system", "nano-scheduler"), "--bounds is about the closed loop"),
        (("--format", "nonsense"), "'nonsense' is not one of"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: tuple[str, ...], text: str):
    code, out, err = trtkv("replay", *SMALL, *arguments)
    assert (code, out) == (2, "")
    assert text in err


def test_result_of_a_replay_can_be_compared_with_an_earlier_one(tmp_path: Path):
    paths = [str(tmp_path / name) for name in ("a.json", "b.json", "c.json")]
    for path, live in zip(paths, ("4", "4", "1"), strict=True):
        assert trtkv("replay", *SMALL[:-1], live, "--json", path)[0] == 0
    assert trtkv("compare", paths[0], paths[1])[0] == 0
    code, _, err = trtkv("compare", paths[0], paths[2])
    assert code == 2
    assert "other settings: live 4 against 1" in err
    assert trtkv("compare", paths[0], paths[2], "--ignore-settings")[0] == 1


def test_folder_of_sessions_is_replayed(tmp_path: Path):
    for name, first in (("a", 1), ("b", 1)):
        requests = [
            {"t": t, "type": "n", "in": 130 + 64 * t, "out": 3, "hash_ids": list(range(first, first + 2 + t))}
            for t in range(4)
        ]
        session = {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": requests}
        (tmp_path / f"{name}.json").write_text(json.dumps(session))
    code, out, err = trtkv("replay", str(tmp_path), "--system", "nano", "--tokens-per-block", "64", "--json", "-")
    assert code == 0, err
    report = json.loads(out)
    assert "format: agentic" in err
    assert report["reused"] == 2 * (2 + 3 + 4)  # each request finds all full blocks of the one before, per session


def test_lengths_only_trace_is_refused_with_the_reason(tmp_path: Path):
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,3,4\n")
    code, out, err = trtkv("replay", str(path))
    assert (code, out) == (2, "")
    assert "holds lengths only" in err
    assert "would be 0 by construction" in err
    assert trtkv("trace", "info", str(path))[0] == 0
