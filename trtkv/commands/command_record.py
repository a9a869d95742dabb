"""Commands whose arguments are the fields of a record: the code sees one typed value."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Collection
from dataclasses import MISSING, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import typer.models

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")


def as_command(record: type[Record], run: Callable[[Record], None]) -> Callable[..., None]:
    """A function with a keyword for each field, for Typer to read; it calls ``run`` with the record."""

    def command(**arguments: Any) -> None:
        run(record(**arguments))

    hints = get_type_hints(record, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    defaults = {
        field.name: inspect.Parameter.empty if field.default is MISSING else field.default for field in fields(record)
    }
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, keyword, default=value, annotation=hints[name]) for name, value in defaults.items()]
    )
    command.__annotations__ = hints
    command.__name__, command.__doc__, command.__module__ = run.__name__, run.__doc__, run.__module__
    return command


def command_line(program: str, options: DataclassInstance, *, without: Collection[str] = ()) -> str:
    """The command that gives these options: those that are not at their defaults, but ``without`` some."""
    hints = get_type_hints(type(options), include_extras=True)
    words = program.split()
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name in without or value == field.default:
            continue
        parameter = next(
            part for part in hints[field.name].__metadata__ if isinstance(part, typer.models.ParameterInfo)
        )
        # Typer takes the name of an annotated option for its default.
        name = parameter.default if isinstance(parameter.default, str) else f"--{field.name.replace('_', '-')}"
        for part in value if isinstance(value, list) else [value]:
            if isinstance(parameter, typer.models.OptionInfo):
                words.append(name)
            if part is not True:
                words.append(str(part.value if isinstance(part, Enum) else part))
    return shlex.join(words)
