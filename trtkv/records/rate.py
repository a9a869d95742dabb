"""Rate: a ratio that says what it is."""

from __future__ import annotations

from typing import NamedTuple


class Rate(NamedTuple):
    """A ratio that says what it is."""

    name: str
    definition: str
    numerator: float
    """An int wherever it is a count."""
    denominator: float
    """An int wherever it is a count."""

    @property
    def value(self) -> float | None:
        """The ratio; None when there is nothing to divide by."""
        return self.numerator / self.denominator if self.denominator else None

    def to_json(self) -> dict[str, object]:
        """Name, definition, numerator, denominator and value, in this order."""
        return {**self._asdict(), "value": self.value}
