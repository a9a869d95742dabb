"""Rules of retention: what a file means, which tokens of which requests they name, and what a replay makes of them."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trtkv.cli import app
from trtkv.errors import ConfigurationError, InvalidInputError
from trtkv.eviction.eviction_choice import EvictionChoice
from trtkv.replay.closed_loop.run import replay_trace
from trtkv.replay.config import ReplayConfig
from trtkv.replay.retention_rules import RetentionRule, RetentionRules, read_retention_rules
from trtkv.traces.trace import KeyConstraints, RequestTrace, TokenIds, TraceRequest


def make_request(index: int, length: int, timestamp: float = 0.0, **fields: object) -> TraceRequest:
    tokens = array("i", range(1000 * index, 1000 * index + length))
    return TraceRequest(index, timestamp, length, 1, TokenIds(tokens), **fields)  # type: ignore[arg-type]


def make_trace(*requests: TraceRequest) -> RequestTrace:
    return RequestTrace("t", "tokens", None, list(requests), seconds_per_unit=1.0)


def retention_of(request: TraceRequest) -> tuple[list[tuple[int, int | None, int]], int]:
    """Ranges with their priorities, and the priority of generated tokens."""
    config = request.retention
    assert config is not None
    ranges = [(entry.token_start, entry.token_end, entry.priority) for entry in config.token_range_retention_configs]
    return ranges, config.decode_retention_priority


def test_the_first_rule_that_applies_counts_for_each_token() -> None:
    rules = RetentionRules(
        (
            RetentionRule(priority=80, tokens=(0, 16)),
            RetentionRule(priority=60, tokens=(8, 40)),
            RetentionRule(priority=10, generated=True),
            RetentionRule(priority=20),
        )
    )
    (request,) = rules.apply(make_trace(make_request(0, 100))).requests
    assert retention_of(request) == ([(0, 16, 80), (16, 40, 60), (40, 100, 20)], 10)
    (short,) = rules.apply(make_trace(make_request(0, 10))).requests
    assert retention_of(short) == ([(0, 10, 80)], 10)


def test_gaps_before_a_range_are_filled_by_later_rules() -> None:
    rules = RetentionRules((RetentionRule(priority=80, tokens=(10, 20)), RetentionRule(priority=5, tokens=(0, None))))
    (request,) = rules.apply(make_trace(make_request(0, 30))).requests
    assert retention_of(request) == ([(0, 10, 5), (10, 20, 80), (20, 30, 5)], 35)


def test_conditions_name_requests() -> None:
    requests = (
        make_request(0, 10, 0.0, session="a"),
        make_request(1, 50, 100.0, session="a", turn=1, predecessors=(0,)),
        make_request(2, 10, 100.0, constraints=KeyConstraints(lora_task_id=7)),
        make_request(3, 10, 200.0, session="b"),
    )

    def named(**conditions: object) -> list[int]:
        rules = RetentionRules((RetentionRule(priority=1, **conditions),))  # type: ignore[arg-type]
        return [request.index for request in rules.apply(make_trace(*requests)).requests if request.retention]

    assert named() == [0, 1, 2, 3]
    assert named(session="first_turn") == [0, 3]
    assert named(session="later_turn") == [1]
    assert named(session_age_over_ms=99_999) == [1]
    assert named(session_age_over_ms=100_000) == []
    assert named(prompt_tokens_over=10) == [1]
    assert named(adapter=7) == [2]
    assert named(session="first_turn", prompt_tokens_over=10) == []


def test_a_file_has_the_same_rules(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(
        """
        [[rule]]
        tokens = "0..1024"
        priority = 80

        [[rule]]
        session = "later_turn"
        session_age_over = "30m"
        prompt_tokens_over = 5
        adapter = 3
        priority = 10
        duration = "1.5s"

        [[rule]]
        tokens = "64.."
        priority = 1

        [[rule]]
        generated = true
        priority = 0
        """
    )
    assert read_retention_rules(path) == RetentionRules(
        (
            RetentionRule(priority=80, tokens=(0, 1024)),
            RetentionRule(
                priority=10,
                duration_ms=1500,
                session="later_turn",
                session_age_over_ms=1_800_000,
                prompt_tokens_over=5,
                adapter=3,
            ),
            RetentionRule(priority=1, tokens=(64, None)),
            RetentionRule(priority=0, generated=True),
        ),
        "rules.toml",
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = [", "is not TOML"),
        ("", "there is no rule"),
        ("rule = []", "there is no rule"),
        ("[[rules]]\npriority = 1", "'rules' is not known"),
        ("rule = [1]", "rule 1: a rule is 1"),
        ("[[rule]]\npriority = 1\n[[rule]]\n", "rule 2: priority is missing"),
        ("[[rule]]\npriority = 101", "rule 1: priority is 101"),
        ("[[rule]]\npriority = true", "rule 1: priority is True"),
        ("[[rule]]\npriority = 1\nclass = 'api'", "'class' is not known; the fields are priority, duration"),
        ("[[rule]]\npriority = 1\nduration = 5", "duration is 5; write a number and a unit"),
        ("[[rule]]\npriority = 1\nduration = '5 weeks'", "duration is '5 weeks'"),
        ("[[rule]]\npriority = 1\ntokens = '9..9'", "tokens is '9..9'"),
        ("[[rule]]\npriority = 1\ntokens = 9", "tokens is 9"),
        ("[[rule]]\npriority = 1\nsession = 'old'", "session is 'old'; give first_turn or later_turn"),
        ("[[rule]]\npriority = 1\ngenerated = 1", "generated is 1"),
        ("[[rule]]\npriority = 1\ngenerated = true\ntokens = '0..9'", "leave one of them out"),
    ],
)
def test_wrong_files_are_refused_with_rule_and_value(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(InvalidInputError) as caught:
        read_retention_rules(path)
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="none\\.toml cannot be read"):
        read_retention_rules(tmp_path / "none.toml")


def scan_trace() -> RequestTrace:
    """A long prompt that comes back after others that never do."""
    hot = make_request(0, 40)
    others = [make_request(index, 32) for index in range(1, 6)]
    return make_trace(hot, *others, replace(hot, index=6))


def test_rules_keep_what_comes_back() -> None:
    loop = {"tokens_per_block": 4, "capacity_tokens": 100}
    plain, _ = replay_trace(scan_trace(), ReplayConfig(**loop))  # type: ignore[arg-type]
    rules = RetentionRules((RetentionRule(priority=90, tokens=(0, 16), prompt_tokens_over=32),))
    kept, _ = replay_trace(scan_trace(), ReplayConfig(**loop, retention=rules))  # type: ignore[arg-type]
    assert (plain.counts.prepopulated_tokens, kept.counts.prepopulated_tokens) == (0, 16)
    assert kept.to_json()["retention"] == "rules"


def test_rules_without_time_or_priorities_are_refused() -> None:
    timed = RetentionRules((RetentionRule(priority=90, duration_ms=5),))
    with pytest.raises(ConfigurationError, match="time, which stands still in the closed loop"):
        replay_trace(scan_trace(), ReplayConfig(tokens_per_block=4, retention=timed))
    with pytest.raises(ConfigurationError, match="eviction arc does not look at priorities"):
        ReplayConfig(retention=timed, eviction=EvictionChoice("arc"))


@pytest.mark.parametrize("options", [(), ("--scheduler", "max-utilization")])
def test_the_command_takes_a_file(tmp_path: Path, options: tuple[str, ...]) -> None:
    trace, rules = tmp_path / "t.jsonl", tmp_path / "rules.toml"
    trace.write_text('{"timestamp": 0, "input_length": 8, "output_length": 2, "hash_ids": [1, 2]}\n' * 3)
    rules.write_text('[[rule]]\npriority = 90\nduration = "60s"\n' if options else "[[rule]]\npriority = 90\n")
    arguments = ["replay", str(trace), "--block-size", "4", "--retention", str(rules), *options]
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 0, outcome.output
    refused = CliRunner().invoke(app, [*arguments, "--system", "nano"])
    assert refused.exit_code != 0
