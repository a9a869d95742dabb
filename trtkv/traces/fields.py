"""Checked access to the fields of a row; every complaint names the field and its value."""

from __future__ import annotations

from math import isfinite
from typing import Final

from trtkv.common import MAX_INT32
from trtkv.traces.rows import Row, RowFaultError

HashId = int | str

_MIN_HASH_ID: Final = -(2**63)
_MAX_HASH_ID: Final = 2**64 - 1


def value(row: Row, key: str, where: str = "") -> object:
    """The field; ``where`` is the path of the object that ``row`` is, for the complaint."""
    try:
        return row[key]
    except KeyError:
        raise RowFaultError(f"{where}{key} is missing") from None


def integer(row: Row, key: str, minimum: int, where: str = "", default: int | None = None) -> int:
    """An integer of at least ``minimum``; ``default``, if given, stands for an absent field."""
    if default is not None and key not in row:
        return default
    number = value(row, key, where)
    if type(number) is not int:
        raise RowFaultError(f"{where}{key} is {number!r:.80}, not an integer")
    if number < minimum:
        raise RowFaultError(f"{where}{key} is {number}, less than {minimum}")
    return number


def number(row: Row, key: str, where: str = "", default: float | None = None) -> float:
    """A number of at least 0; ``default``, if given, stands for an absent field."""
    if default is not None and key not in row:
        return default
    found = value(row, key, where)
    if (type(found) is not int and type(found) is not float) or not isfinite(found):
        raise RowFaultError(f"{where}{key} is {found!r:.80}, not a number")
    if found < 0:
        raise RowFaultError(f"{where}{key} is {found}, less than 0")
    return found


def text(row: Row, key: str, where: str = "") -> str:
    """A string."""
    found = value(row, key, where)
    if not isinstance(found, str):
        raise RowFaultError(f"{where}{key} is {found!r:.80}, not a string")
    return found


def items(row: Row, key: str, where: str = "") -> list[object]:
    """A list."""
    found = value(row, key, where)
    if not isinstance(found, list):
        raise RowFaultError(f"{where}{key} is {found!r:.80}, not a list")
    return found


def mapping(row: Row, key: str, where: str = "") -> Row:
    """An object."""
    return as_mapping(value(row, key, where), f"{where}{key}")


def as_mapping(found: object, name: str) -> Row:
    """``found`` itself if it is an object; ``name`` is what the complaint calls it."""
    if not isinstance(found, dict):
        raise RowFaultError(f"{name} is {found!r:.80}, not an object")
    return found


def check_total_length(input_length: int, output_length: int) -> None:
    """Prompt and output together have to fit 32 bits."""
    if input_length + output_length >= MAX_INT32:
        raise RowFaultError(f"{input_length} prompt and {output_length} output tokens do not fit 32 bits")


def hash_ids(row: Row, key: str, where: str = "") -> list[HashId]:
    """Block ids: integers of 64 bits or strings."""
    ids: list[HashId] = []
    for position, found in enumerate(items(row, key, where)):
        if isinstance(found, str):
            ids.append(found)
        elif type(found) is not int:
            raise RowFaultError(f"{where}{key}[{position}] is {found!r:.80}, neither an integer nor a string")
        elif not _MIN_HASH_ID <= found <= _MAX_HASH_ID:
            raise RowFaultError(f"{where}{key}[{position}] is {found}, which does not fit 64 bits")
        else:
            ids.append(found)
    return ids
