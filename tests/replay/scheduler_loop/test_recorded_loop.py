"""A recorded run of the scheduler loop gives the same result as a plain one, and verifies."""

from __future__ import annotations

import io
import json
import random

import pytest

from tests.replay.scheduler_loop.loop_runs import POLICIES, make_config, run_loop
from tests.replay.trace_builders import random_requests, token_request
from trtkv.replay.scheduler_loop.arrival_queue import ArrivalMode
from trtkv.verify.recorded_loop import RecordingBackend
from trtkv.verify.runner import verify_program

PAUSING = [token_request(0, [1] * 7, 6), token_request(1, [2] * 7, 6), token_request(2, [1, 1, 1, 1, 9], 1)]


def record(requests, config):
    stream = io.StringIO()
    result = run_loop(requests, config, backend=RecordingBackend(config, requests, stream))
    return result, stream.getvalue()


def verify(text, tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    return verify_program(path)


def ops_of(text):
    return [json.loads(line) for line in text.splitlines()[1:]]


@pytest.mark.parametrize("chunk_unit", [None, 4])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_recorded_run_is_the_plain_run_and_verifies(policy, chunk_unit, tmp_path):
    requests = [*PAUSING, token_request(3, [2] * 7, 2), token_request(4, range(40), 1)]
    config = make_config(policy, num_blocks=5, chunk_unit=chunk_unit, max_num_tokens=20)
    result, text = record(requests, config)
    assert result.to_json() == run_loop(requests, config).to_json()
    assert (result.counts.pauses > 0) == (policy.value == "max_utilization")
    verified = verify(text, tmp_path)
    assert (verified.num_mismatches, verified.num_unsupported) == (0, 0)
    assert verified.num_ops == len(ops_of(text)) > 50


@pytest.mark.parametrize("seed", range(12))
def test_random_runs_verify(seed, tmp_path):
    rng = random.Random(seed)
    requests = random_requests(rng, 8, max_length=30, max_output=12)
    config = make_config(
        POLICIES[seed % 3],
        num_blocks=rng.choice([6, 10, 16]),
        chunk_unit=rng.choice([None, 4, 8]),
        max_num_tokens=rng.choice([32, 64]),
        max_batch_size=rng.choice([2, 8]),
        arrivals=rng.choice(list(ArrivalMode)),
        host_tokens=rng.choice([0, 16]),
        partial_reuse=rng.random() < 0.7,
        windows=rng.choice([(None,), (None, 8)]),
    )
    result, text = record(requests, config)
    assert result.to_json() == run_loop(requests, config).to_json()
    verified = verify(text, tmp_path)
    assert (verified.num_mismatches, verified.num_unsupported) == (0, 0), verified.first_mismatch


def test_decisions_pauses_and_time_are_in_the_program():
    result, text = record(PAUSING, make_config("max_utilization", num_blocks=5))
    ops = ops_of(text)
    names = [row["op"] for row in ops]
    assert names[:3] == ["create", "create_capacity_scheduler", "create_micro_batch_scheduler"]
    assert names.count("capacity_schedule") == names.count("micro_batch_schedule") == result.counts.steps
    assert names.count("pause") == result.counts.pauses == 1
    assert names.count("new_request") == names.count("drop_request") == 3
    paused = [row["ret"]["paused"] for row in ops if row["op"] == "capacity_schedule"]
    assert [ids for ids in paused if ids] == [[1]]
    before_pause = ops[names.index("pause") - 1]
    assert before_pause["op"] == "remove_sequence"
    assert before_pause["args"] == {"id": 1, "with_request": True, "pin": False}


def test_the_clock_moves_by_whole_milliseconds_and_loses_nothing():
    requests = [token_request(0, [1], 1), token_request(1, [2], 1, timestamp=2_500_000)]
    config = make_config(arrivals=ArrivalMode.TRACE)
    _, text = record([*requests, token_request(2, [3], 1, timestamp=3_999_990)], config)
    assert [row["args"]["ms"] for row in ops_of(text) if row["op"] == "advance_clock_ms"] == [2, 1, 1]


def test_a_program_says_that_it_is_not_in_compatibility_mode_or_has_the_plain_format():
    fields = ("create", "create_capacity_scheduler", "create_micro_batch_scheduler")
    for compatibility in (False, True):
        _, text = record([token_request(0, [1] * 6, 2)], make_config(compatibility=compatibility))
        assert json.loads(text.splitlines()[0])["config"].get("compatibility", True) is compatibility
        for row in ops_of(text):
            if row["op"] in fields:
                assert row["args"].get("compatibility", True) is compatibility
            else:
                assert "compatibility" not in row["args"]


@pytest.mark.parametrize(
    ("op", "change"),
    [
        ("capacity_schedule", lambda row: row["ret"]["scheduled"].reverse()),
        ("micro_batch_schedule", lambda row: row["args"].update(max_num_tokens=5)),
        ("add_sequence_batch", lambda row: row["obs"]["free"].update({next(iter(row["obs"]["free"])): [0, 0]})),
        ("create_capacity_scheduler", lambda row: row["args"].update(policy="static_batch")),
    ],
)
def test_a_changed_program_does_not_verify(op, change, tmp_path):
    _, text = record(PAUSING, make_config("max_utilization", num_blocks=5))
    header, *rows = map(json.loads, text.splitlines())
    change(next(row for row in rows if row["op"] == op))
    changed = "".join(json.dumps(row) + "\n" for row in (header, *rows))
    assert verify(changed, tmp_path).num_mismatches > 0


def test_the_mode_of_a_program_decides_what_it_replays_to(tmp_path):
    """Request 1 waits for the prefix of 0, then takes the room of 2; in compatibility mode 2 gives way for nothing."""
    prefix = [*range(8)]
    requests = [
        token_request(0, [*prefix, 8], 20),
        token_request(1, [*prefix, *range(50, 63)], 1),
        token_request(2, [99] * 5, 10),
    ]
    result, text = record(requests, make_config("max_utilization", num_blocks=8))
    assert result.records[2].pauses > 0
    header, *rows = map(json.loads, text.splitlines())
    for row in rows:
        if row["op"] == "create_capacity_scheduler":
            del row["args"]["compatibility"]
    changed = "".join(json.dumps(row) + "\n" for row in (header, *rows))
    assert verify(text, tmp_path).num_mismatches == 0
    mismatch = verify(changed, tmp_path).first_mismatch
    assert mismatch.op == "capacity_schedule"
    assert mismatch.field.startswith("ret.")
