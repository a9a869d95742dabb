"""``trtkv verify --default``: recorded programs on the default behaviour, and the decisions that explain departures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.verify.rows import BUBBLE, HEADER, write_lines
from trtkv.cli import app
from trtkv.verify import default_run
from trtkv.verify.default_report import DefaultReport
from trtkv.verify.default_run import DefaultResult, verify_default
from trtkv.verify.departure_rules import RULES, TOTALS_DECISION
from trtkv.verify.runner import find_programs

DECISIONS = Path(__file__).parents[2] / "docs" / "decisions"
PROGRAMS_OF_A_GROUP = {"golden": 3, "golden_fresh": 1}


def sample(shared_dir: Path) -> list[Path]:
    """The same few programs of each group, every time."""
    return [
        program
        for folder, count in PROGRAMS_OF_A_GROUP.items()
        for group in sorted(path for path in (shared_dir / folder).iterdir() if path.is_dir())
        for program in find_programs([group])[:count]
    ]


@pytest.fixture(scope="module")
def results(shared_dir: Path) -> list[DefaultResult]:
    return [verify_default(path) for path in sample(shared_dir)]


def test_a_decision_explains_each_departure(results: list[DefaultResult]) -> None:
    report = DefaultReport(results)
    assert report.is_explained, report.notes()
    assert sum(bool(result.departures) for result in results) > len(results) // 2


def test_most_of_the_sample_is_compared(results: list[DefaultResult]) -> None:
    compared, ops = sum(result.num_compared for result in results), sum(result.num_ops for result in results)
    assert compared > ops * 2 // 5
    for result in results:
        assert result.num_compared == result.num_ops or result.departures


@pytest.mark.slow
def test_a_decision_explains_each_departure_of_all_programs(shared_dir: Path) -> None:
    programs = find_programs([shared_dir / folder for folder in PROGRAMS_OF_A_GROUP])
    report = DefaultReport([verify_default(path) for path in programs])
    assert report.is_explained, report.notes()
    found = {departure.decision for result in report.results for departure in result.departures}
    assert found == {rule.decision for rule in RULES} | {TOTALS_DECISION}


def test_each_rule_names_a_page() -> None:
    pages = {path.name[:4] for path in DECISIONS.glob("[0-9]*.md")}
    assert {rule.decision for rule in RULES} | {TOTALS_DECISION} <= pages


# -- programs by hand -------------------------------------------------------------------------------

CONFIG: dict[str, Any] = {
    "tokens_per_block": 4,
    "num_kv_heads_per_layer": [1],
    "blocks_per_window": [[32, 8, 4]],
    "max_attention_window_vec": [32],
    "max_sequence_length": 32,
}


def record(path: Path, *ops: tuple[str, dict[str, Any]], config: dict[str, Any] | None = None) -> Path:
    """A program recorded in compatibility mode, or in the mode that the config names."""
    from trtkv.verify.recorder import TraceRecorder

    with path.open("w", encoding="ascii") as stream:
        recorder = TraceRecorder(stream, "g", CONFIG | (config or {}))
        for op, args in ops:
            recorder.execute(op, args)
    return path


CANCELLED = (
    ("new_request", {"id": 1, "tokens": [1, 2, 3, 4, 5, 6, 7, 8, 9]}),
    ("add_sequence_batch", {"requests": [[1, 9, 1]]}),
    ("remove_sequence", {"id": 1}),
)
"""A request that ends before anything was computed; the recorded behaviour stores its prompt."""


def test_a_departure_is_found_where_it_begins(tmp_path: Path) -> None:
    ops = (*CANCELLED, ("start_scheduling", {}))
    result = verify_default(record(tmp_path / "p.jsonl", *ops, config={"blocks_per_window": [[32, 8, 0]]}))
    (departure,) = result.departures
    assert (departure.mismatch.op, departure.mismatch.op_index, departure.decision) == ("remove_sequence", 4, "0113")
    assert departure.mismatch.field.startswith("inside.self.32.")
    assert (result.num_compared, result.num_ops) == (4, 5)


def test_totals_are_translated_and_the_program_goes_on(tmp_path: Path) -> None:
    ops = (("start_scheduling", {}), ("get_kv_cache_stats", {}), ("observe", {"ids": []}))
    result = verify_default(record(tmp_path / "p.jsonl", *ops))
    (departure,) = result.departures
    mismatch = departure.mismatch
    assert (mismatch.op, mismatch.field, departure.decision) == ("create", "obs.stats[0]", "0108")
    assert (mismatch.expected, mismatch.got) == (12, 8)
    assert result.num_compared == result.num_ops == 4


def test_a_program_of_the_default_behaviour_does_not_depart(tmp_path: Path) -> None:
    result = verify_default(record(tmp_path / "p.jsonl", *CANCELLED, config={"compatibility": False}))
    assert result.departures == ()
    assert result.num_compared == result.num_ops


def test_a_departure_without_a_decision_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = record(tmp_path / "p.jsonl", *CANCELLED, config={"blocks_per_window": [[32, 8, 0]]})
    assert CliRunner().invoke(app, ["verify", "--default", str(path)]).exit_code == 0
    monkeypatch.setattr(default_run, "find_decision", lambda step: None)
    done = CliRunner().invoke(app, ["verify", "--default", str(path), "--json", str(tmp_path / "report.json")])
    assert done.exit_code == 1
    assert "op 4, remove_sequence: inside.self.32" in done.output
    assert "no decision explains this" in done.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert not report["explained"]
    assert report["decisions"] == {"none": {"programs": 1, "first": 1}}
    assert report["departures"][0]["departures"][0]["decision"] is None


def test_recorded_behaviour_that_is_not_reproduced_is_a_failure(tmp_path: Path) -> None:
    write_lines(tmp_path / "p.jsonl", HEADER, {**BUBBLE, "ret": 0})
    result = verify_default(tmp_path / "p.jsonl")
    assert not result.is_explained
    assert result.departures[0].mismatch.field == "ret"


def test_a_crash_of_the_default_behaviour_has_no_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*args: object) -> Exception:
        return ZeroDivisionError("in a rule's op")

    path = record(tmp_path / "p.jsonl", *CANCELLED, config={"blocks_per_window": [[32, 8, 0]]})
    monkeypatch.setattr(default_run, "run_op", crash)
    (departure,) = verify_default(path).departures
    assert departure.decision is None
    assert departure.mismatch.got == "crash: ZeroDivisionError: in a rule's op"
