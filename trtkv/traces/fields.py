"""Checked access to the fields of a row; every complaint names the field and its value."""

from __future__ import annotations

import re
from array import array
from datetime import datetime, timezone
from math import isfinite
from typing import Final, cast

from trtkv.common import MAX_INT32
from trtkv.traces.rows import Row, RowFaultError
from trtkv.traces.trace import KeyConstraints

HashId = int | str

_MIN_HASH_ID: Final = -(2**63)
_MAX_HASH_ID: Final = 2**64 - 1
_FRACTION: Final = re.compile(r"\.(\d+)")


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


def seconds(row: Row, key: str, where: str = "", default: float | None = None) -> float | None:
    """Seconds, from a number or from a date and time, which is UTC unless it names its zone; ``default`` if absent."""
    if key not in row:
        return default
    found = row[key]
    if isinstance(found, datetime):
        return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
    return seconds_of(found, f"{where}{key}") if isinstance(found, str) else number(row, key, where)


def seconds_of(written: str, name: str) -> float:
    """Seconds that a text says as a number or as a date and time; ``name`` is what the complaint calls it."""
    written = written.strip()
    try:
        return number({name: float(written)}, name)
    except ValueError:
        pass
    # Seven digits of a second are one more than datetime takes.
    shortened = _FRACTION.sub(lambda match: "." + match.group(1)[:6].ljust(6, "0"), written)
    if shortened.endswith(("Z", "z")):
        shortened = shortened[:-1] + "+00:00"
    try:
        moment = datetime.fromisoformat(shortened)
    except ValueError:
        raise RowFaultError(f"{name} is {written!r:.80}, neither seconds nor a date and time") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def name(row: Row, key: str, where: str = "") -> str | None:
    """A name, which may be a number; None if it is absent or null."""
    found = row.get(key)
    if found is None or isinstance(found, str):
        return found
    if type(found) is not int:
        raise RowFaultError(f"{where}{key} is {found!r:.80}, neither a string nor an integer")
    return str(found)


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


def lengths(row: Row, input_key: str, output_key: str, default_output: int | None = None) -> tuple[int, int]:
    """Prompt tokens, at least 1, and output tokens, which together have to fit 32 bits."""
    input_length, output_length = integer(row, input_key, 1), integer(row, output_key, 0, default=default_output)
    check_total_length(input_length, output_length)
    return input_length, output_length


def check_total_length(input_length: int, output_length: int) -> None:
    """Prompt and output together have to fit 32 bits."""
    if input_length + output_length >= MAX_INT32:
        raise RowFaultError(f"{input_length} prompt and {output_length} output tokens do not fit 32 bits")


def hash_ids(row: Row, key: str, where: str = "") -> list[HashId]:
    """Block ids: integers of 64 bits or strings."""
    ids = items(row, key, where)
    if set(map(type, ids)) <= {int, str}:  # in one step for all: rows of long prompts have hundreds
        numbers = [found for found in ids if isinstance(found, int)]
        if not numbers or (min(numbers) >= _MIN_HASH_ID and max(numbers) <= _MAX_HASH_ID):
            return cast("list[HashId]", ids)
    for position, found in enumerate(ids):
        if type(found) is int and not _MIN_HASH_ID <= found <= _MAX_HASH_ID:
            raise RowFaultError(f"{where}{key}[{position}] is {found}, which does not fit 64 bits")
        if type(found) is not int and not isinstance(found, str):
            raise RowFaultError(f"{where}{key}[{position}] is {found!r:.80}, neither an integer nor a string")
    return cast("list[HashId]", ids)


def token_ids(row: Row, key: str, length: int | None = None, length_key: str = "", where: str = "") -> array[int]:
    """Tokens, each from 0 to 2^31 - 1; as many as ``length`` says, which the row states under ``length_key``."""
    tokens = items(row, key, where)
    if length is not None and len(tokens) != length:
        raise RowFaultError(f"{where}{key} holds {len(tokens)} tokens, but {length_key} is {length}")
    try:
        if set(map(type, tokens)) <= {int}:
            result = array("i", cast("list[int]", tokens))
            if not result or min(result) >= 0:
                return result
    except OverflowError:
        pass
    position = next(i for i, found in enumerate(tokens) if type(found) is not int or not 0 <= found <= MAX_INT32)
    raise RowFaultError(f"{where}{key}[{position}] is {tokens[position]!r:.80}, not an integer from 0 to {MAX_INT32}")


def key_constraints(row: Row) -> KeyConstraints | None:
    """Salt and LoRA id of a row; null is as good as absent."""
    salt, lora_task_id = row.get("cache_salt"), row.get("lora_task_id")
    if salt is not None and not isinstance(salt, str):
        raise RowFaultError(f"cache_salt is {salt!r:.80}, not a string")
    if lora_task_id is not None:
        lora_task_id = integer(row, "lora_task_id", 0)
    return None if salt is None and lora_task_id is None else KeyConstraints(salt, lora_task_id)
