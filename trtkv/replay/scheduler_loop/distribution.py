"""Distribution: count, mean and percentiles of one quantity."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, fsum
from typing import Final

PERCENTILES: Final = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Distribution:
    """A quantity over many requests. Percentiles are values that occurred (nearest rank); None without values."""

    name: str
    definition: str
    count: int
    mean: float | None
    percentiles: tuple[float | None, ...]
    """Those of PERCENTILES."""
    most: float | None

    @classmethod
    def of(cls, name: str, definition: str, values: Iterable[float]) -> Distribution:
        """Measure values."""
        ordered = sorted(values)
        count = len(ordered)
        if not count:
            return cls(name, definition, 0, None, (None,) * len(PERCENTILES), None)
        ranks = [max(1, ceil(percent * count / 100)) for percent in PERCENTILES]
        percentiles = tuple(ordered[rank - 1] for rank in ranks)
        return cls(name, definition, count, fsum(ordered) / count, percentiles, ordered[-1])

    def to_json(self) -> dict[str, object]:
        """Name, definition, count, mean, percentiles, maximum, in this order."""
        percentiles = {f"p{percent}": value for percent, value in zip(PERCENTILES, self.percentiles, strict=True)}
        return {
            "name": self.name,
            "definition": self.definition,
            "count": self.count,
            "mean": self.mean,
            **percentiles,
            "max": self.most,
        }
