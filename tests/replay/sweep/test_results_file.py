"""The results file: whole at every moment, and what a killed process leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.replay.sweep.numbers import make_tasks
from trtkv.errors import InvalidInputError
from trtkv.replay.sweep.results_file import ResultsFile


def keys(path: Path) -> list[str]:
    return [json.loads(line)["key"] for line in path.read_text().splitlines()]


def test_runs_are_on_the_disk_at_once_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first, second = make_tasks(tmp_path, 1, 2)
    with ResultsFile(path) as results:
        assert first.key not in results
        results.add(first, {"sum": 0})
        assert keys(path) == [first.key]
    with ResultsFile(path) as results:
        assert results.get(first.key) == {"sum": 0}
        assert results.get(second.key) is None


def test_a_line_that_was_not_finished_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first, second = make_tasks(tmp_path, 1, 2)
    with ResultsFile(path) as results:
        results.add(first, {"sum": 0})
        results.add(second, {"sum": 1})
    whole = path.read_bytes()
    for cut in range(whole.index(b"\n") + 2, len(whole)):
        path.write_bytes(whole[:cut])
        with ResultsFile(path) as results:
            assert (first.key in results, second.key in results) == (True, False)
            results.add(second, {"sum": 1})
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("a letter to grandmother", "ends in something that is not a result of a sweep"),
        ("a letter\n", "r.jsonl:1: this is not a result of a sweep"),
        ('{"key": 5, "configuration": {}, "report": {}}\n', "r.jsonl:1"),
        ('{"key": "k", "configuration": {}, "report": {}}\n\n{"key": "x"', "r.jsonl:2"),
        ('{"key": "k", "configuration": {}}\n', "r.jsonl:1"),
        ("[]\n", "r.jsonl:1"),
    ],
)
def test_other_files_are_left_as_they_are(tmp_path: Path, content: str, told: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidInputError, match=told):
        ResultsFile(path)
    assert path.read_text().startswith(content.rpartition("\n")[0])


def test_two_sweeps_do_not_write_one_file(tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="this system has no such locks")
    with ResultsFile(tmp_path / "r.jsonl"), pytest.raises(InvalidInputError, match=r"r\.jsonl is in use by another"):
        ResultsFile(tmp_path / "r.jsonl")
    ResultsFile(tmp_path / "r.jsonl").close()


def test_runs_are_put_in_order_behind_those_of_other_sweeps(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    tasks = make_tasks(tmp_path, 1, 4)
    with ResultsFile(path) as results:
        for index in (2, 0, 3, 1):
            results.add(tasks[index], {"sum": index})
        results.close_sorted([tasks[0].key, tasks[1].key, "0+9"])
    assert keys(path) == ["0+2", "0+3", "0+0", "0+1"]
    with ResultsFile(path) as results:
        assert results.get("0+3") == {"sum": 3}
    assert [file.name for file in tmp_path.iterdir()] == ["r.jsonl"]


def test_a_run_that_is_written_twice_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    (task,) = make_tasks(tmp_path, 1, 1)
    with ResultsFile(path) as results:
        results.add(task, {"sum": 1})
        results.add(task, {"sum": 2})
    with ResultsFile(path) as results:
        assert results.get(task.key) == {"sum": 2}
