"""Retention: which blocks of a request are kept longer, and how their bytes travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from trtkv.checks import check_count, check_integer, check_member, check_type
from trtkv.common import KvCacheTransferMode, Priority, ceil_div
from trtkv.errors import RetentionRangeError

MIN_RETENTION_PRIORITY: Final = 0
MAX_RETENTION_PRIORITY: Final = 100
DEFAULT_RETENTION_PRIORITY: Final = 35
DEFAULT_SECONDARY_OFFLOAD_MIN_PRIORITY: Final = 30


class RetentionPriorityAndDuration(NamedTuple):
    """Priority and duration of one block; None where nothing was asked for."""

    retention_priority: Priority | None
    duration_ms: int | None


NO_RETENTION: Final = RetentionPriorityAndDuration(None, None)


def _check_priority(priority: int, what: str) -> None:
    check_integer(what, priority, MIN_RETENTION_PRIORITY, MAX_RETENTION_PRIORITY)


def _check_duration(duration_ms: int | None, what: str) -> None:
    if duration_ms is not None:
        check_integer(what, duration_ms, 0)


@dataclass(frozen=True, slots=True)
class TokenRangeRetentionConfig:
    """Priority for the tokens [token_start, token_end); token_end None means up to the end."""

    token_start: int
    token_end: int | None = None
    priority: Priority = DEFAULT_RETENTION_PRIORITY
    duration_ms: int | None = None

    def __post_init__(self) -> None:
        _check_priority(self.priority, "priority of a token range")
        _check_duration(self.duration_ms, "duration_ms of a token range")
        check_integer("token_start", self.token_start, error=RetentionRangeError)
        if self.token_end is not None:
            check_integer("token_end", self.token_end, error=RetentionRangeError)


class KvCacheRetentionConfig:
    """Priorities and durations of a request's blocks. C++: executor::KvCacheRetentionConfig.

    Ranges may come in any order and may touch, but not overlap; only the last may be open-ended.
    """

    __slots__ = (
        "_decode_duration_ms",
        "_decode_retention_priority",
        "_directory",
        "_token_range_retention_configs",
        "_transfer_mode",
    )

    def __init__(
        self,
        token_range_retention_configs: Sequence[TokenRangeRetentionConfig] = (),
        decode_retention_priority: Priority = DEFAULT_RETENTION_PRIORITY,
        decode_duration_ms: int | None = None,
        transfer_mode: KvCacheTransferMode = KvCacheTransferMode.DRAM,
        directory: str = "",
    ) -> None:
        _check_priority(decode_retention_priority, "decode_retention_priority")
        _check_duration(decode_duration_ms, "decode_duration_ms")
        for entry in token_range_retention_configs:
            check_type("an entry of token_range_retention_configs", entry, TokenRangeRetentionConfig)
        check_type("directory", directory, str)
        ranges = tuple(sorted(token_range_retention_configs, key=lambda r: r.token_start))
        _check_ranges(ranges)
        self._token_range_retention_configs = ranges
        self._decode_retention_priority = decode_retention_priority
        self._decode_duration_ms = decode_duration_ms
        self._transfer_mode = check_member("transfer_mode", transfer_mode, KvCacheTransferMode)
        self._directory = directory

    @property
    def token_range_retention_configs(self) -> tuple[TokenRangeRetentionConfig, ...]:
        """Ranges sorted by their first token."""
        return self._token_range_retention_configs

    @property
    def decode_retention_priority(self) -> Priority:
        """Priority of blocks allocated while generating."""
        return self._decode_retention_priority

    @property
    def decode_duration_ms(self) -> int | None:
        """Duration of that priority in milliseconds; None means it does not expire."""
        return self._decode_duration_ms

    @property
    def transfer_mode(self) -> KvCacheTransferMode:
        """How this request's blocks travel between levels."""
        return self._transfer_mode

    @property
    def directory(self) -> str:
        """Directory of the file modes; empty falls back to DRAM at context allocation."""
        return self._directory

    def get_per_block_retention_priority_duration(
        self, tokens_per_block: int, seq_len: int
    ) -> list[RetentionPriorityAndDuration]:
        """One entry per block of seq_len tokens: the range that contains the block's first token decides."""
        check_count("tokens_per_block", tokens_per_block, 1)
        check_count("seq_len", seq_len)
        result = [NO_RETENTION] * ceil_div(seq_len, tokens_per_block)
        for entry in self._token_range_retention_configs:
            first = ceil_div(entry.token_start, tokens_per_block)
            end = seq_len if entry.token_end is None else min(entry.token_end, seq_len)
            value = RetentionPriorityAndDuration(entry.priority, entry.duration_ms)
            for index in range(first, min(ceil_div(end, tokens_per_block), len(result))):
                result[index] = value
        return result


def _check_ranges(ranges: Sequence[TokenRangeRetentionConfig]) -> None:
    for index, entry in enumerate(ranges):
        start, end = entry.token_start, entry.token_end
        if start < 0 or (end is not None and end < 0):
            raise RetentionRangeError(f"token range [{start}, {end}) has a negative index; start at 0 or later")
        if end is None:
            if index + 1 < len(ranges):
                raise RetentionRangeError(f"token range [{start}, None) is open but not the last; give it an end")
        elif end <= start:
            raise RetentionRangeError(f"token range [{start}, {end}) is empty; the end must be after the start")
        elif index + 1 < len(ranges) and end > ranges[index + 1].token_start:
            raise RetentionRangeError(
                f"token range [{start}, {end}) overlaps the one starting at {ranges[index + 1].token_start}"
            )
