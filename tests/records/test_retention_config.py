"""Priorities and durations per token range, and what they mean for blocks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtkv.common import KvCacheTransferMode
from trtkv.errors import InvalidInputError, RetentionRangeError
from trtkv.records.retention_config import (
    DEFAULT_RETENTION_PRIORITY,
    NO_RETENTION,
    KvCacheRetentionConfig,
    RetentionPriorityAndDuration,
    TokenRangeRetentionConfig,
)


def config(*ranges: tuple[int, int | None, int, int | None]) -> KvCacheRetentionConfig:
    return KvCacheRetentionConfig([TokenRangeRetentionConfig(*entry) for entry in ranges])


def priorities(retention: KvCacheRetentionConfig, seq_len: int) -> list[int | None]:
    return [entry.retention_priority for entry in retention.get_per_block_retention_priority_duration(4, seq_len)]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ((0, 4, 50, None), [50, None, None]),
        ((0, 5, 50, None), [50, 50, None]),
        ((1, 8, 50, None), [None, 50, None]),
        ((4, 5, 50, None), [None, 50, None]),
        ((5, 8, 50, None), [None, None, None]),
        ((3, None, 50, None), [None, 50, 50]),
        ((8, 100, 50, None), [None, None, 50]),
        ((10, None, 50, None), [None, None, None]),
        ((50, 60, 50, None), [None, None, None]),
    ],
)
def test_block_has_the_range_that_contains_its_first_token(
    entry: tuple[int, int | None, int, int | None], expected: list[int | None]
) -> None:
    assert priorities(config(entry), 10) == expected


def test_touching_ranges_come_in_any_order() -> None:
    retention = config((8, None, 70, 9), (0, 8, 30, None))
    assert [entry.token_start for entry in retention.token_range_retention_configs] == [0, 8]
    assert retention.get_per_block_retention_priority_duration(4, 13) == [
        RetentionPriorityAndDuration(30, None),
        RetentionPriorityAndDuration(30, None),
        RetentionPriorityAndDuration(70, 9),
        RetentionPriorityAndDuration(70, 9),
    ]


def test_without_ranges_nothing_is_asked_for() -> None:
    assert KvCacheRetentionConfig().get_per_block_retention_priority_duration(4, 9) == [NO_RETENTION] * 3
    assert KvCacheRetentionConfig().get_per_block_retention_priority_duration(4, 0) == []


@settings(deadline=None)
@given(
    bounds=st.lists(st.integers(0, 40), min_size=2, max_size=8, unique=True).map(sorted),
    width=st.integers(1, 7),
    seq_len=st.integers(0, 40),
)
def test_blocks_agree_with_a_search_token_by_token(bounds: list[int], width: int, seq_len: int) -> None:
    ranges = [(start, end, start % 101, None) for start, end in zip(bounds[::2], bounds[1::2], strict=False)]
    found = config(*ranges).get_per_block_retention_priority_duration(width, seq_len)
    expected = [
        next((priority for start, end, priority, _ in ranges if start <= token < end), None)
        for token in range(0, seq_len, width)
    ]
    assert [entry.retention_priority for entry in found] == expected


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([(-1, 4, 50, None)], r"token range \[-1, 4\) has a negative index"),
        ([(0, -4, 50, None)], "has a negative index"),
        ([(4, 4, 50, None)], r"token range \[4, 4\) is empty"),
        ([(5, 4, 50, None)], "is empty"),
        ([(0, None, 50, None), (4, 8, 50, None)], "is open but not the last"),
        ([(0, 5, 50, None), (4, 8, 50, None)], r"token range \[0, 5\) overlaps the one starting at 4"),
    ],
)
def test_malformed_ranges_are_refused(ranges: list[tuple[int, int | None, int, int | None]], message: str) -> None:
    with pytest.raises(RetentionRangeError, match=message):
        config(*ranges)


@pytest.mark.parametrize("priority", [-1, 101])
def test_priorities_outside_0_to_100_are_refused(priority: int) -> None:
    with pytest.raises(InvalidInputError, match=f"priority of a token range is {priority}; give a value from 0 to 100"):
        TokenRangeRetentionConfig(0, 4, priority)
    with pytest.raises(InvalidInputError, match=f"decode_retention_priority is {priority}"):
        KvCacheRetentionConfig([], priority)


@pytest.mark.parametrize("priority", [0, 100])
def test_lowest_and_highest_priority_are_accepted(priority: int) -> None:
    assert TokenRangeRetentionConfig(0, 4, priority).priority == priority
    assert KvCacheRetentionConfig([], priority).decode_retention_priority == priority


def test_defaults_and_settings_are_kept() -> None:
    plain = KvCacheRetentionConfig()
    assert (plain.decode_retention_priority, plain.decode_duration_ms) == (DEFAULT_RETENTION_PRIORITY, None)
    assert (plain.transfer_mode, plain.directory) == (KvCacheTransferMode.DRAM, "")
    full = KvCacheRetentionConfig([], 7, 8, "GDS", "/tmp/x")  # type: ignore[arg-type]
    assert (full.decode_retention_priority, full.decode_duration_ms) == (7, 8)
    assert (full.transfer_mode, full.directory) == (KvCacheTransferMode.GDS, "/tmp/x")
