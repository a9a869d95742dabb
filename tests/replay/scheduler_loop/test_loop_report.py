"""What a run of the scheduler loop reports."""

from __future__ import annotations

import json

from tests.replay.scheduler_loop.loop_runs import make_config, run_loop
from tests.replay.trace_builders import token_request
from tests.shown import shown
from trtkv.replay.scheduler_loop.loop_result import REQUEST_COLUMNS
from trtkv.replay.utilisation import UtilisationSample
from trtkv.tables.json_text import json_text
from trtkv.traces.sessions.protocol import SessionFacts

REQUESTS = [
    token_request(0, [1] * 7, 6),
    token_request(1, [2] * 7, 6),
    token_request(2, [1, 1, 1, 1, 9], 1),
    token_request(3, range(100, 140), 1),
]


def make_result():
    """One pause, one hit, one refusal."""
    return run_loop(REQUESTS, make_config("max_utilization", num_blocks=5, max_num_tokens=64))


def read_json(result):
    return json.loads(json_text(result.to_json()))


def rows_of(table):
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def test_json_is_equal_for_equal_runs_and_its_keys_have_an_order():
    assert json_text(make_result().to_json()) == json_text(make_result().to_json())
    assert [*read_json(make_result())] == [
        "trace",
        "format",
        "block_size",
        "trace_requests",
        *SessionFacts().to_json(),
        "malformed_rows",
        "reuse",
        "settings",
        "counts",
        "first_admissions",
        "recompute_admissions",
        "rates",
        "latencies",
        "refused_requests",
        "utilisation_interval_steps",
        "utilisation",
        "per_request",
    ]


def test_every_rate_says_what_it_is_and_is_its_numerator_over_its_denominator():
    for rate in read_json(make_result())["rates"]:
        assert [*rate] == ["name", "definition", "numerator", "denominator", "value"]
        assert " / " in rate["definition"]
        assert rate["value"] == rate["numerator"] / rate["denominator"]


def test_times_are_those_of_the_requests():
    report = read_json(make_result())
    requests = rows_of(report["per_request"])
    for latency in report["latencies"]:
        assert latency["count"] == 3
        assert latency["p50"] <= latency["p99"] <= latency["max"]
    by_name = {latency["name"]: latency for latency in report["latencies"]}
    assert by_name["queueing_seconds"]["max"] == max(request["queueing_seconds"] for request in requests)
    assert by_name["total_seconds"]["max"] == max(
        request["finished_seconds"] - request["arrival_seconds"] for request in requests
    )


def test_every_request_has_a_row_and_the_rows_add_up_to_the_counts():
    report = read_json(make_result())
    requests = rows_of(report["per_request"])
    assert list(requests[0]) == list(REQUEST_COLUMNS)
    assert [request["id"] for request in requests] == [0, 1, 2]
    counts = report["counts"]
    for column, count in (
        ("pauses", counts["pauses"]),
        ("found_tokens", counts["prefill_tokens_saved"]),
        ("computed_tokens", counts["computed_prompt_tokens"]),
        ("recompute_found_tokens", report["recompute_admissions"]["found_tokens"]),
        ("output_tokens", counts["generated_tokens"]),
    ):
        assert sum(request[column] for request in requests) == count, column
    assert counts["pauses"] == 1


def test_refused_requests_are_listed_with_the_reason():
    result = make_result()
    report = read_json(result)
    assert [(entry["request_id"], entry["prompt_tokens"]) for entry in report["refused_requests"]] == [(3, 40)]
    assert "the whole pool has 5" in report["refused_requests"][0]["reason"]
    assert (report["counts"]["finished_requests"], report["counts"]["refused_requests"]) == (3, 1)
    assert result.notes()[0].startswith("1 requests can never run and were refused")
    assert "the whole pool has 5" in result.notes()[1]


def test_utilisation_over_time_is_that_of_the_steps():
    result = run_loop([token_request(0, range(10), 3)], make_config(num_blocks=12))
    report = read_json(result)
    samples = rows_of(report["utilisation"])
    assert [sample["step"] for sample in samples] == [0, 1, 2]
    assert [sample["used_blocks"] for sample in samples] == [3, 3, 3]
    assert [sample["start_seconds"] for sample in samples] == [0, 1100 / 1e9, (1100 + 1016) / 1e9]
    assert [(s["context_requests"], s["generation_requests"], s["tokens"]) for s in samples] == [
        (1, 0, 10),
        (0, 1, 1),
        (0, 1, 1),
    ]
    rates = {rate["name"]: rate["value"] for rate in report["rates"]}
    assert abs(rates["block_utilisation"] - 3 / 12) < 1e-12
    assert len(report["utilisation"]["columns"]) == len(UtilisationSample._fields)


def test_steps_saved_are_full_steps_of_the_token_limit():
    # 33 tokens need 3 steps of 16; 32 of them are found by the second request, whose last one needs 1.
    requests = [token_request(0, range(33), 1), token_request(1, range(33), 1)]
    report = read_json(run_loop(requests, make_config(max_num_tokens=16, chunk_unit=4)))
    assert (report["counts"]["prefill_steps_needed"], report["counts"]["prefill_steps_saved"]) == (6, 2)
    assert report["counts"]["prefill_tokens_saved"] == 32


def test_tables_show_counts_rates_times_and_definitions():
    result = make_result()
    text = shown(result, width=120)
    for rate in result.rates:
        assert f"{rate.name}: " in text
    for words in ("max utilization", "recompute_token_hit_rate", "queueing_seconds", "p99", "requests refused"):
        assert words in text


def test_a_run_in_which_everything_is_refused_can_be_shown():
    result = run_loop([token_request(0, range(40), 1)], make_config(num_blocks=5))
    assert "requests refused" in shown(result)
    assert {rate["value"] for rate in read_json(result)["rates"]} == {None}
