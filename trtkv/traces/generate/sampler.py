"""Sampler: random lengths, times and choices drawn from one stream of uniform numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import cos, exp, log, pi, sqrt
from random import Random


class Sampler:
    """Draws from ``random.Random.random`` only, the one method whose sequence Python keeps between versions."""

    def __init__(self, rng: Random) -> None:
        self._uniform = rng.random

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._uniform() < probability

    def exponential(self, mean: float) -> float:
        """Time to the next of events that come independently, ``mean`` apart on average."""
        return -mean * log(1.0 - self._uniform())

    def lognormal(self, median: float, sigma: float, least: float, most: float) -> float:
        """A long-tailed size around ``median``, cut to [least, most]; ``sigma`` is the spread of its logarithm."""
        normal = sqrt(-2.0 * log(1.0 - self._uniform())) * cos(2.0 * pi * self._uniform())
        return min(max(median * exp(sigma * normal), least), most)

    def length(self, median: float, sigma: float, least: int, most: int) -> int:
        """A lognormal number of tokens."""
        return round(self.lognormal(median, sigma, least, most))

    def geometric(self, mean: float) -> int:
        """Number of rounds, at least 1, when each is the last one with probability 1 / mean."""
        count = 1
        while not self.chance(1.0 / mean):
            count += 1
        return count

    def index(self, cumulative_weights: Sequence[float]) -> int:
        """A position, chosen by weights given as running sums."""
        position = bisect_right(cumulative_weights, self._uniform() * cumulative_weights[-1])
        return min(position, len(cumulative_weights) - 1)


def zipf_weights(count: int, exponent: float) -> list[float]:
    """Running sums of rank ** -exponent for ranks 1 to ``count``: few things popular, many rare."""
    return list(accumulate((rank + 1) ** -exponent for rank in range(count)))
