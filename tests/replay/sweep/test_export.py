"""Rows, columns, table, CSV and Parquet."""

from __future__ import annotations

import csv
import sys
from math import inf
from pathlib import Path

import pytest

from tests.shown import shown
from trtkv.errors import MissingExtraError
from trtkv.replay.sweep.columns import Row, column_names, column_values, make_row
from trtkv.replay.sweep.parquet import write_parquet
from trtkv.replay.sweep.sweep_table import SweepTable
from trtkv.tables.csv_text import csv_text

REPORT = {
    "trace": "t.jsonl",
    "capacity_tokens": "inf",
    "requests": 3,
    "partial_reuse": True,
    "attention_windows": [128, "full"],
    "block_size": None,
    "rates": [{"name": "token_hit_rate", "value": 0.5}, {"name": "block_hit_rate", "value": None}],
    "windows": [{"onboarded": 1, "offloaded": 2, "copied": 3}, {"onboarded": 10, "offloaded": 20, "copied": 30}],
    "bounds": {"requests": 3, "rates": [{"name": "infinite_token_hit_rate", "value": 0.75}]},
}


def make_rows() -> list[Row]:
    other = {**REPORT, "capacity_tokens": 1000, "loop": "closed"}
    return [
        make_row({"trace": "a/t.jsonl", "capacity_tokens": "inf", "tp": "1"}, REPORT),
        make_row({"trace": "a/t.jsonl", "capacity_tokens": "1k", "tp": "2"}, other),
    ]


def test_a_row_is_flat_and_has_settings_counts_rates_and_sums() -> None:
    assert make_rows()[0] == {
        "trace": "a/t.jsonl",
        "capacity_tokens": "inf",
        "tp": "1",
        "requests": 3,
        "partial_reuse": True,
        "attention_windows": "128+full",
        "block_size": None,
        "token_hit_rate": 0.5,
        "block_hit_rate": None,
        "onboarded": 11,
        "offloaded": 22,
        "copied": 33,
        "infinite_token_hit_rate": 0.75,
    }
    assert make_rows()[1]["capacity_tokens"] == 1000


def test_columns_are_of_one_type() -> None:
    rows = make_rows()
    assert column_names(rows)[-1] == "loop"
    assert column_values(rows, "capacity_tokens") == [inf, 1000.0]
    assert column_values(rows, "loop") == [None, "closed"]
    assert column_values(rows, "requests") == [3, 3]
    assert column_values([{"a": "x"}, {"a": 5}], "a") == ["x", "5"]


def test_csv_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text(csv_text(SweepTable(make_rows(), {}).all_columns()), encoding="utf-8")
    with open(path, encoding="utf-8", newline="") as stream:
        read = list(csv.DictReader(stream))
    assert [row["capacity_tokens"] for row in read] == ["inf", "1000"]
    assert [row["loop"] for row in read] == ["", "closed"]
    assert read[0]["token_hit_rate"] == "0.5"


def test_parquet_reads_back(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    path = tmp_path / "r.parquet"
    write_parquet(make_rows(), path)
    table = parquet.read_table(path)
    assert table.column("capacity_tokens").to_pylist() == [inf, 1000.0]
    assert table.column("requests").to_pylist() == [3, 3]
    assert table.column("loop").to_pylist() == [None, "closed"]
    assert str(table.schema.field("partial_reuse").type) == "bool"


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=r"trtkv\[parquet\]"):
        write_parquet(make_rows(), tmp_path / "r.parquet")


def test_table_shows_what_was_varied_and_cuts_nothing() -> None:
    grid = {"trace": ["a/[x].jsonl"], "capacity_tokens": ["inf", "1k"], "tp": ["1", "2"]}
    text = shown(SweepTable(make_rows(), grid), width=20)
    assert "…" not in text
    assert "50.000 %" in text
    assert "75.000 %" in text
    assert "requests" not in text  # the same everywhere
    assert "trace: a/[x].jsonl" in text.replace("\n", "")
    lines = [line for line in text.splitlines() if "1,000" in line]
    assert len(lines) == 1
