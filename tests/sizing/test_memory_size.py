"""Amounts of memory: units are taken at their word."""

from __future__ import annotations

import pytest

from trtkv.errors import InvalidInputError
from trtkv.sizing.memory_size import parse_memory_size
from trtkv.tables.wording import memory_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("40GiB", 40 * 2**30),
        ("40GB", 40 * 10**9),
        ("1.5TiB", 3 * 2**39),
        ("0.1GiB", 107_374_182),
        (" 512 MiB ", 2**29),
        ("7KB", 7000),
        ("7KiB", 7168),
        ("123B", 123),
        ("0", 0),
        ("0.0", 0),
    ],
)
def test_amounts(text: str, num_bytes: int) -> None:
    assert parse_memory_size(text) == num_bytes


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("40", "--memory is '40' without a unit; write one, such as 40GiB or 40GB"),
        ("40G", r"--memory is '40G', whose unit is unknown; write GiB \(1,073,741,824 bytes\) or GB \(1,000,000,000"),
        ("40gib", r"'40gib', whose unit is unknown; write GiB"),
        ("40Gb", r"'40Gb', whose unit is unknown; write GiB"),
        ("40KB/s", "'40KB/s'; give a number and a unit"),
        ("40 parsecs", "'40 parsecs', whose unit is unknown; known are B, KB"),
        ("-1GiB", "'-1GiB'; give a number and a unit, such as 40GiB"),
        ("1e3GiB", "'1e3GiB'"),
        ("1,5GiB", "'1,5GiB'"),
        ("inf", "'inf'"),
        ("", "''"),
        ("٤GiB", "give a number and a unit"),
    ],
)
def test_what_is_no_amount_is_refused_with_its_text(text: str, told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        parse_memory_size(text, "--memory")


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.000 KiB"), (3 * 2**29, "1.500 GiB"), (5000 * 2**40, "5,000.000 TiB")],
)
def test_bytes_are_shown_in_binary_units(num_bytes: int, text: str) -> None:
    assert memory_size(num_bytes) == text
