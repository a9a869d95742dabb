"""Checks of arguments: what is no whole number, out of range or no known name raises, with its value."""

from __future__ import annotations

from enum import Enum
from math import inf, isfinite, nan
from operator import index
from typing import SupportsFloat, SupportsIndex, TypeVar

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
    name: str,
    value: object,
    least: float,
    *,
    inclusive: bool = False,
    error: type[InvalidInputError] = InvalidInputError,
) -> float:
    """The value as a float; raises ``error`` unless it is finite and above ``least``, or equal if ``inclusive``."""
    number = nan
    if isinstance(value, SupportsFloat) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = inf
    if not isfinite(number) or number < least or (number == least and not inclusive):
        raise error(f"{name} is {value!r:.200}; give a number {'of at least' if inclusive else 'above'} {least:g}")
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
