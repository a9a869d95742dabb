"""Reference numbers found again from the public files, and how a deviation shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.replay.trace_builders import token_request
from tests.shown import shown
from trtkv.commands.reference import reference_app
from trtkv.compare.checks import METHODS, Check, Checks, Count, Measurements, check_number, check_numbers, find_traces
from trtkv.compare.reference import ReferenceNumber, find_number, load_numbers
from trtkv.errors import InvalidInputError, UnknownIdError

# Blocks of 2: [1 1][1 1][2], [1 1][1 1][3], [1 1][9 9], [1 1][1 1][2]
TRACE = Measurements(
    [
        token_request(i, tokens)
        for i, tokens in enumerate([[1, 1, 1, 1, 2], [1, 1, 1, 1, 3], [1, 1, 9, 9], [1, 1, 1, 1, 2]])
    ]
)


def number(method: str, *, tolerance: float = 0.0, expected: Any = None, **args: Any) -> ReferenceNumber:
    numerator, denominator = (expected, None) if not isinstance(expected, tuple) else expected
    rate = numerator if isinstance(numerator, float) else None
    return ReferenceNumber(
        "x", "t", "s", "computed", "w", method, args, None if rate else numerator, denominator, rate, tolerance
    )


@pytest.mark.parametrize(
    ("method", "args", "found"),
    [
        ("infinite_tokens", {"tokens_per_block": 2}, (4 + 2 + 4, 19)),
        ("infinite_tokens", {"tokens_per_block": 1}, (4 + 2 + 4, 19)),
        ("infinite_tokens", {"tokens_per_block": 1, "keep_last": False}, (4 + 2 + 5, 19)),
        ("infinite_blocks", {"tokens_per_block": 2}, (2 + 1 + 3, 11)),
        ("infinite_full_of_full", {"tokens_per_block": 2}, (2 + 1 + 2, 8)),
        ("infinite_capped_blocks", {"tokens_per_block": 2}, (2 + 1 + 2, 11)),
        ("distinct_blocks", {"tokens_per_block": 2}, (5, None)),
        ("zero_hit_requests", {}, (1, None)),
        ("fully_seen_requests", {}, (1, None)),
        ("sequential", {"rule": "A", "capacity": 9, "tokens_per_block": 2}, (6, 11)),
        ("sequential", {"rule": "A1", "capacity": 9, "tokens_per_block": 2}, (5, 11)),
        ("sequential", {"rule": "A", "capacity": 9, "tokens_per_block": 2, "limit": 2}, (2, 6)),
        ("access", {"policy": "lru", "capacity": 9, "tokens_per_block": 2}, (6, 11)),
        ("access", {"policy": "lru", "share": 1.0, "tokens_per_block": 2}, (6, 11)),
        ("lru", {"capacity_tokens": 18, "partial": True, "tokens_per_block": 2}, (6, 11)),
        ("lru", {"capacity_tokens": 4, "partial": True, "tokens_per_block": 2}, (2 + 1 + 1, 11)),
    ],
)
def test_methods_on_a_trace_worked_out_by_hand(
    method: str, args: dict[str, Any], found: tuple[int, int | None]
) -> None:
    check = check_number(number(method, expected=found, **args), TRACE)
    assert (check.got.numerator, check.got.denominator) == found
    assert (check.verdict, check.difference) == ("equal", 0)
    wrong = check_number(number(method, expected=(found[0] + 1, found[1]), **args), TRACE)
    assert (wrong.verdict, wrong.difference) == ("differs", -1)


def test_equal_count_of_another_whole_differs() -> None:
    assert check_number(number("infinite_blocks", expected=(6, 12), tokens_per_block=2), TRACE).verdict == "differs"


def test_rates_agree_within_their_tolerance_and_the_difference_is_stated() -> None:
    for expected, tolerance, verdict in (
        (0.54545, 5e-6, "equal"),
        (0.53, 0.02, "within tolerance"),
        (0.5, 0.02, "differs"),
    ):
        check = check_number(
            number("infinite_blocks", expected=expected, tolerance=tolerance, tokens_per_block=2), TRACE
        )
        assert check.verdict == verdict
        assert check.difference == pytest.approx(6 / 11 - expected)


def test_numbers_without_a_method_cannot_be_checked() -> None:
    with pytest.raises(InvalidInputError, match="cannot be found again"):
        check_number(find_number("mooncake-arxiv/lru/capacity=1000"), TRACE)
    with pytest.raises(UnknownIdError, match="similar: mooncake-arxiv/lru/capacity=1000"):
        find_number("mooncake-arxiv/lru/capacity=100")


def test_every_method_of_the_file_exists() -> None:
    assert {entry.method for entry in load_numbers()} - {""} == set(METHODS)


def test_files_are_told_by_name_and_content(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="is not a folder"):
        find_traces(tmp_path / "nothing")
    with pytest.raises(InvalidInputError, match="no public trace of the references lies in"):
        find_traces(tmp_path)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "trace_0504.json").write_text("{}")
    with pytest.raises(InvalidInputError, match="is not the file that the references were counted on"):
        find_traces(tmp_path)


def test_public_numbers_are_found_again(shared_dir: Path) -> None:
    traces = find_traces(shared_dir / "traces")
    quick = (
        "sharegpt",
        "agentic",
        "mooncake-synthetic/infinite",
        "mooncake-synthetic/lru",
        "mooncake-synthetic/fast25",
    )
    checks = list(check_numbers([entry for entry in load_numbers() if entry.id.startswith(quick)], traces))
    assert len(checks) > 40
    assert [check.number.id for check in checks if check.verdict == "differs"] == []
    computed = [check for check in checks if check.number.mark == "computed"]
    assert {check.verdict for check in computed} == {"equal"}


@pytest.mark.slow
def test_all_public_numbers_are_found_again(shared_dir: Path) -> None:
    checks = list(check_numbers(load_numbers(), find_traces(shared_dir / "traces")))
    assert len(checks) > 200
    assert [check.number.id for check in checks if check.verdict == "differs"] == []
    not_equal = {check.number.id.split("/")[1] for check in checks if check.verdict != "equal"}
    assert not_equal == {"access-fifo", "fast25-figure-9", "fast25-table-2"}


def test_commands_list_and_check(tmp_path: Path, shared_dir: Path) -> None:
    app = typer.Typer()
    app.add_typer(reference_app, name="reference")
    run = CliRunner().invoke
    listed = json.loads(run(app, ["reference", "list", "sharegpt", "--json", "-"]).stdout)
    assert {entry["trace"] for entry in listed} == {"sharegpt-llama"}
    runs = run(app, ["reference", "list", "tensorrt-llm/sharegpt", "--runs"]).stdout.split()
    assert len(runs) == 96
    result = run(app, ["reference", "check", str(shared_dir / "traces"), "--prefix", "agentic", "--json", "-"])
    assert result.exit_code == 0
    assert [entry["verdict"] for entry in json.loads(result.stdout)] == ["equal"] * 4
    result = run(app, ["reference", "check", str(shared_dir / "traces"), "--prefix", "agentic-0504"])
    assert "343 / 525" in result.stdout
    assert "1 equal, 0 within tolerance, 0 differs" in result.stdout


def test_command_exits_with_1_when_a_number_is_not_found_again(
    shared_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = [find_number("agentic-0504/infinite-full-blocks")._replace(numerator=344)]
    monkeypatch.setattr("trtkv.compare.reference.load_numbers", lambda: wrong)
    app = typer.Typer()
    app.add_typer(reference_app, name="reference")
    result = CliRunner().invoke(app, ["reference", "check", str(shared_dir / "traces")])
    assert result.exit_code == 1
    assert "1 differs" in result.stdout


def test_tables_show_counts_rates_and_sources() -> None:
    checks = [
        check_number(number("infinite_blocks", expected=(6, 11), tokens_per_block=2), TRACE),
        check_number(number("infinite_blocks", expected=0.5, tolerance=0.02, tokens_per_block=2), TRACE),
    ]
    text = shown(Checks(checks))
    for part in ("6 / 11", "50.000 %", "54.545 %", "+4.545 %", "1 differs"):
        assert part in text


def test_every_name_is_whole_on_a_narrow_terminal() -> None:
    numbers = [entry for entry in load_numbers() if entry.method]
    checks = [Check(entry, Count(entry.numerator or 0, entry.denominator), 0.0, "equal") for entry in numbers]
    lines = [line for line in shown(Checks(checks), width=80).splitlines() if line.startswith("│")]
    assert max(map(len, lines)) <= 80
    names = "".join(line.split("│")[1].strip() for line in lines)
    assert names == "".join(entry.id for entry in numbers)


def test_list_names_ids_values_and_sources() -> None:
    app = typer.Typer()
    app.add_typer(reference_app, name="reference")
    text = CliRunner().invoke(app, ["reference", "list", "sharegpt-llama"]).stdout
    assert "sharegpt-llama/llmservingsim  19,520 / 257,239" in text
    first_words = [line.split()[0] for line in text.splitlines() if not line.startswith(" ")]
    assert first_words[1:-1] == [entry.id for entry in load_numbers() if entry.id.startswith("sharegpt-llama")]
