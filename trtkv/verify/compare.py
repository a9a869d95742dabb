"""Comparison of recorded and given values: exact, and by type; floats as float32."""

from __future__ import annotations

from typing import Final, NamedTuple

from trtkv.verify.json_kinds import JsonValue
from trtkv.verify.trace_values import to_float32

ABSENT: Final = "(absent)"
"""Stands for a field or list entry that one side does not have."""

_INT_ONLY: Final = frozenset({int})


class Difference(NamedTuple):
    """The first place where two values differ; ``path`` is relative to the compared values."""

    path: str
    expected: JsonValue
    got: JsonValue


def find_difference(expected: JsonValue, got: JsonValue) -> Difference | None:
    """The first difference in the order of the recorded value, or None. True is not 1, and 1 is not "1"."""
    kind = type(expected)
    if kind is dict:
        return _compare_objects(expected, got) if type(got) is dict else Difference("", expected, got)
    if kind is list:
        return _compare_lists(expected, got) if isinstance(got, list) else Difference("", expected, got)
    if kind is float or type(got) is float:
        return None if _is_same_float(expected, got) else Difference("", expected, got)
    return None if type(got) is kind and expected == got else Difference("", expected, got)


def _compare_objects(expected: dict[str, JsonValue], got: dict[str, JsonValue]) -> Difference | None:
    for name, value in expected.items():
        if name not in got:
            return Difference(f".{name}", value, ABSENT)
        difference = find_difference(value, got[name])
        if difference is not None:
            return difference._replace(path=f".{name}{difference.path}")
    for name, value in got.items():
        if name not in expected:
            return Difference(f".{name}", ABSENT, value)
    return None


def _compare_lists(expected: list[JsonValue], got: list[JsonValue]) -> Difference | None:
    if expected == got and _INT_ONLY.issuperset(map(type, got)) and _INT_ONLY.issuperset(map(type, expected)):
        return None  # most lists hold block ids only: compared without a call per entry
    for index, (left, right) in enumerate(zip(expected, got, strict=False)):
        difference = find_difference(left, right)
        if difference is not None:
            return difference._replace(path=f"[{index}]{difference.path}")
    common = min(len(expected), len(got))
    if len(expected) > common:
        return Difference(f"[{common}]", expected[common], ABSENT)
    if len(got) > common:
        return Difference(f"[{common}]", ABSENT, got[common])
    return None


def _is_same_float(expected: JsonValue, got: JsonValue) -> bool:
    if type(expected) not in (int, float) or type(got) not in (int, float):
        return False
    return to_float32(expected) == to_float32(got)
