"""``trtkv size``: table, JSON, check, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.sizing.models import MODELS, NAMES
from trtkv import cli
from trtkv.sizing import plan_check

LLAMA = ("size", "--model", str(MODELS / "llama-3.1-8b.json"), "--memory", "40GiB")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments)


def test_table_shows_bytes_tokens_and_blocks_of_each_tier() -> None:
    result = run(*LLAMA, "--host-memory", "200GiB", "--kv-dtype", "fp8", "--tp", "2")
    assert result.exit_code == 0
    for text in ("Cache of llama-3.1-8b", "32,768", "40,960", "204,800", "1,310,720", "6,553,600", "200.000 GiB"):
        assert text in result.output
    assert "…" not in result.output


@pytest.mark.parametrize("name", NAMES)
def test_table_fits_80_columns(name: str) -> None:
    path = str(MODELS / f"{name}.json")
    output = run("size", "--model", path, "--memory", "40GiB", "--host-memory", "200GiB").output
    assert "…" not in output
    assert max(map(len, output.splitlines())) <= 80


def test_json_alone_on_standard_output_and_equal_in_a_file(tmp_path: Path) -> None:
    result = run(*LLAMA, "--json", "-")
    report = json.loads(result.stdout)
    assert (report["model"], report["bytes_per_token"], report["check"]) == ("llama-3.1-8b", 131072, None)
    assert report["windows"][0]["primary_blocks"] == 10240
    path = tmp_path / "out.json"
    assert "Cache of" in run(*LLAMA, "--json", str(path)).stdout
    assert path.read_text() == result.stdout


def test_states_have_no_tokens_in_json() -> None:
    report = json.loads(
        run("size", "--model", str(MODELS / "jamba-v0.1.json"), "--memory", "40GB", "--json", "-").stdout
    )
    states, full = report["windows"]
    assert (states["kind"], states["window_size"], states["primary_tokens"], full["kind"]) == (
        "states",
        None,
        None,
        "full",
    )
    assert report["snapshot_interval"] == 256


def test_check_says_what_it_did() -> None:
    pytest.importorskip("torch", reason="torch is not installed; pools are torch tensors")
    result = run(*LLAMA, "--check")
    assert result.exit_code == 0
    assert "check: plan and tensors agree" in result.output


def test_check_that_fails_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = plan_check.PlanCheck((), 0, 0, ("window 5: odd",))
    monkeypatch.setattr(plan_check, "check_plan", lambda plan: bad)
    result = run(*LLAMA, "--check", "--json", "-")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["check"]["faults"] == ["window 5: odd"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("size", "--memory", "40GiB"), "--model"),
        (("size", "--model", "x"), "--memory"),
        ((*LLAMA[:3], "--memory", "40G"), "--memory is '40G'"),
        ((*LLAMA, "--host-memory", "1"), "--host-memory is '1' without a unit"),
        ((*LLAMA, "--kv-dtype", "fp7"), "fp7"),
        ((*LLAMA, "--window", "wide"), "--window is 'wide'"),
        ((*LLAMA, "--window-shares", "0.5,0.5"), "holds 2 shares for 1 windows"),
        (("size", "--model", "/no/such/file", "--memory", "1GiB"), "cannot read the model's config /no/such/file"),
    ],
)
def test_wrong_input_exits_with_2_and_one_reason(arguments: tuple[str, ...], told: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert told in result.output
