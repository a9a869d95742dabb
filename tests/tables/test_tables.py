"""Tables as data: the same text on every medium, whole numbers at every width."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass

import pytest
from rich.console import Console

from tests.shown import shown
from trtkv.records.rate import Rate
from trtkv.tables.csv_text import csv_text
from trtkv.tables.html import html_table
from trtkv.tables.json_text import json_text
from trtkv.tables.result import Result
from trtkv.tables.table import Cell, Mark, Share, Table, definitions_of, fact_table, list_table, rates_table
from trtkv.tables.terminal import print_table
from trtkv.tables.wording import cell_text, ratio, short, shortened, signed, signed_share, window

ROWS = [("a long name of something", 1_234_567, Share(1, 3)), ("b", 2, Share(1, 10**9)), ("c", None, Share(0, 0))]
TABLE = list_table(
    "Numbers",
    {"what it is": lambda row: row[0], "how many of it": lambda row: row[1], "share": lambda row: row[2]},
    ROWS[:2],
    ROWS[2:],
    notes=["a note"],
    definitions=[("share", "part / whole")],
)


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, "-"),
        ("x", "x"),
        (True, "yes"),
        (1_234_567, "1,234,567"),
        (1234.5, "1,234.500"),
        (Share(1, 3), "33.333 %"),
        (Share(1, 10**9), "< 0.001 %"),
        (Share(0, 5), "0.000 %"),
        (Share(0, 0), "-"),
        (Mark("differs", "bad"), "differs"),
    ],
)
def test_a_cell_is_written_in_one_way(cell: Cell, text: str) -> None:
    assert cell_text(cell) == text
    table = fact_table("t", {"x": cell})
    assert text in shown(_Tables([table]))
    assert text.replace("<", "&lt;") in html_table(table)


def test_other_numbers() -> None:
    assert (ratio(6, 11), ratio(2.5, None), signed(-3), signed(0.25), signed_share(-0.0012)) == (
        "6 / 11",
        "2.500",
        "-3",
        "+0.250",
        "-0.120 %",
    )
    assert (window(None), window(131_136, is_full=True), window(1024)) == ("full", "full", "1,024")
    assert (short(20_000), short(3_500_000), short(7)) == ("20k", "3.5M", "7")
    assert shortened(["a", "b", "c"], 2) == ["  a", "  b", "  and 1 more"]


def test_programs_get_values() -> None:
    assert TABLE.to_json() == {
        "columns": ["what it is", "how many of it", "share"],
        "rows": [["a long name of something", 1_234_567, 1 / 3], ["b", 2, 1e-9], ["c", None, None]],
    }
    read = list(csv.reader(io.StringIO(csv_text(TABLE))))
    assert read[0] == ["what it is", "how many of it", "share"]
    assert read[1][1:] == ["1234567", str(1 / 3)]
    assert read[3] == ["c", "", ""]


def test_json_has_a_line_per_row() -> None:
    text = json_text({"a": {"b": [1, 2]}, "t": fact_table("", {"x": 1}, {"y": None}).to_json(), "e": []})
    assert json.loads(text) == {
        "a": {"b": [1, 2]},
        "t": {"columns": ["what", "value"], "rows": [["x", 1], ["y", None]]},
        "e": [],
    }
    assert '      ["x", 1],\n      ["y", null]\n' in text
    assert json.loads(json_text({"t": Table("", (), ()).to_json()})) == {"t": {"columns": [], "rows": []}}
    assert json_text([1]) == "[\n  1\n]\n"


@pytest.mark.parametrize("width", [20, 40, 48, 60, 200])
def test_numbers_are_whole_at_every_width(width: int) -> None:
    stream = io.StringIO()
    print_table(TABLE, Console(file=stream, width=width))
    text = stream.getvalue()
    for number in ("1,234,567", "33.333 %", "< 0.001 %"):
        assert number in text
    assert "…" not in text
    lines = [line for line in text.splitlines() if line.startswith("│")]
    first = "".join(line.split("│")[1].strip() for line in lines)
    assert first.replace(" ", "") == "alongnameofsomethingbc"
    assert max(map(len, lines)) <= max(width, 48)


def test_page_marks_numbers_and_news() -> None:
    text = html_table(list_table("t", {"a": lambda row: row, "b": lambda row: Mark("<x>", "bad")}, ["<y>"]))
    assert '<td class="bad">&lt;x&gt;</td>' in text
    assert '<th scope="row">&lt;y&gt;</th>' in text
    assert '<th scope="col" class="number" align="right">b</th>' in text
    assert html_table(TABLE).count("<tbody>") == 2
    assert '<p class="note">a note</p>' in html_table(TABLE)


def test_rates_bring_their_definitions() -> None:
    table = rates_table("Rates", [Rate("hit_rate", "found / asked", 1, 4), Rate("steps_per_second", "steps / s", 3, 2)])
    assert [cell_text(row[1]) for row in table.rows] == ["25.000 %", "1.500"]
    assert definitions_of([table, table, TABLE]) == {
        "hit_rate": "found / asked",
        "steps_per_second": "steps / s",
        "share": "part / whole",
    }


@dataclass(frozen=True, slots=True, repr=False)
class _Tables(Result):
    """A result of tables alone."""

    made: list[Table]

    def tables(self) -> list[Table]:
        return self.made

    def to_json(self) -> object:
        return [table.to_json() for table in self.made]


def test_a_result_is_its_tables_everywhere() -> None:
    result = _Tables([TABLE])
    assert repr(result) == "<_Tables: Numbers>"
    assert "33.333 %" in result._repr_html_()
    text = shown(result)
    assert text.index("a note") < text.index("share: part / whole")
    plain = shown(result, boxed=False)
    assert "│" not in plain
    assert plain.splitlines()[2].split() == ["a", "long", "name", "of", "something", "1,234,567", "33.333", "%"]
