"""Replaying programs: what counts as equal, as a mismatch and as unsupported."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.shown import shown
from tests.verify.rows import BUBBLE, HEADER, write_lines
from trtkv.errors import InvalidInputError, TraceFormatError
from trtkv.tables.json_text import json_text
from trtkv.verify.default_run import verify_default
from trtkv.verify.op_machine import OpMachine, UnsupportedOpError
from trtkv.verify.recorder import TraceRecorder
from trtkv.verify.report import VerificationReport
from trtkv.verify.runner import find_programs, verify_program, verify_programs

DATA = Path(__file__).parent.parent / "data" / "verify"

NEW_REQUEST: dict[str, Any] = {
    "op": "new_request",
    "args": {"id": 1, "tokens": [1, 2]},
    "ret": None,
    "obs": {"req": [{"id": 1, "n": 2, "prepop": 0, "est": 0, "pos": 0, "chunk": 2, "stats": [0, 0, 0, 0]}]},
}
FAN: dict[str, Any] = {
    "tokens_per_block": 4,
    "num_kv_heads_per_layer": [1],
    "blocks_per_window": [[32, 64, 0]],
    "max_attention_window_vec": [32],
    "max_sequence_length": 32,
}
BAD_RANGE = {"retention": {"ranges": [[2, 2, 50, None]]}, "tokens_per_block": 2, "seq_len": 4}
GOOD_RANGE = {"retention": {"ranges": [[0, 2, 50, None]]}, "tokens_per_block": 2, "seq_len": 4}


@pytest.mark.parametrize("path", sorted(DATA.glob("*.jsonl")), ids=lambda path: path.stem)
def test_shipped_program_is_reproduced(path: Path) -> None:
    result = verify_program(path)
    assert result.is_equal, VerificationReport([result]).notes()
    assert result.num_ops > 10


@pytest.mark.parametrize("path", sorted((DATA / "rules").glob("*.jsonl")), ids=lambda path: path.stem)
def test_rule_is_reproduced_and_its_departure_explained(path: Path) -> None:
    result = verify_program(path)
    assert result.is_equal, VerificationReport([result]).notes()
    assert result.num_ops > 1
    default = verify_default(path)
    assert default.is_explained, default.departures


def test_rules_are_all_there() -> None:
    assert len(list((DATA / "rules").glob("*.jsonl"))) == 14


def test_large_lookups_are_compared_where_they_are_recorded(tmp_path: Path) -> None:
    """17 prompts begin alike; the recorder of a program may have left the number of such look-ups out."""
    with (tmp_path / "p.jsonl").open("w", encoding="ascii") as stream:
        recorder = TraceRecorder(stream, "g", FAN)
        for request_id in range(18):
            recorder.execute("new_request", {"id": request_id, "tokens": [1, request_id, 2, 3, 4]})
            recorder.execute("add_sequence_batch", {"requests": [[request_id, 5, 1]]})
            recorder.execute("set_context_current_position", {"id": request_id, "position": 5})
            recorder.execute("store_context_blocks", {"id": request_id})
    lines = (tmp_path / "p.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    (large,) = [index for index, row in enumerate(rows) if "ties_big" in row.get("obs", {})]
    assert rows[large]["obs"]["ties_big"] == 1
    del rows[large]["obs"]["ties_big"]
    assert verify_program(write_lines(tmp_path / "p.jsonl", *rows)).is_equal
    rows[large]["obs"]["ties_big"] = 2
    assert verify_program(write_lines(tmp_path / "p.jsonl", *rows)).num_mismatches == 1


def test_shipped_programs_are_all_there() -> None:
    found = {path.stem for path in DATA.glob("*.jsonl")}
    assert found == {"pure_by_hand", "reuse_by_hand", "two_windows_recorded"}


@pytest.mark.parametrize("stem", ["pure_by_hand", "reuse_by_hand"])
def test_every_changed_answer_is_found(tmp_path: Path, stem: str) -> None:
    """Each op of a program is falsified in turn; each must be reported."""
    lines = (DATA / f"{stem}.jsonl").read_text().splitlines()
    for index in range(1, len(lines)):
        row = json.loads(lines[index])
        if "ret" in row:
            row["ret"] = "changed"
        else:
            row = {"op": row["op"], "args": row["args"], "ret": None, **({"obs": row["obs"]} if "obs" in row else {})}
        changed = write_lines(tmp_path / "p.jsonl", *lines[:index], row, *lines[index + 1 :])
        result = verify_program(changed)
        assert result.num_mismatches == 1
        assert result.first_mismatch is not None
        assert result.first_mismatch.op_index == index


def test_every_changed_number_of_an_observation_is_found(tmp_path: Path) -> None:
    """Each number in one observation of the recorded program is raised by 1 in turn."""
    lines = (DATA / "two_windows_recorded.jsonl").read_text().splitlines()
    index = next(i for i, line in enumerate(lines) if '"xfer"' in line and '"front"' in line)
    obs_start = lines[index].index('"obs"')
    found = re.finditer(r"(?<=[:,\[])-?\d+(?=[,\]}])", lines[index])
    numbers = [match.span() for match in found if match.start() > obs_start]
    assert len(numbers) > 30
    for start, end in numbers:
        changed = lines[index][:start] + str(int(lines[index][start:end]) + 1) + lines[index][end:]
        result = verify_program(write_lines(tmp_path / "p.jsonl", *lines[:index], changed))
        assert result.first_mismatch is not None, changed[start - 40 : end + 10]
        assert result.first_mismatch.field.startswith("obs.")


def mismatch_of(tmp_path: Path, *rows: object) -> tuple[int, str, object, object]:
    result = verify_program(write_lines(tmp_path / "p.jsonl", HEADER, *rows))
    found = result.first_mismatch
    assert found is not None
    assert not result.is_equal
    return found.op_index, found.field, found.expected, found.got


def test_other_answer_is_a_mismatch(tmp_path: Path) -> None:
    assert mismatch_of(tmp_path, BUBBLE, {**BUBBLE, "ret": 2}) == (2, "ret", 2, 3)


def test_other_observation_is_a_mismatch(tmp_path: Path) -> None:
    obs = {"req": [{**NEW_REQUEST["obs"]["req"][0], "chunk": 1}]}
    assert mismatch_of(tmp_path, {**NEW_REQUEST, "obs": obs}) == (1, "obs.req[0].chunk", 1, 2)


def test_missing_observation_is_a_mismatch(tmp_path: Path) -> None:
    row = {name: value for name, value in NEW_REQUEST.items() if name != "obs"}
    index, field, expected, _ = mismatch_of(tmp_path, row)
    assert (index, field, expected) == (1, "obs", "(absent)")


def test_error_instead_of_answer_and_the_reverse_are_mismatches(tmp_path: Path) -> None:
    _, field, expected, got = mismatch_of(tmp_path, {"op": "retention_per_block", "args": BAD_RANGE, "ret": []})
    assert (field, expected) == ("error", "no error")
    assert str(got).startswith("RetentionRangeError: ")
    failed = {"op": "retention_per_block", "args": GOOD_RANGE, "error": "text", "error_type": "tllm"}
    assert mismatch_of(tmp_path, failed) == (1, "error", "tllm: text", "no error")


def test_invalid_argument_is_told_from_other_errors(tmp_path: Path) -> None:
    row = {"op": "retention_per_block", "args": BAD_RANGE, "error": "any text", "error_type": "invalid_argument"}
    assert verify_program(write_lines(tmp_path / "q.jsonl", HEADER, row)).is_equal
    assert mismatch_of(tmp_path, {**row, "error_type": "tllm"}) == (1, "error_type", "tllm", "RetentionRangeError")
    unknown = {"op": "set_state", "args": {"id": 9, "state": "unknown"}, "error": "t", "obs": {"req": [{"id": 9}]}}
    for error_type in ("tllm", "out_of_range"):
        path = write_lines(tmp_path / "r.jsonl", HEADER, {**unknown, "error_type": error_type})
        assert verify_program(path).is_equal


def test_a_crash_is_a_mismatch_even_where_an_error_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(self: OpMachine, op: str, args: object) -> None:
        raise KeyError(op)

    monkeypatch.setattr(OpMachine, "execute", crash)
    row = {"op": "retention_per_block", "args": BAD_RANGE, "error": "t", "error_type": "out_of_range"}
    _, field, _, got = mismatch_of(tmp_path, row)
    assert (field, got) == ("error", "crash: KeyError: 'retention_per_block'")


def test_mismatches_are_counted_behind_the_first(tmp_path: Path) -> None:
    wrong = {**BUBBLE, "ret": 0}
    result = verify_program(write_lines(tmp_path / "p.jsonl", HEADER, wrong, BUBBLE, wrong))
    assert (result.num_ops, result.num_mismatches, result.num_unsupported) == (3, 2, 0)


def test_unsupported_op_ends_the_comparison_but_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    execute = OpMachine.execute

    def refuse_drop(self: OpMachine, op: str, args: Any) -> Any:
        if op == "drop_request":
            raise UnsupportedOpError("no such module")
        return execute(self, op, args)

    monkeypatch.setattr(OpMachine, "execute", refuse_drop)
    drop = {"op": "drop_request", "args": {"id": 1}, "ret": None, "obs": {}}
    result = verify_program(write_lines(tmp_path / "p.jsonl", HEADER, BUBBLE, drop, {**BUBBLE, "ret": 0}))
    assert (result.num_ops, result.num_mismatches, result.num_unsupported) == (3, 0, 2)
    assert not result.is_equal
    assert result.unsupported_op is not None
    assert (result.unsupported_op.op_index, result.unsupported_op.op) == (2, "drop_request")
    assert "op 2, drop_request: unsupported (no such module)" in "\n".join(VerificationReport([result]).notes())


def test_programs_are_found_in_natural_order_and_once(tmp_path: Path) -> None:
    names = ["g02-10.jsonl", "g02-9.jsonl", "sub/g01-1.jsonl"]
    (tmp_path / "sub").mkdir()
    for name in names:
        write_lines(tmp_path / name, HEADER)
    (tmp_path / "notes.txt").write_text("no program")
    found = [str(path.relative_to(tmp_path)) for path in find_programs([tmp_path, tmp_path / "g02-9.jsonl"])]
    assert found == ["g02-9.jsonl", "g02-10.jsonl", "sub/g01-1.jsonl"]


def test_missing_paths_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no such file or folder"):
        find_programs([tmp_path / "missing"])
    with pytest.raises(InvalidInputError, match=r"no \.jsonl file"):
        find_programs([tmp_path])


def test_processes_give_the_same_results_in_the_same_order(tmp_path: Path) -> None:
    rows = [{**BUBBLE, "ret": 3 + index % 2} for index in range(7)]
    paths = [write_lines(tmp_path / f"p{index}.jsonl", HEADER, row) for index, row in enumerate(rows)]
    alone = list(verify_programs(paths))
    assert [result.num_mismatches for result in alone] == [0, 1, 0, 1, 0, 1, 0]
    assert list(verify_programs(paths, jobs=2)) == alone


def test_bad_program_in_a_process_keeps_its_message(tmp_path: Path) -> None:
    paths = [write_lines(tmp_path / "good.jsonl", HEADER, BUBBLE), write_lines(tmp_path / "bad.jsonl", HEADER, "{")]
    with pytest.raises(TraceFormatError, match=r"bad\.jsonl:2: not JSON"):
        list(verify_programs(paths, jobs=2))


def test_report_counts_groups_and_shows_the_first_mismatch(tmp_path: Path) -> None:
    paths = [
        write_lines(tmp_path / "a.jsonl", {**HEADER, "group": "g2"}, BUBBLE),
        write_lines(tmp_path / "b.jsonl", {**HEADER, "group": "g1"}, BUBBLE, {**BUBBLE, "ret": 0}),
    ]
    results = list(verify_programs(paths))
    text = shown(VerificationReport(results), boxed=False)
    assert [line.split() for line in text.splitlines()[1:4]] == [
        ["g1", "1", "2", "1", "0"],
        ["g2", "1", "1", "0", "0"],
        ["all", "2", "3", "1", "0"],
    ]
    assert f"{paths[1]}: op 2, get_sink_bubble_length: ret\n  expected  0\n  got       3\n" in text
    report = json.loads(json_text(VerificationReport(results).to_json()))
    assert list(report) == ["format", "version", "equal", "total", "groups", "failures"]
    assert report["equal"] is False
    assert report["groups"]["g1"] == {"programs": 1, "failed_programs": 1, "ops": 2, "mismatches": 1, "unsupported": 0}
    (failure,) = report["failures"]
    assert (failure["file"], failure["first_mismatch"]["op_index"]) == (str(paths[1]), 2)
    assert (failure["first_mismatch"]["expected"], failure["first_mismatch"]["got"]) == (0, 3)
