"""trtkv trace info: figures worked out by hand, known figures of public traces, tables and JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.replay.trace_builders import token_request
from tests.shown import shown
from trtkv.commands.trace_info import info as info_command
from trtkv.errors import InvalidInputError
from trtkv.tables.json_text import json_text
from trtkv.traces.info.trace_info import TraceInfo, describe_trace
from trtkv.traces.sessions.protocol import SessionFacts, SessionProtocol
from trtkv.traces.trace import RequestTrace, RowFault
from trtkv.traces.trace_reader import read_trace

# Blocks of 2: [1 1][1 1][2], [1 1][1 1][3], [1 1][9 9], [4], [1 1][1 1][2]
PROMPTS = [[1, 1, 1, 1, 2], [1, 1, 1, 1, 3], [1, 1, 9, 9], [4], [1, 1, 1, 1, 2]]


def trace() -> RequestTrace:
    requests = [token_request(i, tokens, output_length=i, timestamp=10.0 * i) for i, tokens in enumerate(PROMPTS)]
    return RequestTrace("t.jsonl", "tokens", None, requests, [RowFault(3, "bad")])


def described(**settings: object) -> TraceInfo:
    return describe_trace(replace(trace(), **settings), tokens_per_block=2)  # type: ignore[arg-type]


def test_lengths_and_span() -> None:
    info = described(seconds_per_unit=0.5)
    assert info.prompt_tokens == (20, 4.0, 1, 5, 5, 5, 5)
    assert info.output_tokens == (10, 2.0, 0, 2, 4, 4, 4)
    assert (info.requests, info.malformed_rows, info.span_seconds) == (5, 1, 20.0)
    assert described().span_seconds is None


def test_sharing_in_blocks() -> None:
    sharing = described().sharing
    assert sharing is not None
    assert (sharing.blocks, sharing.distinct_blocks, sharing.roots, sharing.forks) == (12, 6, 2, 2)
    assert sharing.deepest == 3
    assert sharing.distinct_blocks_by_use == {"1": 3, "2": 1, "3-10": 2, "11-100": 0, "over 100": 0}
    assert (sharing.zero_hit_requests, sharing.fully_seen_requests) == (2, 1)
    assert [tuple(run) for run in sharing.runs] == [(4, 0, 1), (3, 1, 2), (2, 2, 3)]


def test_rates_of_a_cache_without_limit() -> None:
    rates = {rate.name: (rate.numerator, rate.denominator) for rate in described().rates}
    assert rates["infinite_block_hit_rate"] == (2 + 1 + 3, 12)
    assert rates["infinite_full_block_hit_rate"] == (2 + 1 + 2, 12)
    assert rates["infinite_token_hit_rate"] == (4 + 2 + 4, 20)
    assert rates["infinite_mean_token_hit_rate"] == (pytest.approx(4 / 5 + 2 / 4 + 1), 5)
    assert rates["infinite_mean_block_hit_rate"] == (pytest.approx(2 / 3 + 1 / 2 + 1), 5)


def test_reuse_distances_caches_and_working_sets() -> None:
    info = described()
    # Order of use before request 4: 4 | 11 99 | 3 (11 11) 2: distances 1 and 3 for its first blocks, 5 for the last.
    # Request 1 finds distances 0 and 1, request 2 finds 0.
    assert info.reuse_distance_blocks == {"p10": 0, "p50": 1, "p90": 5, "p99": 5, "max": 5}
    assert [(size.blocks, size.hits) for size in info.lru][-3:] == [(1, 2), (3, 4), (6, 6)]
    assert [(window.num_requests, window.largest) for window in info.working_sets] == [(5, 6)]


def test_block_size_of_the_trace_is_the_default() -> None:
    hash_trace = RequestTrace("t", "mooncake", 4, [token_request(0, [1] * 9)])
    assert describe_trace(hash_trace).tokens_per_block == 4
    assert describe_trace(trace()).tokens_per_block == 32


def test_lengths_only_traces_have_no_sharing() -> None:
    info = described(has_tokens=False)
    assert info.sharing is None
    assert info.to_json()["infinite_cache"] == []
    assert info.prompt_tokens.total == 20


def test_empty_trace_and_senseless_block_size_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="has no requests"):
        describe_trace(RequestTrace("t", "tokens", None, []))
    with pytest.raises(InvalidInputError, match="tokens_per_block is -1"):
        describe_trace(trace(), tokens_per_block=-1)


def test_json_is_the_same_each_time_and_complete() -> None:
    text = json_text(described().to_json())
    assert text == json_text(described().to_json())
    report = json.loads(text)
    assert report["sharing"]["runs"][0] == {"requests": 4, "start": 0, "end": 1}
    assert report["lru_cache"][-1] == {"share": 1.0, "blocks": 6, "hits": 6, "tokens": 12}
    assert all(rate["definition"] for rate in report["infinite_cache"])


def test_tables_show_the_figures() -> None:
    tables = shown(described(seconds_per_unit=1.0))
    for text in ("t.jsonl (tokens)", "5 requests over 40.000 s", "1 malformed rows", "4 requests", "50.000 %"):
        assert text in tables
    assert "Only lengths are known" in shown(described(has_tokens=False))


def test_sessions_and_known_outputs_are_shown() -> None:
    info = described(
        sessions=SessionFacts(SessionProtocol(), session_count=2, requests_with_predecessor=3, outputs_known=1)
    )
    assert info.to_json()["requests_with_predecessor"] == 3
    tables = shown(info)
    assert "--sessions trace --outputs trace" in " ".join(tables.split())
    assert re.search(r"requests that wait for another\W+3\b", tables)
    assert "requests that wait" not in shown(described())


def test_command_writes_json_and_says_what_it_took(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(info_command)
    path = tmp_path / "t.jsonl"
    rows = [
        {"block_size": 2, "input_length": len(p), "hash_ids": [str(p[:2]), str(p[:4])][: -(-len(p) // 2)]}
        for p in PROMPTS[2:4]
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = CliRunner().invoke(app, [str(path), "--json", "-"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert (report["requests"], report["format"], report["tokens_per_block"]) == (2, "kvcache-simulator", 2)
    assert "format: kvcache-simulator (the first row has block_size" in result.stderr
    other = tmp_path / "out.json"
    result = CliRunner().invoke(app, [str(path), "--json", str(other), "--tokens-per-block", "4"])
    assert "Sharing, in blocks of 4 tokens" in result.stdout
    assert json.loads(other.read_text())["tokens_per_block"] == 4


def test_command_shows_lengths_only_traces(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(info_command)
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,3,4\n2023-11-16 18:16:46,5,4\n")
    result = CliRunner().invoke(app, [str(path), "--json", "-"])
    report = json.loads(result.stdout)
    assert (report["span_seconds"], report["sharing"], report["prompt_tokens"]["total"]) == (60.0, None, 8)


def test_public_traces_have_the_known_figures(shared_dir: Path) -> None:
    known = {
        "conversation": (12_031, 105_710, 288_500, 182_790, 105_592, 54_098_293, 1, 118, 1, 0.38426),
        "synthetic": (3_993, 77_953, 121_877, 43_924, 77_740, 39_852_448, 2_211, 213, 2_211, 0.42324),
    }
    for name, figures in known.items():
        info = describe_trace(read_trace(shared_dir / "traces" / "mooncake" / f"{name}_trace.jsonl", block_size=512))
        rates = {rate.name: rate for rate in info.rates}
        assert info.sharing is not None
        found = (
            info.requests,
            rates["infinite_block_hit_rate"].numerator,
            info.sharing.blocks,
            info.sharing.distinct_blocks,
            rates["infinite_full_block_hit_rate"].numerator,
            rates["infinite_token_hit_rate"].numerator,
            info.sharing.zero_hit_requests,
            info.sharing.fully_seen_requests,
            info.sharing.roots,
            round(rates["infinite_mean_block_hit_rate"].value or 0, 5),
        )
        assert found == figures


def test_public_agent_sessions_have_the_known_figures(shared_dir: Path) -> None:
    loaded = read_trace(shared_dir / "traces" / "agentic")
    info = describe_trace(loaded)
    rates = {rate.name: rate for rate in info.rates}
    assert rates["infinite_full_block_hit_rate"].numerator == 343 + 338 + 483 + 9121
    num_full = sum(request.input_length // 64 for request in loaded.requests)
    assert num_full == 525 + 558 + 771 + 10_140
