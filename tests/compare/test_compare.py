"""Comparison of results: what may be compared, what counts as agreement, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.replay.nano.nano_runs import run_nano
from tests.replay.trace_builders import random_requests
from tests.shown import shown
from trtkv.commands.compare import compare as compare_command
from trtkv.compare.comparison import Comparisons, NotComparableError, compare_facts
from trtkv.compare.facts import Facts, facts_of, load_facts, protocol_words, trace_name
from trtkv.compare.number_facts import number_facts, places_of
from trtkv.compare.reference import find_number, load_numbers, load_runs, load_traces, run_id
from trtkv.compare.resolve import compare_with
from trtkv.errors import InvalidInputError, UnknownIdError
from trtkv.replay.bounds.bounds import compute_bounds
from trtkv.replay.closed_loop.run import replay_trace
from trtkv.replay.config import ReplayConfig
from trtkv.tables.json_text import json_text
from trtkv.traces.info.trace_info import describe_trace
from trtkv.traces.sessions.protocol import OLD_PROTOCOL
from trtkv.traces.trace import RequestTrace
from trtkv.traces.trace_reader import read_trace

STATS = {
    "kvCacheStats": {
        "maxNumBlocks": 100,
        "freeNumBlocks": 90,
        "usedNumBlocks": 10,
        "tokensPerBlock": 32,
        "allocTotalBlocks": 60,
        "allocNewBlocks": 55,
        "reusedBlocks": 30,
        "missedBlocks": 50,
        "cacheHitRate": 0.375,
    }
}


def replay_json(**settings: Any) -> dict[str, Any]:
    trace = RequestTrace("t.jsonl", "tokens", None, random_requests(random.Random(3), 30))
    config = ReplayConfig(**{"tokens_per_block": 4, "capacity_tokens": 200, **settings})
    return replay_trace(trace, config)[0].to_json()


def nano_json(**settings: Any) -> dict[str, Any]:
    requests = random_requests(random.Random(3), 30)
    return run_nano(requests, **{"tokens_per_block": 4, "capacity_tokens": 200, "live": 1, **settings})


def test_result_agrees_with_itself() -> None:
    facts = facts_of(replay_json(), "a")
    comparison = compare_facts(facts, facts_of(replay_json(), "b"))
    assert comparison.agrees
    assert {line.verdict for line in comparison.lines} == {"equal"}
    assert {line.name for line in comparison.lines} >= {"reused", "missed", "token_hit_rate", "mean_request_hit_rate"}
    assert comparison.settings["capacity_tokens"] == 200
    assert comparison.unchecked_settings == []


def test_one_token_more_is_a_difference_unless_tolerated() -> None:
    result, reference = replay_json(), replay_json()
    reference["prepopulated_tokens"] += 1
    reference["rates"][1]["numerator"] += 1
    strict = compare_facts(facts_of(result, "a"), facts_of(reference, "b"))
    verdicts = {line.name: line.verdict for line in strict.lines}
    assert not strict.agrees
    assert (verdicts["prepopulated_tokens"], verdicts["token_hit_rate"], verdicts["reused"]) == (
        "differs",
        "differs",
        "equal",
    )
    assert next(line.difference for line in strict.lines if line.name == "prepopulated_tokens") == -1
    loose = compare_facts(facts_of(result, "a"), facts_of(reference, "b"), tolerance=0.05)
    assert loose.agrees
    assert {line.name: line.verdict for line in loose.lines}["token_hit_rate"] == "within tolerance"


def test_tolerance_of_a_count_is_a_share_and_of_a_rate_absolute() -> None:
    def facts(count: int, found: int) -> Facts:
        made = Facts("x", "test")
        made.add("count", "c", count)
        made.add("rate", "r", found, 1000)
        return made

    comparison = compare_facts(facts(104, 504), facts(100, 500), tolerance=0.04)
    assert [(line.tolerance, line.verdict) for line in comparison.lines] == [
        (4, "within tolerance"),
        (0.04, "within tolerance"),
    ]
    comparison = compare_facts(facts(105, 541), facts(100, 500), tolerance=0.04)
    assert [line.verdict for line in comparison.lines] == ["differs", "differs"]
    with pytest.raises(InvalidInputError, match=r"tolerance is -0\.1"):
        compare_facts(facts(1, 1), facts(1, 1), tolerance=-0.1)
    with pytest.raises(InvalidInputError, match="tolerance is nan"):
        compare_facts(facts(1, 1), facts(1, 1), tolerance=float("nan"))


def test_other_settings_are_refused_unless_ignored() -> None:
    small, large = facts_of(replay_json(capacity_tokens=100), "small"), facts_of(replay_json(), "large")
    with pytest.raises(NotComparableError, match="other settings: capacity_tokens 100 against 200"):
        compare_facts(small, large)
    assert not compare_facts(small, large, ignore_settings=True).agrees


def test_other_definitions_are_refused_but_common_ones_can_be_picked() -> None:
    ours, nano = facts_of(replay_json(partial_reuse=False), "ours"), facts_of(nano_json(), "nano")
    with pytest.raises(NotComparableError, match=r"definitions differ: reused is .* in nano and .* in ours"):
        compare_facts(nano, ours)
    comparison = compare_facts(nano, ours, only=["requests", "prompt_tokens", "decode_calls", "token_hit_rate"])
    verdicts = {line.name: line.verdict for line in comparison.lines}
    assert verdicts["requests"] == verdicts["prompt_tokens"] == verdicts["decode_calls"] == "equal"
    with pytest.raises(NotComparableError, match="not on both sides: nonsense"):
        compare_facts(nano, ours, only=["nonsense"])


def test_results_without_anything_in_common_are_refused() -> None:
    bounds = compute_bounds(random_requests(random.Random(3), 30), tokens_per_block=4, capacity_tokens=200)
    stats = facts_of({**STATS, "kvCacheStats": {**STATS["kvCacheStats"], "tokensPerBlock": 4}}, "stats")
    with pytest.raises(NotComparableError, match="nothing is on both sides: bounds has requests, prompt_tokens"):
        compare_facts(facts_of(bounds.to_json(), "bounds"), stats)


def test_kv_cache_stats_in_all_their_wrappings(tmp_path: Path) -> None:
    older = {"kvCacheStats": {**STATS["kvCacheStats"], "reusedBlocks": 0, "missedBlocks": 10, "cacheHitRate": 0.0}}
    contents = [json.dumps(STATS), json.dumps(STATS["kvCacheStats"]), json.dumps([older, STATS, {"iter": 3}])]
    contents.append(json.dumps(older) + "\n" + json.dumps(STATS) + "\n")
    for content in contents:
        path = tmp_path / "stats.json"
        path.write_text(content)
        facts = load_facts(path)
        assert facts.settings == {"tokens_per_block": 32}
        assert (facts.facts["reused"].value, facts.facts["missed"].value, facts.facts["alloc_total"].value) == (
            30,
            50,
            60,
        )
        assert facts.facts["block_hit_rate"].value == 0.375


def test_kv_cache_stats_beside_a_replay() -> None:
    result = replay_json()
    stats = {
        "tokensPerBlock": 4,
        "allocTotalBlocks": result["alloc_total"],
        "reusedBlocks": result["reused"],
        "missedBlocks": result["missed"],
        "cacheHitRate": round(result["reused"] / (result["reused"] + result["missed"]), 6),
    }
    comparison = compare_facts(facts_of(result, "replay"), facts_of(stats, "server"))
    assert comparison.agrees
    assert [line.name for line in comparison.lines] == ["reused", "missed", "alloc_total", "block_hit_rate"]
    assert "capacity_tokens" in comparison.unchecked_settings


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "not JSON"),
        ("[]", "neither a result of trtkv"),
        ('{"a": 1}', "neither a result of trtkv"),
        ('{"kvCacheStats": {"reusedBlocks": 1, "missedBlocks": 1}}', "field 'tokensPerBlock' is missing"),
        ('{"reusedBlocks": 1, "missedBlocks": "x", "tokensPerBlock": 4}', "invalid literal"),
        ('{"reusedBlocks": 1, "missedBlocks": 1, "tokensPerBlock": 4, "cacheHitRate": 0.9}', "cacheHitRate 0.9 is not"),
        ('{"prepopulated_tokens": 1}', "field 'reused' is missing"),
    ],
)
def test_files_that_are_no_results(tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(InvalidInputError, match=text):
        load_facts(path)
    with pytest.raises(InvalidInputError, match="cannot read"):
        load_facts(tmp_path / "nothing.json")


def test_recorded_runs_have_ids_that_differ_and_rows_that_add_up() -> None:
    runs = load_runs()
    assert len(runs) == 272 + 144
    for name, run in runs.items():
        assert name == run_id(run)
        assert 0 < run["reused"] < run["reused"] + run["missed"]
        assert 0 <= run["prepopulated_tokens"] <= run["prompt_tokens"]
    assert runs["tensorrt-llm/sharegpt-llama/block32/60000+0/live1"]["prepopulated_tokens"] == 6746
    assert sum("/window" in name for name in runs) == 144


def test_result_meets_the_recorded_run_of_its_settings(tmp_path: Path) -> None:
    run = load_runs()["tensorrt-llm/sharegpt-llama/block32/60000+0/live1"]
    result = facts_of({**run, "trace": "sharegpt-llama-3.1-8b-300-sps10.jsonl", "trace_requests": 300}, "mine")
    (comparison,) = compare_with(result, "bundled")
    assert comparison.reference == "tensorrt-llm/sharegpt-llama/block32/60000+0/live1"
    assert comparison.agrees
    assert "C++" in comparison.source
    other = "tensorrt-llm/sharegpt-llama/block16/60000+0/live1"
    with pytest.raises(NotComparableError, match="tokens_per_block 32 against 16"):
        compare_with(result, other)
    assert not compare_with(result, other, ignore_settings=True)[0].agrees
    with pytest.raises(UnknownIdError, match="similar: tensorrt-llm/sharegpt-llama"):
        compare_with(result, "tensorrt-llm/sharegpt-llama/block33/60000+0/live1")
    saved = tmp_path / "other.json"
    saved.write_text(json.dumps({**run, "reused": run["reused"] + 1}))
    (comparison,) = compare_with(result, str(saved), only=["reused", "missed"])
    assert [line.verdict for line in comparison.lines] == ["differs", "equal"]


def test_runs_of_the_other_system_are_no_reference() -> None:
    result = facts_of({**nano_json(), "trace": "sharegpt-llama-3.1-8b-300-sps10.jsonl", "trace_requests": 300}, "nano")
    result.settings.update(tokens_per_block=32, capacity_tokens=60_000, partial_reuse=True)
    with pytest.raises(NotComparableError, match="no bundled reference fits nano with trace sharegpt-llama"):
        compare_with(result, "bundled")


def test_names_of_public_traces_depend_on_how_much_was_read() -> None:
    assert trace_name("conversation_trace.jsonl", 12_031) == "conversation"
    assert trace_name("conversation_trace.jsonl.gz", 2_000) == "conversation-2000"
    assert trace_name("conversation_trace.jsonl", 5) == "conversation_trace.jsonl"


def test_numbers_stand_where_their_definition_stands() -> None:
    number = find_number("sharegpt-llama/infinite-tokens/tokens-per-block=16")
    names = [place.name for place in places_of(number)]
    assert names == ["token_hit_rate", "infinite_token_hit_rate"]
    requests = random_requests(random.Random(3), 30)
    result = facts_of(compute_bounds(requests, tokens_per_block=16).to_json(), "bounds")
    facts = number_facts(number, result)
    assert facts.facts["infinite_token_hit_rate"].numerator == 19_520
    partial = facts_of(compute_bounds(requests, tokens_per_block=16, partial_reuse=True).to_json(), "partial")
    with pytest.raises(NotComparableError, match=r"is token_hit_rate \(.* full blocks of 16"):
        number_facts(number, partial)
    with pytest.raises(NotComparableError, match="found again by trtkv reference check only"):
        number_facts(find_number("mooncake-conversation/sequential-A/capacity=300"), result)


def test_trace_info_meets_the_numbers_of_its_trace(shared_dir: Path) -> None:
    from trtkv.traces.trace_reader import read_trace

    trace = read_trace(shared_dir / "traces" / "mooncake" / "synthetic_trace.jsonl", block_size=512)
    result = facts_of(describe_trace(trace).to_json(), "info.json")
    comparisons = compare_with(result, "bundled")
    assert {comparison.reference for comparison in comparisons} == {
        "mooncake-synthetic/infinite-blocks",
        "mooncake-synthetic/infinite-capped-blocks",
        "mooncake-synthetic/infinite-tokens-capped",
        "mooncake-synthetic/mean-of-ratios",
    }
    assert all(comparison.agrees for comparison in comparisons)


def test_unlimited_replays_meet_the_numbers_of_their_trace(shared_dir: Path) -> None:
    from trtkv.traces.trace_reader import read_trace

    trace = read_trace(shared_dir / "traces" / "sharegpt" / "sharegpt-llama-3.1-8b-300-sps10.jsonl")
    report = run_nano(trace.requests, tokens_per_block=16, capacity_tokens=None, live=1)
    result = facts_of({**report, "trace": trace.name, "trace_requests": 300}, "nano.json")
    found = {comparison.reference: comparison.agrees for comparison in compare_with(result, "bundled")}
    assert found == {
        "sharegpt-llama/llmservingsim": True,
        "sharegpt-llama/infinite-tokens/tokens-per-block=16": True,
    }


def test_report_shows_both_sides_and_what_was_not_checked() -> None:
    result, reference = replay_json(), replay_json()
    del reference["live"]
    reference["reused"] += 1
    comparison = compare_facts(facts_of(result, "mine.json"), facts_of(reference, "theirs.json"), source="a friend")
    table = shown(comparison, width=140)
    for text in ("mine.json beside theirs.json", "a friend", "differs", "-1", "not checked: live."):
        assert text in table
    both = Comparisons([comparison, comparison])
    assert [entry["agrees"] for entry in json.loads(json_text(both.to_json()))] == [False, False]
    assert not both.agrees


def test_command_exits_with_0_1_or_refuses(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(compare_command)
    for name, change in (("a", 0), ("b", 0), ("c", 1)):
        result = replay_json()
        result["reused"] += change
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    a, b, c = (str(tmp_path / f"{name}.json") for name in "abc")
    assert CliRunner().invoke(app, [a, b]).exit_code == 0
    assert CliRunner().invoke(app, [a, c]).exit_code == 1
    assert CliRunner().invoke(app, [a, c, "--tolerance", "0.1"]).exit_code == 0
    assert CliRunner().invoke(app, [a, c, "--only", "missed"]).exit_code == 0
    refused = CliRunner().invoke(app, [a])
    assert isinstance(refused.exception, NotComparableError)
    shown = CliRunner().invoke(app, [a, c, "--json", "-"])
    assert json.loads(shown.stdout)[0]["agrees"] is False
    CliRunner().invoke(app, [a, c, "--json", str(tmp_path / "out.json")])
    assert json.loads((tmp_path / "out.json").read_text())[0]["reference"] == "c.json"


def test_every_number_names_trace_source_and_definition() -> None:
    numbers = load_numbers()
    assert len({number.id for number in numbers}) == len(numbers)
    traces = load_traces()
    for number in numbers:
        assert number.what
        assert number.source
        assert number.mark in ("computed", "primary source", "secondary source")
        assert (number.numerator is None) != (number.rate is None)
        assert number.trace in traces or not number.method
        if number.numerator is None:
            assert number.tolerance > 0 or not number.method


def test_results_of_different_protocols_are_not_compared(tmp_path: Path) -> None:
    trace = tmp_path / "two_turns.jsonl"
    turns = [([1] * 40, [7] * 8), ([1] * 40 + [7] * 8 + [2] * 20, [8] * 4)]
    rows = [
        {
            "session_id": "a",
            "input_toks": len(prompt),
            "output_toks": len(output),
            "input_tok_ids": prompt,
            "output_tok_ids": output,
            "arrival_time_ns": at,
        }
        for at, (prompt, output) in enumerate(turns)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    new = facts_of(replay_trace(read_trace(trace), ReplayConfig())[0].to_json(), "new")
    old_trace = read_trace(trace, **OLD_PROTOCOL.options)
    old = facts_of(replay_trace(old_trace, ReplayConfig())[0].to_json(), "old")
    assert new.settings["protocol"] == "sessions trace, outputs trace"
    with pytest.raises(NotComparableError, match="protocol sessions trace, outputs trace against sessions ignore"):
        compare_facts(new, old)
    assert "Protocol" not in shown(Comparisons([compare_facts(new, old, ignore_settings=True)]))
    assert "Protocol of both: sessions trace, outputs trace." in shown(Comparisons([compare_facts(new, new)]))


@pytest.mark.parametrize(
    ("fields", "protocol"),
    [
        ({}, "sessions ignore, outputs synthetic"),
        ({"sessions": "trace", "outputs": "trace"}, "sessions ignore, outputs synthetic"),
        (
            {"sessions": "trace", "requests_with_predecessor": 3, "outputs": "trace", "outputs_known": 0},
            "sessions trace, outputs synthetic",
        ),
        (
            {"sessions": "infer", "requests_with_predecessor": 3, "inferred_predecessors": 0},
            "sessions trace, outputs synthetic",
        ),
        (
            {"sessions": "infer", "requests_with_predecessor": 3, "inferred_predecessors": 1},
            "sessions infer, outputs synthetic",
        ),
        ({"sessions": "ignore", "outputs": "trace", "outputs_known": 2}, "sessions ignore, outputs trace"),
        ({"sessions": "trace", "with_predecessor": 13, "outputs": "synthetic"}, "sessions trace, outputs synthetic"),
    ],
)
def test_protocol_is_what_changed_the_run(fields: dict[str, Any], protocol: str) -> None:
    assert protocol_words(fields) == protocol
