"""The scripts a newcomer starts with: tools/demo.sh, tools/test.sh, .ci/run, and how they prepare .venv."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

FAKE_PYTHON = """#!/bin/bash
echo "$*" >>"$FAKE_LOG"
case "$*" in
    --version) echo "Python ${FAKE_VERSION:-3.11.9}" ;;
    *ensurepip*) exit "${FAKE_ENSUREPIP_EXIT:-0}" ;;
    "-m venv --clear "*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
esac
[[ -z "${FAKE_FAILS:-}" || "$*" != *"$FAKE_FAILS"* ]]
"""
"""Stands for an interpreter: writes down its arguments and fails where it is told to."""


class Tree(NamedTuple):
    """A copy of the scripts in a folder of its own, with a fake interpreter."""

    root: Path
    log: Path
    fake: Path

    def run(self, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        env = {k: v for k, v in os.environ.items() if not k.startswith(("TRTKV", "PYTHON"))}
        env |= {"FAKE_LOG": str(self.log), "PYTHON": str(self.fake)} | environment
        command = ["bash", str(self.root / script), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=env)

    def calls(self, *starts: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.startswith(starts)]


@pytest.fixture
def tree(tmp_path: Path, repository_root: Path) -> Tree:
    root = tmp_path / "a copy"
    shutil.copytree(repository_root / "tools", root / "tools")
    shutil.copytree(repository_root / ".ci", root / ".ci")
    shutil.copy(repository_root / "pyproject.toml", root)
    (root / "trtkv").mkdir()
    for name in ("README.md", "LICENSE", "NOTICE"):
        (root / name).touch()
    fake = tmp_path / "fake-python"
    fake.write_text(FAKE_PYTHON)
    fake.chmod(0o755)
    return Tree(root, tmp_path / "log", fake)


def run_demo(root: Path, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"TRTKV_PYTHON": sys.executable, "TRTKV_DEMO_DIR": str(out)}
    command = ["bash", str(root / "tools" / "demo.sh"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=out, env=env)


def test_demo_replays_a_generated_trace(repository_root: Path, tmp_path: Path) -> None:
    result = run_demo(repository_root, tmp_path)
    assert result.returncode == 0, result.stderr
    assert len((tmp_path / "chat.jsonl").read_text().splitlines()) == 300
    assert json.loads((tmp_path / "report.json").read_text())
    assert re.search(r"token.hit.rate", result.stdout)


def test_demo_takes_a_trace_of_the_caller(repository_root: Path, tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
    (tmp_path / "mine.jsonl").write_text(f"{json.dumps(row)}\n" * 2)
    result = run_demo(repository_root, tmp_path, "mine.jsonl")
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "chat.jsonl").exists()


def test_demo_takes_any_format(repository_root: Path, tmp_path: Path) -> None:
    data = repository_root / "tests" / "data" / "traces"
    (tmp_path / "own_size.jsonl").write_text('{"block_size": 16, "input_length": 33, "hash_ids": [1, 2, 3]}\n')
    for arguments in (
        ["own_size.jsonl"],
        [str(data / "vllm_outputs.jsonl")],
        [str(data / "lmsys.jsonl"), "--tokenizer", str(data / "words")],
    ):
        result = run_demo(repository_root, tmp_path, *arguments)
        assert result.returncode == 0, result.stderr
        assert re.search(r"token.hit.rate", result.stdout)


def test_demo_shows_times_where_only_lengths_are_known(repository_root: Path, tmp_path: Path) -> None:
    rows = "".join(f"2023-11-16 18:15:{second:02d}.0000000,{300 + second},{5}\n" for second in range(20))
    (tmp_path / "azure.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    result = run_demo(repository_root, tmp_path, "azure.csv")
    assert result.returncode == 0, result.stderr
    assert "queueing_seconds" in result.stdout
    assert json.loads((tmp_path / "report.json").read_text())["reuse"] == "unknown"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no-such-file.jsonl",), "cannot read the trace no-such-file.jsonl"),
        (("a", "b"), "give one trace, then options of trtkv replay, not b"),
        (("--capacity", "b"), "unknown option --capacity; see tools/demo.sh --help"),
        (("-x",), "unknown option -x"),
    ],
)
def test_demo_refuses_wrong_arguments_before_it_installs(tree: Tree, arguments: tuple[str, ...], message: str) -> None:
    result = tree.run("tools/demo.sh", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert tree.calls("-m") == []


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize(
    ("script", "usage"),
    [
        ("tools/demo.sh", "bash tools/demo.sh [TRACE [OPTION ...]]: "),
        ("tools/test.sh", "bash tools/test.sh [PYTEST ARGUMENTS]: "),
        ("tools/test_compiled.sh", "bash tools/test_compiled.sh [PYTEST ARGUMENTS]: "),
        ("tools/build_compiled.sh", "bash tools/build_compiled.sh FOLDER: "),
        (".ci/run", ".ci/run [PYTEST ARGUMENTS]: "),
    ],
)
def test_help_is_printed_and_nothing_else_done(tree: Tree, script: str, usage: str, option: str) -> None:
    result = tree.run(script, option)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(usage)
    assert "set -" not in result.stdout
    assert "#" not in result.stdout
    assert tree.calls("") == []
    assert not (tree.root / ".venv").exists()


@pytest.mark.parametrize("arguments", [(), ("--folder",), ("a", "b")])
def test_compiled_build_refuses_wrong_arguments_before_it_builds(tree: Tree, arguments: tuple[str, ...]) -> None:
    result = tree.run("tools/build_compiled.sh", *arguments)
    assert result.returncode == 2
    assert (
        result.stderr == "error: give the folder for the wheel, and nothing else; see tools/build_compiled.sh --help\n"
    )
    assert tree.calls("") == []


def test_demo_installs_no_torch(tree: Tree) -> None:
    result = tree.run("tools/demo.sh")
    assert result.returncode == 0, result.stderr
    assert tree.calls("-m pip") == ["-m pip install --quiet --editable ."]


def test_torch_is_installed_before_everything_else(tree: Tree) -> None:
    assert tree.run("tools/test.sh").returncode == 0
    assert tree.calls("-m pip") == [
        "-m pip install --quiet torch==2.13.0",
        "-m pip install --quiet --editable .[test]",
    ]


def test_all_checks_run_in_order_and_pytest_gets_the_arguments(tree: Tree) -> None:
    result = tree.run("tools/test.sh", "-k", "two words")
    assert result.returncode == 0, result.stderr
    assert tree.calls("-m ruff", "-m mypy", "tools", "-m tools", "-m pytest") == [
        "-m ruff check .",
        "-m ruff format --check .",
        "-m mypy --strict trtkv",
        "tools/check_layers.py",
        "-m tools.cpp_names --check",
        "-m pytest -n 2 -k two words",
    ]


@pytest.mark.parametrize("script", ["tools/test.sh", ".ci/run"])
@pytest.mark.parametrize("failing", ["ruff check", "ruff format", "mypy", "check_layers", "cpp_names", "-m pytest"])
def test_one_failing_step_fails_the_run_and_the_others_still_run(tree: Tree, script: str, failing: str) -> None:
    result = tree.run(script, FAKE_FAILS=failing)
    assert result.returncode == 1
    assert len(tree.calls("-m ruff", "-m mypy", "tools", "-m tools", "-m pytest")) == 6
    assert result.stderr.startswith("error: failed: ")


@pytest.mark.parametrize(
    ("failing", "code", "num_builds", "num_tests"), [("hatch-mypyc", 0, 0, 1), ("pip wheel", 1, 1, 1), ("", 0, 1, 2)]
)
def test_ci_goes_on_to_the_compiled_build_where_there_can_be_one(
    tree: Tree, failing: str, code: int, num_builds: int, num_tests: int
) -> None:
    result = tree.run(".ci/run", FAKE_FAILS=failing)
    assert result.returncode == code
    assert len(tree.calls("-m pip wheel")) == num_builds
    assert len(tree.calls("-m pytest")) == num_tests
    assert ("left out: " in result.stdout) == (not num_builds)


def test_second_run_installs_nothing(tree: Tree) -> None:
    tree.run("tools/demo.sh")
    assert tree.calls("-m venv", "-m pip") != []
    assert tree.run("tools/demo.sh").returncode == 0
    assert tree.calls("-m venv", "-m pip") == []


def test_changed_pyproject_installs_again_into_the_same_venv(tree: Tree) -> None:
    tree.run("tools/demo.sh")
    with (tree.root / "pyproject.toml").open("a") as stream:
        stream.write("# changed\n")
    assert tree.run("tools/demo.sh").returncode == 0
    assert tree.calls("-m venv", "-m pip") == ["-m pip install --quiet --editable ."]


def test_other_python_makes_the_venv_anew(tree: Tree) -> None:
    tree.run("tools/demo.sh")
    stale = tree.root / ".venv" / "bin" / "python"
    stale.write_text("#!/bin/bash\necho Python 3.10.1\n")
    (tree.root / ".venv" / ".ready-demo").unlink()
    assert tree.run("tools/demo.sh").returncode == 0
    assert len(tree.calls("-m venv")) == 1


def test_failed_install_is_not_taken_for_done(tree: Tree) -> None:
    result = tree.run("tools/demo.sh", FAKE_FAILS="pip install")
    assert result.returncode == 2
    assert "could not prepare .venv" in result.stderr
    assert tree.run("tools/demo.sh").returncode == 0
    assert tree.calls("-m pip") != []


def test_missing_venv_module_says_what_to_install(tree: Tree) -> None:
    result = tree.run("tools/test.sh", FAKE_ENSUREPIP_EXIT="1")
    assert result.returncode == 2
    assert "apt-get install python3-venv" in result.stderr


def test_missing_python_is_named(tree: Tree) -> None:
    result = tree.run("tools/test.sh", PYTHON="no-such-python")
    assert result.returncode == 2
    assert "no no-such-python found" in result.stderr


def test_compiled_build_is_tested_with_folders_that_exist(repository_root: Path) -> None:
    script = (repository_root / "tools" / "test_compiled.sh").read_text()
    listed = re.findall(r"tests/([\w.]+\.py|\{[\w,]+\})", script)
    names = [name for part in listed for name in part.strip("{}").split(",")]
    assert len(names) > 10
    assert [name for name in names if not (repository_root / "tests" / name).exists()] == []
