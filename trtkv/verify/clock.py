"""VirtualClock: the clock of recorded programs, which moves by command and by 1 ns at each reading."""

from __future__ import annotations

from typing import Final

NS_PER_MS: Final = 1_000_000


class VirtualClock:
    """A callable clock in nanoseconds. Two readings never give the same time, so no two expiries are equal."""

    __slots__ = ("_now_ns",)

    def __init__(self, start_ms: int) -> None:
        self._now_ns = start_ms * NS_PER_MS

    def __call__(self) -> int:
        """The time in nanoseconds; moves the clock on by 1 ns."""
        self._now_ns += 1
        return self._now_ns

    def advance_ms(self, milliseconds: int) -> None:
        """Move the clock."""
        self._now_ns += milliseconds * NS_PER_MS
