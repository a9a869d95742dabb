"""The comparison of recorded and given values."""

from __future__ import annotations

import pytest

from trtkv.verify.compare import ABSENT, Difference, find_difference


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -3, 2**63, "a", 0.4000000059604645, [], [1, 2], [[1], None], {}, {"a": {"b": [1, "x", None]}}],
)
def test_equal_values_have_no_difference(value: object) -> None:
    assert find_difference(value, value) is None


@pytest.mark.parametrize(
    ("expected", "got"),
    [(1, True), (True, 1), (0, False), (1, "1"), (None, 0), (1, 2), ([], {}), ({}, None), ("a", "b"), (False, 0.0)],
)
def test_other_type_or_value_is_a_difference(expected: object, got: object) -> None:
    assert find_difference(expected, got) == Difference("", expected, got)


def test_floats_are_compared_as_float32() -> None:
    assert find_difference(0.4000000059604645, 0.4) is None
    assert find_difference(1.0, 1) is None
    assert find_difference(1e300, 1.0) == Difference("", 1e300, 1.0)
    difference = find_difference(0.4000000059604645, 0.40000004)
    assert difference == Difference("", 0.4000000059604645, 0.40000004)


@pytest.mark.parametrize(
    ("expected", "got", "difference"),
    [
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, (".a[1].b", 2, 3)),
        ({"a": 1}, {}, (".a", 1, ABSENT)),
        ({}, {"a": 1}, (".a", ABSENT, 1)),
        ([1, 2], [1], ("[1]", 2, ABSENT)),
        ([1], [1, 2], ("[1]", ABSENT, 2)),
        ([1, 2, 3], [1, 5, 4], ("[1]", 2, 5)),
        ([1, 1], [1, True], ("[1]", 1, True)),
        ([True], [1], ("[0]", True, 1)),
    ],
)
def test_first_difference_is_named_by_its_path(
    expected: object, got: object, difference: tuple[str, object, object]
) -> None:
    found = find_difference(expected, got)
    assert found is not None
    assert tuple(found) == difference
    assert type(found.expected) is type(difference[1])
    assert type(found.got) is type(difference[2])
