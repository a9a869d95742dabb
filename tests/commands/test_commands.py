from __future__ import annotations

import gzip
import json
import subprocess
import sys

import pytest

from tests.replay.helpers import DATA

CHAT = str(DATA / "chat_120.jsonl")
REPLAY_CHAT = ("replay", CHAT, "--block-size", "64", "--tokens-per-block", "64")


def trtkv(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-m", "trtkv", *arguments], input=stdin, capture_output=True, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_a_table_with_rates_is_printed_and_json_written(tmp_path):
    path = tmp_path / "out.json"
    code, out, err = trtkv(*REPLAY_CHAT, "--capacity-tokens", "1M", "--live", "4", "--json", str(path))
    assert code == 0, err
    assert "format: mooncake" in err
    assert "block_hit_rate" in out
    report = json.loads(path.read_text())
    assert (report["trace"], report["capacity_tokens"], report["live"]) == ("chat_120.jsonl", 1_000_000, 4)
    assert report["requests"] == 120


def test_json_on_standard_output_is_alone_there_and_equal_from_run_to_run():
    runs = [trtkv(*REPLAY_CHAT, "--json", "-") for _ in range(2)]
    assert runs[0] == runs[1]
    assert json.loads(runs[0][1])["capacity_tokens"] == "inf"


def test_standard_input_gives_the_same_counts():
    _, from_file, _ = trtkv(*REPLAY_CHAT, "--json", "-")
    packed = gzip.compress((DATA / "chat_120.jsonl").read_bytes())
    code, from_stdin, err = trtkv("replay", "-", *REPLAY_CHAT[2:], "--json", "-", stdin=packed)
    assert code == 0, err
    assert json.loads(from_stdin) == {**json.loads(from_file), "trace": "-"}


def test_settings_reach_the_manager():
    code, out, err = trtkv(
        *REPLAY_CHAT,
        *("--window", "128", "--window", "full", "--host-tokens", "10k", "--capacity-tokens", "60_000"),
        *("--no-partial-reuse", "--no-copy-on-partial-reuse", "--limit", "50", "--format", "mooncake", "--json", "-"),
    )
    assert code == 0, err
    report = json.loads(out)
    assert report["attention_windows"] == [128, "full"]
    assert [window["window_size"] for window in report["windows"]] == [128, report["max_sequence_length"]]
    assert (report["host_tokens"], report["capacity_tokens"]) == (10_000, 60_000)
    assert (report["partial_reuse"], report["copy_on_partial_reuse"]) == (False, False)
    assert report["requests"] == 50
    assert all(window["partial_reused"] == 0 for window in report["windows"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("replay", CHAT), "give it with --block-size"),
        (("replay", CHAT, "--block-size", "512"), r"chat_120.jsonl:1: hash_ids holds"),
        (("replay", CHAT + ".nothing", "--block-size", "64"), "cannot open trace"),
        ((*REPLAY_CHAT, "--capacity-tokens", "many"), "--capacity-tokens is 'many'"),
        ((*REPLAY_CHAT, "--capacity-tokens", "5"), "capacity_tokens is 5"),
        ((*REPLAY_CHAT, "--capacity-tokens", f"{10**20}G"), "more than 2147483647 blocks"),
        ((*REPLAY_CHAT, "--host-tokens", "999G"), "host_tokens is 999000000000, more than"),
        (("trace", "info", CHAT, "--block-size", "64", "--tokens-per-block", "0"), "--tokens-per-block is 0"),
        (("compare", "nofile"), "cannot read nofile: No such file or directory\n"),
        ((*REPLAY_CHAT, "--window", "-3"), "attention window is -3"),
        ((*REPLAY_CHAT, "--live", "0"), "live is 0"),
        ((*REPLAY_CHAT, "--json", "/no/such/folder/out.json"), "/no/such/folder/out.json"),
        ((*REPLAY_CHAT, "--format", "csv"), "csv"),
        (("trace", "generate", "--kind", "chat", "--requests", "-1", "--seed", "1"), "number of requests is -1"),
    ],
)
def test_bad_input_ends_with_code_2_and_one_reason(arguments, told):
    code, out, err = trtkv(*arguments)
    assert (code, out) == (2, "")
    assert told in err
    assert "Traceback" not in err


def test_a_faulty_row_stops_or_is_counted(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes((DATA / "chat_120.jsonl").read_bytes() + b'{"timestamp": 1}\n')
    report = tmp_path / "out.json"
    code, out, err = trtkv("replay", str(path), *REPLAY_CHAT[2:], "--json", str(report))
    assert (code, out) == (2, "")
    assert not report.exists()
    assert f"{path}:121: input_length is missing" in err

    code, out, err = trtkv("replay", str(path), *REPLAY_CHAT[2:], "--lenient", "--json", "-")
    assert code == 0
    assert json.loads(out)["malformed_rows"] == 1
    assert "t.jsonl:121: input_length is missing" in err


def test_generate_writes_the_same_trace_to_a_file_and_to_standard_output(tmp_path):
    options = ("trace", "generate", "--kind", "chat", "--requests", "120", "--seed", "7", "--block-size", "64")
    code, out, err = trtkv(*options)
    assert (code, err) == (0, "")
    assert out == (DATA / "chat_120.jsonl").read_text()
    path = tmp_path / "t.jsonl"
    assert trtkv(*options, "--output", str(path)) == (0, "", "")
    assert path.read_text() == out


def test_help_names_every_option_of_the_replay():
    code, out, _ = trtkv("replay", "--help")
    assert code == 0
    for option in ("--format", "--block-size", "--capacity-tokens", "--host-tokens", "--live", "--window", "--lenient"):
        assert option in out


def test_the_command_line_starts_without_the_replay_modules():
    script = "import trtkv.cli, sys; print([name for name in sys.modules if name.startswith('trtkv.replay')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"
