"""The grid of a sweep: every combination of the values given, in a fixed order."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Final, TypeAlias

from trtkv.errors import InvalidInputError

Configuration: TypeAlias = "dict[str, str]"
"""Option name with underscores -> value as it was written."""

LIST_SEPARATOR: Final = "+"
"""Stands between the entries of one value of an option that may be repeated."""

_UNESCAPED_COMMA: Final = re.compile(r"(?<!\\),")


def parse_settings(texts: Iterable[str], known: Collection[str]) -> dict[str, list[str]]:
    """``name=value,value,...`` texts as values by option name, in the order given.

    Hyphens and underscores of a name are the same. A comma that belongs to a value is written ``\\,``. Raises
    InvalidInputError for a text without values, a name that is not known, and a name given twice.
    """
    settings: dict[str, list[str]] = {}
    for text in texts:
        written, found, values = text.partition("=")
        name = written.strip().lstrip("-").replace("-", "_")
        if not found or not values.strip():
            raise InvalidInputError(f"setting {text!r} has no value; write NAME=VALUE or NAME=VALUE,VALUE,...")
        if name not in known:
            raise InvalidInputError(
                f"setting {text!r}: there is no option {written.strip()!r}; known are {_list(known)}"
            )
        if name in settings:
            raise InvalidInputError(f"{name} is set twice; give all its values in one setting")
        settings[name] = [value.strip().replace("\\,", ",") for value in _UNESCAPED_COMMA.split(values)]
    return settings


def expand_grid(settings: Mapping[str, Sequence[str]]) -> list[Configuration]:
    """One configuration per combination; the first name varies slowest, the last fastest."""
    return [dict(zip(settings, values, strict=True)) for values in product(*settings.values())]


def describe(configuration: Mapping[str, str]) -> str:
    """A configuration on one line."""
    return " ".join(f"{name}={value}" for name, value in configuration.items())


def _list(names: Collection[str]) -> str:
    return ", ".join(sorted(name.replace("_", "-") for name in names))
