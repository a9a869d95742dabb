"""The report page: escaped, self-contained, equal from run to run, without complaints of a browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.commands.test_commands import REPLAY_CHAT, trtkv
from tests.replay.causes.explained import explained, trace_of
from tests.replay.helpers import DATA
from trtkv._version import __version__
from trtkv.errors import MissingExtraError
from trtkv.replay.bounds.bounds import bounds_of
from trtkv.replay.causes.causes import CAUSES
from trtkv.replay.closed_loop.measured_curve import measure_curve
from trtkv.replay.closed_loop.result import ReplayResult
from trtkv.replay.closed_loop.run import replay_trace
from trtkv.replay.config import ReplayConfig
from trtkv.replay.report import plots
from trtkv.replay.report.page import html_report
from trtkv.tables.html import html_table
from trtkv.tables.table import Column, Table
from trtkv.tables.wording import cell_text
from trtkv.traces.trace import RequestTrace, RowFault
from trtkv.traces.trace_reader import read_trace

HOSTILE = "<script>alert('x')</script> & \"$x$\" --> ]]> {{7*7}} \u202e.jsonl"


@pytest.fixture(scope="module")
def result() -> ReplayResult:
    """A run with evictions, two windows, a host tier, bounds and a curve."""
    trace = read_trace(DATA / "agent_60.jsonl", block_size=512)
    config = ReplayConfig(
        tokens_per_block=64, capacity_tokens=100_000, host_tokens=30_000, live=4, windows=(1024, None)
    )
    found, _ = replay_trace(trace, config, explain=True)
    found = found.with_bounds(bounds_of(trace.requests, config))
    assert found.explanation.losses.num_tokens > 0
    return found.with_curve(measure_curve(trace, config, 3))


class Page(HTMLParser):
    """Open elements, ids, references and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.references: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        values = dict(attrs)
        if "id" in values:
            self.ids[values["id"]] += 1
        self.references += [values[name] for name in ("src", "href", "xlink:href") if name in values]
        if tag not in ("meta", "link"):
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in ("meta", "link"):
            self.stack.pop()

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text += f" {data}" if self.stack and self.stack[-1] in ("th", "td") else data


def test_page_is_well_formed_and_needs_nothing_from_outside(result):
    text = html_report(result)
    page = Page(text)
    assert page.stack == []
    assert page.tags["script"] == 0
    assert max(page.ids.values()) == 1
    assert all(reference.startswith("#") or reference == "data:," for reference in page.references)
    assert {reference[1:] for reference in page.references if reference.startswith("#")} <= set(page.ids)
    assert re.findall(r"@import|url\((?!#)", text) == []
    assert set(re.findall(r"https?://[^\"']*", text)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert len(text) < 600_000


def test_page_shows_every_part(result):
    text = html_report(result)
    page = Page(text)
    assert page.tags["svg"] == 6
    for heading in ("Hit rates", "The run", "Causes", "Evicted tokens", "Capacity and reuse distance", "Blocks"):
        assert f"<h2>{heading}</h2>" in text
    for name in ("clairvoyant_token_hit_rate", "infinite_token_hit_rate", "token_hit_rate", "priority", "stored"):
        assert name in page.text
    for cause in CAUSES:
        assert cause.label in page.text
    assert f"{result.explanation.prompt_tokens:,}" in page.text


def test_parts_that_a_result_does_not_have_are_left_out():
    plain = replace(explained(trace_of([1, 2, 3], [1, 2, 3])), explanation=None)
    page = Page(html_report(plain))
    assert page.tags["svg"] == 0
    assert "Causes" not in page.text


def test_colours_come_from_the_page_alone(result):
    text = html_report(result)
    for name in set(re.findall(r"var\((--[a-z0-9-]+)\)", text)):
        assert len(re.findall(rf"[{{ ]{name}: #[0-9a-f]{{6}};", text)) == 2, "one for light and one for dark pages"
    assert re.findall(r"#01010[0-9a-f]|#0102[0-9a-f]{2}", text) == []
    drawings = "".join(re.findall(r"<svg .*?</svg>", text, re.DOTALL))
    assert re.findall(r"(?:fill|stroke): #[0-9a-f]+", drawings) == []


@pytest.mark.parametrize("make", [html_report, ReplayResult._repr_html_])
def test_text_of_the_trace_is_escaped(result, make):
    trace = RequestTrace(HOSTILE, HOSTILE, 64, result.trace.requests, [RowFault(1, HOSTILE)])
    text = make(replace(result, trace=trace))
    assert "<script" not in text
    assert "alert('x')" not in text
    page = Page(text)
    assert page.stack == []
    assert HOSTILE in page.text


def test_table_escapes_every_cell():
    text = html_table(Table("<a>", (Column("<b>"), Column("c")), ((("<d>", "<e>&"),),), notes=("<f>",)))
    assert Page(text).text.split() == ["<a>", "<b>", "c", "<d>", "<e>&", "<f>"]


def test_equal_runs_give_equal_pages(tmp_path: Path):
    pages = []
    for seed in ("1", "2"):
        path = tmp_path / seed
        command = [sys.executable, "-m", "trtkv", *REPLAY_CHAT, "--capacity-tokens", "30000", "--live", "2"]
        subprocess.run(
            [*command, "--html", str(path), "--json", "-"],
            check=True,
            capture_output=True,
            env=os.environ | {"PYTHONHASHSEED": seed, "TZ": f"UTC-{seed}"},
        )
        pages.append(path.read_bytes())
    assert pages[0] == pages[1]


def test_settings_of_the_user_do_not_change_the_plots(result, monkeypatch):
    import matplotlib as mpl

    before = plots.causes_plot(result.explanation)
    monkeypatch.setitem(mpl.rcParams, "font.size", 30.0)
    monkeypatch.setitem(mpl.rcParams, "axes.facecolor", "red")
    assert plots.causes_plot(result.explanation) == before
    assert mpl.rcParams["font.size"] == 30.0


def test_missing_library_is_named_before_anything_runs(monkeypatch):
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r'pip install "trtkv\[report\]"'):
        plots.require_plots()
    with pytest.raises(MissingExtraError):
        html_report(explained(trace_of([1])))


def test_notebooks_get_tables_without_the_plot_library(result, monkeypatch):
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    page = Page(result._repr_html_())
    assert page.stack == []
    assert page.tags["svg"] == 0
    assert "token_hit_rate" in page.text
    assert "never seen before" in page.text


# -- in a browser -----------------------------------------------------------------------------------


def find_browser() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        path = shutil.which(name)
        if path is not None:
            return path
    pytest.skip("no Chromium found; install it to open the page")


def open_page(path: Path, picture: Path, scheme: str) -> str:
    """Take a picture of a page; returns what the browser logged."""
    done = subprocess.run(
        [
            find_browser(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={picture.parent / ('profile-' + scheme)}",
            f"--blink-settings=preferredColorScheme={'0' if scheme == 'dark' else '1'}",
            "--window-size=1000,1500",
            "--enable-logging=stderr",
            f"--screenshot={picture}",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert picture.exists(), done.stderr
    return done.stderr


def test_page_opens_without_complaints_light_and_dark(result, tmp_path: Path):
    import matplotlib.image

    page = tmp_path / "page.html"
    page.write_text(html_report(result), encoding="utf-8")
    for scheme, is_dark in (("light", False), ("dark", True)):
        picture = tmp_path / f"{scheme}.png"
        log = open_page(page, picture, scheme)
        assert [line for line in log.splitlines() if "CONSOLE" in line] == []
        pixels = matplotlib.image.imread(picture)[:, :, :3]
        assert (pixels[2, 2].mean() < 0.3) == is_dark
        assert pixels.std() > 0.02, "the page is not empty"


# -- on the command line -------------------------------------------------------------------------------


def test_command_writes_causes_bounds_and_curve(tmp_path: Path):
    table = tmp_path / "requests.csv"
    code, out, err = trtkv(
        *(*REPLAY_CHAT, "--capacity-tokens", "30000", "--live", "2", "--explain", "--bounds", "--curve", "2"),
        *("--explain-requests", str(table), "--json", "-"),
    )
    assert code == 0, err
    report = json.loads(out)
    causes = {entry["cause"]: entry["tokens"] for entry in report["explanation"]["causes"]}
    assert list(causes) == [cause.value for cause in CAUSES]
    assert sum(causes.values()) == report["prompt_tokens"]
    assert causes["hit"] == report["prepopulated_tokens"]
    assert causes["hit"] <= report["bounds"]["clairvoyant_hit_tokens"] <= report["bounds"]["infinite_hit_tokens"]
    assert [point["capacity_tokens"] for point in report["curve"]["measured"]].count(30_000) == 1
    assert len(report["curve"]["measured"]) == 3
    lines = [line.split(",") for line in table.read_text().splitlines()]
    assert lines[0] == ["request", "prompt_tokens", *causes]
    assert [sum(int(line[i]) for line in lines[1:]) for i in range(2, 12)] == list(causes.values())
    assert all(int(line[1]) == sum(map(int, line[2:])) for line in lines[1:])


def test_command_prints_tables_and_writes_the_page(tmp_path: Path):
    path = tmp_path / "page.html"
    code, out, err = trtkv(*REPLAY_CHAT, "--capacity-tokens", "30000", "--live", "2", "--html", str(path))
    assert code == 0, err
    assert Page(path.read_text(encoding="utf-8")).tags["svg"] >= 5
    for text in ("Every prompt token of the trace by cause", "clairvoyant_token_hit_rate", "after how long"):
        assert text in out


def test_page_says_what_was_run_and_what_was_not(tmp_path: Path):
    path = tmp_path / "page.html"
    code, _, err = trtkv(*REPLAY_CHAT, "--limit", "20", "--html", str(path))
    assert code == 0, err
    text = Page(path.read_text(encoding="utf-8")).text
    assert "Only the first 20 rows of the file were read" in text
    assert __version__ in text
    assert "--limit 20" in text
    assert "--html" not in text


def test_terminal_and_page_show_the_same_cells(result):
    page = Page(html_report(result)).text
    for table in result.tables():
        for row in table.rows:
            for cell in row:
                assert cell_text(cell) in page


@pytest.mark.parametrize("options", [("--scheduler", "max-utilization"), ("--system", "nano", "--bounds")])
def test_every_kind_of_replay_has_a_page(tmp_path: Path, options):
    path = tmp_path / "page.html"
    code, _, err = trtkv(*REPLAY_CHAT, "--limit", "20", *options, "--html", str(path))
    assert code == 0, err
    page = Page(path.read_text(encoding="utf-8"))
    assert page.stack == []
    assert page.tags["svg"] == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--explain", "--system", "nano"), "--explain"),
        (("--explain-requests", "x.csv", "--scheduler", "max-utilization"), "leave --scheduler and --system out"),
        (("--curve", "0"), "--curve is 0"),
        (("--html", "/no/such/folder/x.html"), "/no/such/folder/x.html"),
    ],
)
def test_command_refuses(arguments, told):
    code, out, err = trtkv(*REPLAY_CHAT, *arguments)
    assert (code, out) == (2, "")
    assert told in err
