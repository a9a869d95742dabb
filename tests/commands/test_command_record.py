"""Options as a record: what a command line says, and which one says it."""

from __future__ import annotations

from dataclasses import fields

import typer
from typer.testing import CliRunner

from trtkv.commands.command_record import as_command, command_line
from trtkv.commands.replay_options import OUTPUT_FILES, SCHEDULER_ONLY, ReplayOptions, SchedulerChoice


def read(*arguments: str) -> ReplayOptions:
    found: list[ReplayOptions] = []
    app = typer.Typer()
    app.command()(as_command(ReplayOptions, found.append))
    outcome = CliRunner().invoke(app, list(arguments))
    assert outcome.exit_code == 0, outcome.output
    return found[0]


def test_defaults_are_those_of_the_record() -> None:
    assert read("t.jsonl") == ReplayOptions("t.jsonl")
    assert command_line("trtkv replay", ReplayOptions("t.jsonl")) == "trtkv replay t.jsonl"


def test_a_command_line_gives_the_same_options() -> None:
    arguments = ["my trace.jsonl", "--format", "tokens", "--live", "4", "--window", "64", "--window", "full"]
    arguments += ["--explain", "--scheduler", "max-utilization", "--json", "out.json"]
    options = read(*arguments)
    assert (options.live, options.window, options.scheduler) == (4, ["64", "full"], SchedulerChoice.MAX_UTILIZATION)
    written = command_line("trtkv replay", options, without=OUTPUT_FILES)
    assert written == (
        "trtkv replay 'my trace.jsonl' --format tokens --live 4 --window 64 --window full --scheduler max-utilization "
        "--explain"
    )


def test_groups_of_options_name_fields() -> None:
    assert {*OUTPUT_FILES, *SCHEDULER_ONLY} <= {field.name for field in fields(ReplayOptions)}
