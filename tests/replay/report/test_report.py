from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.replay.helpers import DATA
from tests.shown import shown
from trtkv.commands.progress import progress_bar
from trtkv.records.rate import Rate
from trtkv.replay.closed_loop.closed_loop import ReplayCounts
from trtkv.replay.closed_loop.result import ReplayResult, WindowResult
from trtkv.replay.config import ReplayConfig
from trtkv.tables.json_text import json_text
from trtkv.traces.trace import RequestTrace, RowFault
from trtkv.traces.trace_reader import read_trace

REFERENCE_COLUMNS = [
    "trace",
    "tokens_per_block",
    "capacity_tokens",
    "host_tokens",
    "live",
    "partial_reuse",
    "requests",
    "prompt_tokens",
    "prompt_blocks",
    "decode_calls",
    "alloc_total",
    "reused",
    "missed",
    "prepopulated_tokens",
]


def make_result(**changes: object) -> ReplayResult:
    counts = ReplayCounts(
        requests=3,
        skipped_requests=1,
        prompt_tokens=1000,
        prompt_blocks=20,
        decode_calls=30,
        prepopulated_tokens=250,
        zero_hit_requests=1,
        token_hit_rates=[0.0, 0.5, 0.1],
    )
    windows = (
        WindowResult(128, False, 50, 10, 15, 6, 5, 1, 14, 2, 3, 1),
        WindowResult(4096, True, 50, 10, 15, 8, 8, 0, 12, 0, 0, 0),
    )
    settings = {
        "trace": RequestTrace(
            "a.jsonl", "mooncake", 512, read_trace(DATA / "rag_100.jsonl", block_size=64, limit=4).requests
        ),
        "config": ReplayConfig(tokens_per_block=64, host_tokens=640, windows=(128, None)),
        "counts": counts,
        "max_sequence_length": 4096,
        "alloc_total": 30,
        "reused": 14,
        "missed": 26,
        "windows": windows,
    }
    return ReplayResult(**{**settings, **changes})


def printed(result: ReplayResult) -> str:
    return shown(result)


def test_columns_of_the_reference_runs_come_first():
    assert list(make_result().to_json())[: len(REFERENCE_COLUMNS)] == REFERENCE_COLUMNS


def test_json_is_this_text_byte_for_byte():
    assert json_text(make_result().to_json()) == (DATA / "report.json").read_text(encoding="utf-8")


def test_an_unlimited_capacity_is_written_as_inf():
    assert make_result().to_json()["capacity_tokens"] == "inf"
    config = ReplayConfig(tokens_per_block=64, capacity_tokens=6400)
    assert make_result(config=config).to_json()["capacity_tokens"] == 6400


def test_every_rate_has_definition_numerator_and_denominator():
    report = make_result().to_json()
    rates = report["rates"] + [rate for window in report["windows"] for rate in window["rates"]]
    assert len(rates) == 6
    for rate in rates:
        assert list(rate) == ["name", "definition", "numerator", "denominator", "value"]
        assert " / " in rate["definition"]
        assert rate["value"] == rate["numerator"] / rate["denominator"]


def test_a_rate_of_nothing_has_no_value():
    assert Rate("r", "a / b", 0, 0).value is None
    assert '"value": null' in json_text(make_result(reused=0, missed=0).to_json())
    assert "block_hit_rate" in printed(make_result(reused=0, missed=0))


def test_pooled_and_mean_rates_go_by_different_names():
    rates = {rate.name: rate.value for rate in make_result().rates}
    assert rates["token_hit_rate"] == 250 / 1000
    assert rates["mean_request_hit_rate"] == pytest.approx(0.2)


def test_the_table_shows_every_rate_with_both_numbers():
    text = printed(make_result())
    for rate in make_result().rates:
        line = next(line for line in text.splitlines() if rate.name in line)
        assert f"{rate.denominator:,}" in line
        assert f"{rate.name}: {rate.definition}" in text
    assert "35.000 %" in text
    assert "│ 128 " in text
    assert "│ full " in text
    assert "4,096" not in text


def test_a_result_is_short_in_a_debugger():
    assert repr(make_result()) == "<ReplayResult: Replay of a.jsonl, block_hit_rate 35.000 %, token_hit_rate 25.000 %>"


def test_markup_in_names_and_reasons_is_printed_as_it_is():
    trace = RequestTrace("[bold]x", "tokens", None, [], [RowFault(3, "[red]a[/red] is '[/]'")])
    text = printed(make_result(trace=trace))
    assert "Replay of [bold]x" in text
    assert "[bold]x:3: [red]a[/red] is '[/]'" in text


def test_notes_tell_what_was_left_out():
    trace = RequestTrace("t", "tokens", None, [], [RowFault(line, "odd") for line in range(1, 9)])
    config = ReplayConfig(tokens_per_block=64, host_tokens=63)
    text = "\n".join(make_result(trace=trace, config=config).notes())
    assert "1 requests need more blocks" in text
    assert "8 malformed rows were skipped" in text
    assert "t:5: odd" in text
    assert "t:6: odd" not in text
    assert "and 3 more" in text
    assert "holds no block" in text


def test_no_notes_when_nothing_was_left_out():
    result = replace(make_result(counts=ReplayCounts(requests=1)), config=ReplayConfig())
    assert result.notes() == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"host_tokens": 64}, "a host tier"),
        ({"windows": (None, 64)}, "sliding windows"),
        ({"partial_reuse": False, "copy_on_partial_reuse": False}, "partial reuse off, copying off"),
    ],
)
def test_a_note_says_where_the_original_may_count_otherwise(options, reason):
    result = replace(make_result(counts=ReplayCounts(requests=1)), config=ReplayConfig(**options))
    assert result.notes() == [
        f"With {reason}, these counts may differ from TensorRT-LLM's own; --compatibility gives those."
    ]
    assert replace(result, config=ReplayConfig(**options, compatibility=True)).notes() == []


def test_no_progress_bar_without_a_terminal(capsys):
    with progress_bar(10) as progress:
        assert progress is None
    assert capsys.readouterr() == ("", "")


def test_the_report_reads_back():
    assert json.loads(json_text(make_result().to_json()))["malformed_rows"] == 0
