"""Traces written anew: the same hits, and nothing of the text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from typer.testing import CliRunner

from trtkv.cli import app
from trtkv.replay.closed_loop.run import replay_trace
from trtkv.replay.config import ReplayConfig
from trtkv.traces.prefixes import renaming
from trtkv.traces.prefixes.infinite_matches import infinite_matches
from trtkv.traces.prefixes.renaming import PrefixRenamer
from trtkv.traces.trace import RequestTrace
from trtkv.traces.trace_reader import read_trace

DATA = Path(__file__).parents[1] / "data"


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(one), len(other)))


class TestPrefixRenamer:
    def test_names_depend_on_the_whole_prefix(self) -> None:
        renamer = PrefixRenamer()
        names = [
            renamer.rename(np.array(tokens, dtype=np.int32)).tolist()
            for tokens in ([5, 5, 5], [5, 5], [5, 5, 7], [5, 5, 5, 5], [7, 5, 5], [])
        ]
        assert names == [[0, 1, 2], [0, 1], [0, 1, 3], [0, 1, 2, 4], [5, 6, 7], []]

    @pytest.mark.parametrize("seed", range(30))
    def test_common_prefixes_stay_and_equal_names_mean_equal_prefixes(self, seed: int) -> None:
        random = Random(seed)
        texts = [[random.randrange(2) for _ in range(random.randrange(12))] for _ in range(40)]
        renamer = PrefixRenamer()
        names = [renamer.rename(np.array(text, dtype=np.int32)).tolist() for text in texts]
        prefix_of: dict[int, tuple[int, ...]] = {}
        for text, name in zip(texts, names, strict=True):
            assert len(text) == len(name)
            for i, number in enumerate(name):
                assert prefix_of.setdefault(number, tuple(text[: i + 1])) == tuple(text[: i + 1])
        for i in range(len(texts)):
            for j in range(i):
                assert common_prefix(names[i], names[j]) == common_prefix(texts[i], texts[j])

    def test_names_that_do_not_fit_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(renaming, "MAX_INT32", 4)
        renamer = PrefixRenamer()
        renamer.rename(np.arange(4, dtype=np.int32))
        with pytest.raises(ValueError, match="read fewer rows"):
            renamer.rename(np.arange(1, 2, dtype=np.int32))


def convert(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["trace", "convert", *map(str, arguments)])
    assert result.exit_code == 0, result.stderr
    return result.stderr


def found_tokens(trace: RequestTrace, **settings: object) -> int:
    config = ReplayConfig(tokens_per_block=4, **settings)  # type: ignore[arg-type]
    result, _ = replay_trace(trace, config)
    return result.counts.prepopulated_tokens


def described(trace: RequestTrace) -> list[tuple[object, ...]]:
    return [
        (r.input_length, r.output_length, r.turn, r.predecessors, r.delay_seconds, r.output and r.output.length)
        for r in trace.requests
    ]


def random_rows(seed: int) -> list[dict[str, object]]:
    """Rows of token ids with sessions, salts and outputs that come back, sorted by time."""
    random = Random(seed)
    history: dict[str, list[int]] = {}
    rows = []
    for i in range(60):
        session = f"secret-{random.randrange(8)}"
        prompt = history.get(session, [random.randrange(3)] * 9) + [
            random.randrange(50) for _ in range(random.randrange(1, 9))
        ]
        output = [random.randrange(50) for _ in range(random.randrange(1, 6))]
        history[session] = prompt + output
        row: dict[str, object] = {
            "input_toks": len(prompt),
            "output_toks": len(output),
            "arrival_time_ns": 1_000_000 * i + 5_000_000,
            "input_tok_ids": prompt,
            "output_tok_ids": output,
            "session_id": session,
            "intra_session_gap_ns": random.randrange(10**9),
        }
        rows.append(row | ({"cache_salt": "secret-salt"} if session.endswith("3") else {}))
    return rows


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("anonymise", [(), ("--anonymise",)])
def test_tokens_give_the_same_hits(tmp_path: Path, seed: int, anonymise: tuple[str, ...]) -> None:
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in random_rows(seed)))
    convert(path, out, "--to", "tokens", *anonymise)
    before, after = read_trace(path), read_trace(out)
    assert described(after) == described(before)
    assert infinite_matches(after.requests) == infinite_matches(before.requests)
    for capacity, live in ((None, 1), (200, 3)):
        settings = {"capacity_tokens": capacity, "live": live}
        assert found_tokens(after, **settings) == found_tokens(before, **settings)
    assert found_tokens(before) > 0
    assert ("secret" in out.read_text()) is not bool(anonymise)


def test_anonymised_tokens_count_up_and_times_start_at_0(tmp_path: Path) -> None:
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in random_rows(1)))
    convert(path, out, "--to", "tokens", "--anonymise")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    first = rows[0]
    assert first["input_tok_ids"] + first["output_tok_ids"] == list(range(first["input_toks"] + first["output_toks"]))
    assert [rows[0]["arrival_time_ns"], rows[1]["arrival_time_ns"]] == [0, 1_000_000]
    assert first["session_id"] == "s0"


@pytest.mark.parametrize("anonymise", [(), ("--anonymise",)])
def test_hash_ids_stay_as_they_are_or_count_up(tmp_path: Path, anonymise: tuple[str, ...]) -> None:
    path, out = DATA / "agent_60.jsonl", tmp_path / "out.jsonl"
    told = convert(path, out, "--to", "mooncake", "--block-size", 512, *anonymise)
    assert "read them with --block-size 512" in told
    before, after = read_trace(path, block_size=512), read_trace(out, block_size=512)
    assert found_tokens(after) == found_tokens(before)
    assert found_tokens(before) > 0
    ids = [number for line in out.read_text().splitlines() for number in json.loads(line)["hash_ids"]]
    if anonymise:
        assert list(dict.fromkeys(ids)) == list(range(len(set(ids))))
    else:
        assert out.read_text() == path.read_text()


def test_tokens_as_hash_ids_keep_full_blocks(tmp_path: Path) -> None:
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [{key: value for key, value in row.items() if key != "cache_salt"} for row in random_rows(2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    convert(path, out, "--to", "mooncake", "--to-block-size", 4)
    before, after = read_trace(path), read_trace(out, block_size=4)
    full = {"partial_reuse": False}
    assert found_tokens(after, **full) == found_tokens(before, **full)
    assert [row[:4] for row in described(after)] == [row[:4] for row in described(before)]
    delays = [request.delay_seconds for request in before.requests]
    assert [request.delay_seconds for request in after.requests] == pytest.approx(delays)


def test_waits_across_sessions_are_written(tmp_path: Path) -> None:
    session = {
        "id": "secret",
        "block_size": 4,
        "requests": [
            {"t": 0.0, "in": 9, "out": 1, "hash_ids": [1, 2]},
            {"t": 1.0, "type": "subagent", "requests": [{"t": 0.0, "in": 8, "out": 1, "hash_ids": [1, 5]}]},
            {"t": 9.0, "in": 13, "out": 2, "hash_ids": [1, 2, 3], "think_time": 1.5},
        ],
    }
    path, out = tmp_path / "in.json", tmp_path / "out.jsonl"
    path.write_text(json.dumps(session))
    convert(path, out, "--to", "mooncake", "--anonymise")
    before, after = read_trace(path), read_trace(out, block_size=4)
    assert [request.predecessors for request in after.requests] == [(), (0,), (0, 1)]
    assert [request.delay_seconds for request in after.requests] == [0.0, 0.0, 1.5]
    assert [request.session for request in after.requests] == ["s0", "s1", "s0"]
    assert infinite_matches(after.requests) == infinite_matches(before.requests)


def test_text_is_not_written(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="the extra tokenizers is not installed")
    pytest.importorskip("jinja2", reason="chat templates need jinja2")
    out = tmp_path / "out.jsonl"
    convert(DATA / "traces" / "lmsys.jsonl", out, "--to", "tokens", "--tokenizer", DATA / "traces" / "words")
    assert "hello" not in out.read_text()
    before = read_trace(DATA / "traces" / "lmsys.jsonl", tokenizer=DATA / "traces" / "words")
    assert [r.tokens().tolist() for r in read_trace(out).requests] == [r.tokens().tolist() for r in before.requests]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--to", "csv"), "'csv' is not one of mooncake, tokens"),
        (("--to", "tokens", "--format", "csv"), "'csv' is not one of auto"),
        (("--to", "mooncake", "--to-block-size", "0"), "should be greater than or equal to 1"),
        ((), "Missing option '--to'"),
    ],
)
def test_wrong_options(tmp_path: Path, arguments: tuple[str, ...], reason: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("{}\n")
    result = CliRunner().invoke(app, ["trace", "convert", str(path), str(tmp_path / "out"), *arguments])
    assert result.exit_code == 2
    assert reason in result.stderr
    refused = CliRunner().invoke(app, ["trace", "convert", str(path), str(path), "--to", "tokens"])
    assert "is an input of this command" in refused.stderr
    assert path.read_text() == "{}\n"
