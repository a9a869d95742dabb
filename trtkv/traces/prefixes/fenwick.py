"""FenwickTree: sums over ranges of numbers that change, each in logarithmic time."""

from __future__ import annotations

from trtkv.errors import InvalidInputError


class FenwickTree:
    """``size`` numbers, all 0 at first."""

    __slots__ = ("_sums",)

    def __init__(self, size: int) -> None:
        if size < 0:
            raise InvalidInputError(f"size is {size}; give 0 or more")
        self._sums = [0] * (size + 1)

    def add(self, position: int, amount: int) -> None:
        """Add to one number."""
        sums = self._sums
        position += 1
        while position < len(sums):
            sums[position] += amount
            position += position & -position

    def total(self, start: int, end: int) -> int:
        """Sum of the numbers at ``start``..``end`` - 1."""
        return self._before(end) - self._before(start)

    def _before(self, position: int) -> int:
        total = 0
        while position > 0:
            total += self._sums[position]
            position &= position - 1
        return total
