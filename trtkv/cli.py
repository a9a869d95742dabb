"""Command line of trtkv: the list of commands, and the one place that turns errors into exit codes.

Exit codes: 0 all is well, 1 a comparison failed or a threshold was missed, 2 bad input.
Set ``TRTKV_TRACEBACK=1`` to see where an error came from.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Any, Final

import typer
import typer.core
import typer.main

from trtkv._version import __version__
from trtkv.errors import LogicError, TrtkvError

EXIT_BAD_INPUT: Final = 2

USAGE_ERROR: Final[type[Exception]] = typer.BadParameter.__mro__[1]
"""Base of what is raised for unknown commands and options, and for missing or wrong values."""

NO_COMMAND: Final = "NoArgsIsHelpError"
"""Name of the one whose message is the help text, as no command was given."""

COMMANDS: Final = {
    "replay": "trtkv.commands.replay:replay",
    "sweep": "trtkv.commands.sweep:sweep",
    "size": "trtkv.commands.size:size",
    "verify": "trtkv.commands.verify:verify",
    "trace": "trtkv.commands.trace:trace_app",
    "events": "trtkv.commands.events:events_app",
    "compare": "trtkv.commands.compare:compare",
    "reference": "trtkv.commands.reference:reference_app",
}
"""Command -> module and attribute: a function, or a Typer app with commands of its own.

A new command is one module in trtkv/commands/ and one line here; the help lists them in this order.
"""


class CommandGroup(typer.core.TyperGroup):
    """Imports a command's module only when the command is asked for, so that each starts fast."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands, in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, or None; imports its module on first use."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = load_command(cmd_name, COMMANDS[cmd_name])
        return self.commands.get(cmd_name)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command and exit; wrong usage, a TrtkvError or an unreadable file: one line on stderr and code 2."""
        try:
            sys.exit(super().main(*args, **{**kwargs, "standalone_mode": False}))
        except USAGE_ERROR as error:
            show_usage_error(error)
            sys.exit(EXIT_BAD_INPUT)
        except (TrtkvError, OSError) as error:
            if os.environ.get("TRTKV_TRACEBACK"):
                raise
            sys.stderr.write(f"error: {describe(error)}\n")
            sys.exit(EXIT_BAD_INPUT)


def show_usage_error(error: Any) -> None:
    """One line on standard error; or the help on standard output if no command was given."""
    if type(error).__name__ == NO_COMMAND:
        typer.echo(error.format_message())
    elif line := describe_usage(error):
        sys.stderr.write(f"error: {line}\n")


def load_command(name: str, target: str) -> Any:
    """The click command behind ``module:attribute``."""
    module, _, attribute = target.partition(":")
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        found.info.name = name
        group = typer.main.get_group(found)
        for command in group.commands.values():
            command.short_help = _summary(command.help)
        return group
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, short_help=_summary(found.__doc__))(found)
    return typer.main.get_command(single)


def _summary(text: str | None) -> str | None:
    """The first line, which lists of commands then wrap; without it they cut it."""
    return text.strip().splitlines()[0] if text else None


def describe_usage(error: Any) -> str:
    """What is wrong with a command line, on one line; empty when no command was given and the help was shown."""
    text = " ".join(error.format_message().split()).rstrip(".")
    return f"{text}; see {error.ctx.command_path} --help" if text and error.ctx else text


def describe(error: TrtkvError | OSError) -> str:
    """The error's text on one line; for a file, its name and what is wrong with it."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    text = " ".join(str(error).splitlines()) or type(error).__name__
    if isinstance(error, LogicError):
        return f"{text} (a bug of trtkv: run again with TRTKV_TRACEBACK=1 and report what it shows)"
    return text


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trtkv {__version__}")
        raise typer.Exit


# Plain help texts: in boxes the names of options are cut, and bracketed text such as a default is taken for markup.
app = typer.Typer(cls=CommandGroup, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """KV-cache block managers: replay traces, check hit rates, verify against recorded programs."""


def main() -> None:
    """Entry point of the ``trtkv`` program."""
    app(prog_name="trtkv")


if __name__ == "__main__":
    main()
