"""Amounts of memory as people write them: 40GiB, 1.5TB, 512MiB. Binary and decimal units are never mixed up."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from trtkv.checks import check_type
from trtkv.errors import InvalidInputError

UNITS: Final = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
"""Bytes of each unit; letters count as they are written, since a Gb is no GB."""

_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", re.ASCII)


def parse_memory_size(text: str, name: str = "memory") -> int:
    """Bytes of an amount, a part of a byte dropped; ``name`` is what a complaint calls it.

    Raises InvalidInputError without a unit (0 needs none), for an unknown unit, and for anything but a number.
    """
    check_type(name, text, str)
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise InvalidInputError(f"{name} is {text!r}; give a number and a unit, such as 40GiB")
    number, unit = match.groups()
    if not unit and Fraction(number):
        raise InvalidInputError(f"{name} is {text!r} without a unit; write one, such as {number}GiB or {number}GB")
    if unit and unit not in UNITS:
        raise InvalidInputError(f"{name} is {text!r}, whose unit is unknown; {_advice(unit)}")
    return int(Fraction(number) * UNITS.get(unit, 1))


def _advice(unit: str) -> str:
    first = unit[0].upper()
    if first in "KMGT" and len(unit) <= 3:
        decimal, binary = f"{first}B", f"{first}iB"
        return f"write {binary} ({UNITS[binary]:,} bytes) or {decimal} ({UNITS[decimal]:,} bytes)"
    return f"known are {', '.join(UNITS)}"
