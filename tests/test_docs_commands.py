"""The commands and the Python of README.md and docs/ work as written.

In a fenced block ``console`` every line that starts with ``$`` is a command, in ``bash`` every line. The commands of a
page run one after the other in one empty folder, and must succeed; then its Python blocks run there as one program.
A block that another test runs has the line ``<!-- run by tests/FILE.py::TEST -->`` right above it.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from trtkv import cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(
    r"^(?:<!-- run by (?P<test>\S+) -->\n)?```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    """One fenced block."""

    language: str
    body: str
    run_by: str | None

    def commands(self) -> list[str]:
        lines = self.body.replace("\\\n", " ").splitlines()
        if self.language == "console":
            return [line[1:].strip() for line in lines if line.startswith("$")]
        if self.language in ("bash", "sh"):
            return [line for line in lines if line.strip() and not line.startswith("#")]
        return []


def read_blocks(text: str) -> list[Block]:
    return [Block(m["language"], m["body"], m["test"]) for m in BLOCK.finditer(text)]


def pages_with(*languages: str) -> list[Path]:
    return [
        page for page in PAGES if any(block.language in languages for block in read_blocks(page.read_text("utf-8")))
    ]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def write_program(folder: Path, name: str, *command: str) -> None:
    path = folder / name
    path.write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment in which ``trtkv`` and ``python`` are those of this checkout."""
    programs = tmp_path_factory.mktemp("bin")
    write_program(programs, "trtkv", sys.executable, "-m", "trtkv")
    write_program(programs, "python", sys.executable)
    path = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}


def run_commands(blocks: list[Block], environment: dict[str, str], folder: Path) -> None:
    for command in [command for block in blocks for command in block.commands()]:
        result = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        assert result.returncode == 0, f"$ {command}\n{result.stdout}{result.stderr}"


def run_python(blocks: list[Block], environment: dict[str, str], folder: Path) -> None:
    program = "\n".join(block.body for block in blocks if block.language == "python")
    result = subprocess.run(
        [sys.executable, "-"],
        input=program,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", pages_with("console", "bash", "sh", "python"), ids=name_of)
def test_commands_and_python_of_a_page_work(page: Path, environment: dict[str, str], tmp_path: Path) -> None:
    blocks = [block for block in read_blocks(page.read_text(encoding="utf-8")) if not block.run_by]
    run_commands(blocks, environment, tmp_path)
    run_python(blocks, environment, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_test_that_is_said_to_run_a_block_exists(page: Path) -> None:
    for block in read_blocks(page.read_text(encoding="utf-8")):
        if block.run_by:
            file, _, test = block.run_by.partition("::")
            assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), block.run_by


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_readme_lists_every_command() -> None:
    rows = re.findall(r"^\| `trtkv (\w+)` \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(cli.COMMANDS)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")), ids=lambda page: page.stem)
def test_decision_has_the_form_of_the_others(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.fullmatch(r"\d{4}-[a-z0-9-]+", page.stem)
    assert text.startswith(f"# {page.stem[:4]}: ")
    assert "\n**Decision.** " in text


def test_numbers_of_decisions_are_unique() -> None:
    numbers = [page.name[:4] for page in (ROOT / "docs" / "decisions").glob("[0-9]*.md")]
    assert sorted(numbers) == sorted(set(numbers))


PAGE = """# Title
```console
$ trtkv replay a \\
    b
output
$ echo two
```
<!-- run by tests/test_x.py::test_y -->
```bash
# a remark
tools/demo.sh
```
```python
x = 1
```
"""


def test_commands_are_found_in_blocks() -> None:
    console, bash, python = read_blocks(PAGE)
    assert [" ".join(command.split()) for command in console.commands()] == ["trtkv replay a b", "echo two"]
    assert bash.commands() == ["tools/demo.sh"]
    assert bash.run_by == "tests/test_x.py::test_y"
    assert python.commands() == []


def test_failing_command_is_noticed(environment: dict[str, str], tmp_path: Path) -> None:
    blocks = read_blocks("```console\n$ trtkv --version\n$ trtkv --no-such-option\n```\n")
    with pytest.raises(AssertionError, match="--no-such-option"):
        run_commands(blocks, environment, tmp_path)


def test_failing_python_is_noticed(environment: dict[str, str], tmp_path: Path) -> None:
    blocks = read_blocks("```python\nimport trtkv\n```\n\n```python\ntrtkv.no_such_name\n```\n")
    with pytest.raises(AssertionError, match="no_such_name"):
        run_python(blocks, environment, tmp_path)
