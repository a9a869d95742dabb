"""The program: its commands, its exit codes, its start."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner, Result

from trtkv import cli
from trtkv._version import __version__
from trtkv.errors import InvalidInputError, LogicError

sub_app = typer.Typer(help="Several commands.")


@sub_app.command()
def first(word: str) -> None:
    """The first."""
    typer.echo(f"first {word}")


@sub_app.command()
def second() -> None:
    """The second."""


def single(ending: Annotated[str, typer.Option()] = "well") -> None:
    """One command."""
    endings = {
        "mismatch": typer.Exit(1),
        "bad": InvalidInputError("tokens are -1\ngive 0 or more"),
        "bug": LogicError("block 3 is in two queues"),
        "full": OSError(28, "No space left on device"),
        "file": FileNotFoundError(2, "No such file or directory", "trace.jsonl"),
        "crash": ZeroDivisionError(),
    }
    if ending in endings:
        raise endings[ending]
    typer.echo("done")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("sample_commands")
    module.single, module.sub_app = single, sub_app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sample_commands", module)
    monkeypatch.setattr(cli, "COMMANDS", {"one": "sample_commands:single", "many": "sample_commands:sub_app"})


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments)


@pytest.mark.usefixtures("commands")
def test_help_lists_all_commands_in_order() -> None:
    output = run("--help").output
    assert output.index("One command.") < output.index("Several commands.")


@pytest.mark.usefixtures("commands")
def test_function_and_app_are_both_commands() -> None:
    assert run("one").output == "done\n"
    assert run("many", "first", "x").output == "first x\n"


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize(
    ("ending", "code", "stderr"),
    [
        ("well", 0, ""),
        ("mismatch", 1, ""),
        ("bad", 2, "error: tokens are -1 give 0 or more\n"),
        ("full", 2, "error: No space left on device\n"),
        ("file", 2, "error: trace.jsonl: No such file or directory\n"),
    ],
)
def test_exit_code_and_message(ending: str, code: int, stderr: str) -> None:
    result = run("one", "--ending", ending)
    assert (result.exit_code, result.stderr) == (code, stderr)


@pytest.mark.usefixtures("commands")
def test_bug_of_our_own_says_how_to_report_it() -> None:
    result = run("one", "--ending", "bug")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: block 3 is in two queues (a bug of trtkv")


@pytest.mark.usefixtures("commands")
def test_traceback_is_shown_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTKV_TRACEBACK", "1")
    assert isinstance(run("one", "--ending", "bad").exception, InvalidInputError)


@pytest.mark.usefixtures("commands")
def test_unexpected_errors_are_not_hidden() -> None:
    assert isinstance(run("one", "--ending", "crash").exception, ZeroDivisionError)


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize("arguments", [("three",), ("one", "--no-such-option"), ("many", "first")])
def test_wrong_usage_is_one_line_and_exits_with_2(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "--help" in result.stderr


@pytest.mark.usefixtures("commands")
def test_without_a_command_the_help_is_shown() -> None:
    result = run()
    assert (result.exit_code, result.stderr) == (2, "")
    assert "Several commands." in result.stdout


def test_version() -> None:
    assert run("--version").output == f"trtkv {__version__}\n"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_command_is_there_and_says_what_it_does(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert cli.load_command(name, cli.COMMANDS[name]).help


def test_help_loads_no_heavy_package(repository_root: Path) -> None:
    heavy = ["cupy", "matplotlib", "numba", "numpy", "torch", "xxhash"]
    program = (
        "import sys, trtkv.cli\n"
        "try:\n    trtkv.cli.app(['--help'])\n"
        f"finally:\n    print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=repository_root
    )
    assert result.stderr.strip() == "[]"


ALL_COMMANDS = (
    *[(name,) for name in cli.COMMANDS if name not in ("trace", "reference", "events")],
    *[("trace", name) for name in ("info", "generate")],
    *[("reference", name) for name in ("list", "check")],
)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("command", [(), ("trace",), ("reference",), ("events",), *ALL_COMMANDS])
def test_help_is_whole_at_every_width(command: tuple[str, ...], width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    output = run(*command, "--help").output
    parsed: Any = typer.main.get_command(cli.app)
    for name in command:
        parsed = parsed.get_command(typer.Context(parsed), name)
    letters = "".join(output.split())  # as lines end behind hyphens too
    for parameter in parsed.params:
        if parameter.opts[0].startswith("--"):
            assert all(re.search(rf"(?m)(^|[ ,]){option}(,| |$)", output) for option in parameter.opts)
            assert "".join((parameter.help or "").split()) in letters  # text in brackets included
    assert not re.search(r"[a-z,]\.\.\.", output)  # a text that was cut
    assert "…" not in output
    if width == 80:
        assert max(map(len, output.splitlines())) <= 80
