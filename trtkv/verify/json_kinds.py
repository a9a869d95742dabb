"""Kinds of JSON values that arguments of an op may have; each one refuses others with the place and the reason."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeAlias

JsonValue: TypeAlias = Any
Args: TypeAlias = Mapping[str, JsonValue]
Kind: TypeAlias = Callable[[JsonValue], None]
"""Raises KindError unless the value is of the kind."""

MAX_UINT64: Final = 2**64 - 1
_HEX_DIGITS: Final = frozenset("0123456789abcdef")


class KindError(Exception):
    """A value is not of its kind; ``path`` says where inside the checked value."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path.lstrip('.')} {reason}".lstrip())
        self.path = path
        self.reason = reason


def _scalar(python_type: type, name: str) -> Kind:
    def check_kind(value: JsonValue) -> None:
        if type(value) is not python_type:
            raise KindError("", f"is {_shorten(value)}; {name} is needed")

    return check_kind


def _shorten(value: JsonValue) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


INT: Final = _scalar(int, "an integer")
BOOL: Final = _scalar(bool, "true or false")
STR: Final = _scalar(str, "a string")


def uint64(value: JsonValue) -> None:
    """A 64-bit number that is not negative."""
    if type(value) is not int or not 0 <= value <= MAX_UINT64:
        raise KindError("", f"is {_shorten(value)}; an integer from 0 to 2**64 - 1 is needed")


def hash_text(value: JsonValue) -> None:
    """A 64-bit hash as up to 16 lower-case hex digits."""
    _check_hex(value, 1, 16)


def content_hash_text(value: JsonValue) -> None:
    """A 256-bit hash as 64 lower-case hex digits."""
    _check_hex(value, 64, 64)


def _check_hex(value: JsonValue, min_digits: int, max_digits: int) -> None:
    is_hex = type(value) is str and min_digits <= len(value) <= max_digits and _HEX_DIGITS.issuperset(value)
    if not is_hex:
        digits = f"{max_digits}" if min_digits == max_digits else f"{min_digits} to {max_digits}"
        raise KindError("", f"is {_shorten(value)}; {digits} lower-case hex digits are needed")


def choice(names: Collection[str]) -> Kind:
    """One of some names."""
    allowed = frozenset(names)

    def check_kind(value: JsonValue) -> None:
        if type(value) is not str or value not in allowed:
            raise KindError("", f"is {_shorten(value)}; use one of {', '.join(sorted(allowed))}")

    return check_kind


def nullable(kind: Kind) -> Kind:
    """The kind, or null."""

    def check_kind(value: JsonValue) -> None:
        if value is not None:
            kind(value)

    return check_kind


def list_of(kind: Kind) -> Kind:
    """A list whose items are all of one kind."""

    def check_kind(value: JsonValue) -> None:
        if type(value) is not list:
            raise KindError("", f"is {_shorten(value)}; a list is needed")
        if kind is INT and set(map(type, value)) <= {int}:  # token lists: one pass in C
            return
        for index, item in enumerate(value):
            _check_inner(kind, item, f"[{index}]")

    return check_kind


def tuple_of(*kinds: Kind) -> Kind:
    """A list of fixed length with one kind per position."""

    def check_kind(value: JsonValue) -> None:
        if type(value) is not list or len(value) != len(kinds):
            raise KindError("", f"is {_shorten(value)}; a list of {len(kinds)} entries is needed")
        for index, (kind, item) in enumerate(zip(kinds, value, strict=True)):
            _check_inner(kind, item, f"[{index}]")

    return check_kind


def by_number(kind: Kind) -> Kind:
    """An object whose keys are decimal numbers in strings (windows, tasks)."""

    def check_kind(value: JsonValue) -> None:
        if type(value) is not dict:
            raise KindError("", f"is {_shorten(value)}; an object is needed")
        for key, item in value.items():
            if not key.removeprefix("-").isdecimal():
                raise KindError("", f"has the key {key!r}; keys are numbers in strings")
            _check_inner(kind, item, f".{key}")

    return check_kind


def record(required: Mapping[str, Kind], optional: Mapping[str, Kind] | None = None) -> Kind:
    """An object with these fields and no others."""
    fields = {**required, **(optional or {})}

    def check_kind(value: JsonValue) -> None:
        if type(value) is not dict:
            raise KindError("", f"is {_shorten(value)}; an object is needed")
        for name, item in value.items():
            kind = fields.get(name)
            if kind is None:
                raise KindError(f".{name}", f"is not known here; the fields are {', '.join(sorted(fields)) or 'none'}")
            _check_inner(kind, item, f".{name}")
        for name in required:
            if name not in value:
                raise KindError(f".{name}", "is missing")

    return check_kind


def _check_inner(kind: Kind, item: JsonValue, step: str) -> None:
    try:
        kind(item)
    except KindError as error:
        raise KindError(step + error.path, error.reason) from None


INTS: Final = list_of(INT)
