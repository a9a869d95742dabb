"""A clock for tests: it stands still but for what a test says, and ticks a little at each reading."""

from __future__ import annotations


class FakeClock:
    """Nanoseconds since some moment, as ``time.monotonic_ns`` gives them.

    Each reading moves it on by ``tick_ns`` (so that no two blocks expire together, as in the recorded programs).
    """

    def __init__(self, start_ms: int = 1000, tick_ns: int = 1) -> None:
        self.now_ns = start_ms * 1_000_000
        self.tick_ns = tick_ns

    def __call__(self) -> int:
        self.now_ns += self.tick_ns
        return self.now_ns

    def advance_ms(self, milliseconds: int) -> None:
        self.now_ns += milliseconds * 1_000_000
