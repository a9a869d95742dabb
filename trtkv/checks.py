"""Checks of arguments: what is no whole number, out of range or no known name raises, with its value."""

from __future__ import annotations

from enum import Enum
from math import isfinite
from operator import index
from typing import SupportsIndex, TypeVar

from trtkv.common import MAX_INT32
from trtkv.errors import InvalidInputError

Member = TypeVar("Member", bound=Enum)


def check_integer(
    name: str,
    value: object,
    least: int | None = None,
    most: int | None = None,
    *,
    error: type[InvalidInputError] = InvalidInputError,
) -> int:
    """The value as an int; raises ``error`` unless it is a whole number (numpy's too, bool not) from least to most."""
    if type(value) is int:
        number = value
    elif isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise error(f"{name} is {value!r:.200}; give a whole number")
    else:
        number = index(value)
    if (least is not None and number < least) or (most is not None and number > most):
        raise error(f"{name} is {number}; give {_range(number, least, most)}")
    return number


def check_count(name: str, value: object, least: int = 0, *, error: type[InvalidInputError] = InvalidInputError) -> int:
    """A number of tokens, blocks and the like, of 32 bits."""
    return check_integer(name, value, least, MAX_INT32, error=error)


def check_number(
    name: str, value: object, above: float, *, error: type[InvalidInputError] = InvalidInputError
) -> float:
    """The value as a float; raises ``error`` unless it is a finite number above ``above``."""
    if isinstance(value, bool | str | bytes):
        raise error(f"{name} is {value!r:.200}; give a number above {above}")
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise error(f"{name} is {value!r:.200}; give a number above {above}") from None
    if not isfinite(number) or number <= above:
        raise error(f"{name} is {value!r:.200}; give a number above {above}")
    return number


def check_member(
    name: str, value: object, kind: type[Member], *, error: type[InvalidInputError] = InvalidInputError
) -> Member:
    """The member of an enumeration, given by itself or by its value."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(str(member.value) for member in kind)
        raise error(f"{name} is {value!r:.200}, no {kind.__name__}; give one of {known}") from None


def check_type(name: str, value: object, *kinds: type, error: type[InvalidInputError] = InvalidInputError) -> None:
    """Raise ``error`` unless the value is of one of these types."""
    if not isinstance(value, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise error(f"{name} is {value!r:.200}, of type {type(value).__name__}; give {wanted}")


def refuse_bytes(name: str, values: object) -> None:
    """Raise InvalidInputError for bytes, which an array would take for the memory of its numbers."""
    if isinstance(values, bytes | bytearray):
        raise InvalidInputError(f"{name} are {values!r:.80}; give integers, not bytes")


def _range(number: int, least: int | None, most: int | None) -> str:
    if least is not None and most is not None and most < MAX_INT32:
        return f"a value from {least} to {most}"
    return f"at least {least}" if least is not None and number < least else f"at most {most}"
