"""Outputs of commands: an earlier file survives every failure, and no input is ever written."""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trtkv.cli import app
from trtkv.commands.output_files import check_outputs, open_output, output_path, write_output
from trtkv.errors import InvalidInputError

TRACE_ROW = {"timestamp": 0, "input_length": 40, "output_length": 2, "hash_ids": [1]}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({**TRACE_ROW, "hash_ids": [i]}) + "\n" for i in range(20)))
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_text_gets_its_name_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    with open_output(path) as stream:
        stream.write("new\n")
        assert path.read_text() == "old"
    assert path.read_bytes() == b"new\n"
    assert names(tmp_path) == ["out.json"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_error_the_earlier_file_is_unchanged(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")

    def write_half() -> None:
        with open_output(path) as stream:
            stream.write("half")
            raise error

    with pytest.raises(error):
        write_half()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["out.json"]


def test_permissions_are_kept_and_links_are_followed(tmp_path: Path) -> None:
    path, link = tmp_path / "out.json", tmp_path / "link.json"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_output(link, "new")
    assert link.is_symlink()
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o640)
    mask = os.umask(0o027)
    try:
        write_output(tmp_path / "fresh", "new")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o640


def test_devices_are_written_directly(tmp_path: Path) -> None:
    write_output("/dev/null", "gone")
    check_outputs(["/dev/null", "/dev/null"])
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(("name", "reason"), [("gone/out.json", "No such file or directory"), (".", "it is a folder")])
def test_what_cannot_be_written_is_named_before_the_run(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=f"cannot write .*{reason}"):
        check_outputs([tmp_path / name])
    with pytest.raises(InvalidInputError, match="cannot write"), output_path(tmp_path / name):
        pass


def test_a_check_leaves_nothing_and_changes_nothing(tmp_path: Path, trace: Path) -> None:
    (tmp_path / "old").write_text("old")
    check_outputs([None, "-", tmp_path / "new", str(tmp_path / "old")], [trace, "-", None])
    assert names(tmp_path) == ["old", "t.jsonl"]
    assert (tmp_path / "old").read_text() == "old"


def test_inputs_and_repeated_names_are_refused(tmp_path: Path, trace: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(trace)
    for inputs in ([trace], [tmp_path]):
        for output in (trace, link, tmp_path / "." / "t.jsonl"):
            with pytest.raises(InvalidInputError, match="is an input of this command; give another name"):
                check_outputs([output], inputs)
    check_outputs([tmp_path / "new"], [tmp_path])
    with pytest.raises(InvalidInputError, match="the name of another output"):
        check_outputs([tmp_path / "new", link.parent / "new"])


@pytest.mark.parametrize(
    "command",
    [
        ["replay", "T", "--block-size", "512", "--json", "T"],
        ["replay", "T", "--block-size", "512", "--html", "T"],
        ["replay", "T", "--block-size", "512", "--explain-requests", "T"],
        [
            "replay",
            "T",
            "--block-size",
            "512",
            "--capacity-tokens",
            "64",
            "--scheduler",
            "guaranteed-no-evict",
            "--record",
            "T",
        ],
        ["trace", "info", "T", "--block-size", "512", "--json", "T"],
        ["sweep", "T", "--set", "block-size=512", "--csv", "T"],
        ["sweep", "T", "--set", "block-size=512", "--results", "T"],
        ["verify", "T", "--json", "T"],
        ["compare", "T", "bundled", "--json", "T"],
        ["size", "--model", "T", "--memory", "1GiB", "--json", "T"],
    ],
    ids=lambda command: " ".join(command[:1] + command[-2:-1]),
)
def test_no_command_writes_its_input(trace: Path, command: list[str]) -> None:
    before = trace.read_bytes()
    result = CliRunner().invoke(app, [str(trace) if word == "T" else word for word in command])
    assert result.exit_code == 2, result.output
    assert "is an input of this command" in result.stderr
    assert trace.read_bytes() == before
    assert names(trace.parent) == ["t.jsonl"]


def _no_room() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


@pytest.mark.parametrize("option", ["--json", "--html", "--explain-requests", "--record"])
def test_a_full_disk_keeps_the_earlier_file_and_is_named(trace: Path, option: str) -> None:
    path = trace.parent / "out"
    path.write_text("old")
    more = ["--scheduler", "guaranteed-no-evict", "--capacity-tokens", "640"] if option == "--record" else []
    done = subprocess.run(
        [sys.executable, "-m", "trtkv", "replay", str(trace), "--block-size", "512", option, str(path), *more],
        preexec_fn=_no_room,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 2, done.stderr
    assert f"error: cannot write {path}: File too large; it is as it was before" in done.stderr
    assert path.read_text() == "old"
    assert names(trace.parent) == ["out", "t.jsonl"]
