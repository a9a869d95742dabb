"""``trtkv replay --scheduler`` as a program."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.replay.helpers import DATA

CHAT = str(DATA / "chat_120.jsonl")
REPLAY = ("replay", CHAT, "--block-size", "64", "--tokens-per-block", "64", "--limit", "12")
LOOP = (*REPLAY, "--scheduler", "guaranteed-no-evict")


def trtkv(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-m", "trtkv", *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_settings_reach_the_loop():
    code, out, err = trtkv(
        *(*REPLAY, "--scheduler", "max-utilization", "--max-batch-size", "5", "--max-num-tokens", "512"),
        *("--arrivals", "trace", "--step-time", "linear:base=1ms,cached=0", "--chunked-context"),
        *("--chunk-policy", "equal-progress", "--chunk-unit", "128", "--capacity-tokens", "50k", "--json", "-"),
    )
    assert code == 0, err
    report = json.loads(out)
    settings = report["settings"]
    assert (settings["scheduler"], settings["max_batch_size"], settings["max_num_tokens"]) == (
        "max_utilization",
        5,
        512,
    )
    assert (settings["chunk_policy"], settings["chunk_unit"], settings["arrivals"]) == ("equal_progress", 128, "trace")
    assert settings["step_time"]["base_ns"] == 1_000_000
    assert settings["step_time"]["cached_ns"] == 0
    assert settings["primary_blocks"] == 50_000 // 64
    assert report["counts"]["finished_requests"] == 12
    assert any(row[3] > 0 for row in report["per_request"]["rows"])  # arrivals are those of the trace, in seconds
    assert max(row[3] for row in report["per_request"]["rows"]) < 100


def test_defaults_are_those_of_the_documentation():
    code, out, err = trtkv(*LOOP, "--json", "-")
    assert code == 0, err
    settings = json.loads(out)["settings"]
    assert (settings["max_batch_size"], settings["max_num_tokens"], settings["arrivals"]) == (64, 8192, "asap")
    assert (settings["chunk_policy"], settings["chunk_unit"]) == (None, None)
    assert settings["step_time"] == {
        "model": "linear",
        "base_ns": 6_000_000,
        "context_ns": 40_000,
        "generation_ns": 20_000,
        "cached_ns": 50,
    }


def test_the_chunk_unit_is_a_block_unless_given():
    code, out, _ = trtkv(*LOOP, "--chunked-context", "--max-num-tokens", "256", "--json", "-")
    assert code == 0
    settings = json.loads(out)["settings"]
    assert (settings["chunk_policy"], settings["chunk_unit"]) == ("first_come_first_served", 64)


def test_a_table_is_printed_json_written_and_the_run_recorded(tmp_path):
    report, program = tmp_path / "report.json", tmp_path / "run.jsonl"
    limited = (*REPLAY[:-1], "3", "--scheduler", "static-batch")
    code, out, err = trtkv(*limited, "--json", str(report), "--record", str(program))
    assert code == 0, err
    assert "static batch" in out
    plain = trtkv(*limited, "--json", "-")[1]
    assert report.read_text() == plain
    code, out, err = trtkv("verify", str(program))
    assert code == 0, err
    assert out.split()[-4:-2] == ["1", f"{len(program.read_text().splitlines()) - 1:,}"]


def test_refused_requests_are_named_on_standard_error_beside_json():
    code, out, err = trtkv(*LOOP, "--max-num-tokens", "400", "--json", "-")
    assert code == 0
    refused = json.loads(out)["refused_requests"]
    assert f"{len(refused)} requests can never run" in err
    assert refused[0]["reason"] in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*REPLAY, "--max-batch-size", "4"), "--max-batch-size: only with"),
        ((*REPLAY, "--record", "x", "--chunked-context"), "--chunked-context, --record: only with"),
        ((*LOOP, "--live", "4"), "--live"),
        ((*LOOP, "--bounds"), "--bounds"),
        ((*LOOP, "--system", "nano"), "--system"),
        ((*LOOP, "--chunk-unit", "64"), "add it"),
        ((*LOOP, "--chunked-context", "--chunk-unit", "65"), "not a multiple"),
        ((*LOOP, "--step-time", "cubic"), "step time model 'cubic'"),
        ((*LOOP, "--max-batch-size", "0"), "max_batch_size is 0"),
        ((*LOOP, "--record", "/nowhere/x"), "/nowhere/x"),
    ],
)
def test_options_that_do_not_belong_together_are_refused_in_one_line(arguments, words):
    code, out, err = trtkv(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_a_trace_without_a_clock_cannot_arrive_by_its_times(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"block_size": 64, "input_length": 64, "hash_ids": [1]}\n')
    common = ("replay", str(path), "--scheduler", "static-batch", "--json", "-")
    code, _, err = trtkv(*common, "--arrivals", "trace")
    assert code == 2
    assert "arrivals asap" in err
    assert json.loads(trtkv(*common)[1])["counts"]["finished_requests"] == 1


def test_lengths_only_are_replayed_without_reuse(tmp_path):
    path = tmp_path / "lengths.csv"
    rows = "".join(f"{second},100,{10}\n" for second in range(6))
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    replay = ("replay", str(path), "--capacity-tokens", "300", "--max-batch-size", "4")
    code, out, err = trtkv(*replay, "--scheduler", "max-utilization", "--json", "-")
    assert code == 0, err
    report = json.loads(out)
    assert report["reuse"] == "unknown"
    assert report["counts"]["finished_requests"] == 6
    assert report["counts"]["computed_prompt_tokens"] >= 600  # equal prompts of zeros are not found again
    assert report["counts"]["prefill_tokens_saved"] == 0
    assert not {"token_hit_rate", "prefill_step_saving"} & {rate["name"] for rate in report["rates"]}
    code, out, err = trtkv(*replay, "--scheduler", "max-utilization")
    assert "reuse is unknown" in out
    assert out.count("unknown") >= 4
    code, _, err = trtkv("replay", str(path))
    assert code == 2
    assert "--scheduler replays lengths" in err
