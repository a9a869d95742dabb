"""Prefix cache with a bound on load. Source: AIBrix, gateway/algorithms/prefix_cache.go."""

from __future__ import annotations

from random import Random
from statistics import fmean, pstdev

from trtkv.fleet.router import FleetView, RoutedRequest, Router, found_by, loads_of


class AibrixRouter(Router):
    """The longest match whose load is at most mean + ``factor`` x standard deviation; of equals the less loaded one.

    A replica among the least loaded, drawn, if loads differ by more than ``abs``, or if no match is within the bound.
    """

    looks_into_caches = True

    def __init__(self, random: Random, abs: float = 8, factor: float = 1) -> None:
        self._random = random
        self._abs = abs
        self._factor = factor

    def bound(self, view: FleetView) -> float:
        """The load up to which a match is taken."""
        loads = loads_of(view)
        return fmean(loads) + self._factor * pstdev(loads)

    def choose(self, request: RoutedRequest, view: FleetView) -> int:
        """Looks at loads, then at matches."""
        loads = loads_of(view)
        if max(loads) - min(loads) <= self._abs:
            found = found_by(view)
            matches = [replica for replica, blocks in enumerate(found) if blocks]
            self._random.shuffle(matches)
            matches.sort(key=lambda replica: (-found[replica], loads[replica]))
            bound = self.bound(view)
            for replica in matches:
                if loads[replica] <= bound:
                    return replica
        return self._draw_least_loaded(loads)

    def _draw_least_loaded(self, loads: list[int]) -> int:
        fewest = min(loads)
        tied = [replica for replica, load in enumerate(loads) if load == fewest]
        return tied[0] if len(tied) == 1 else tied[self._random.randrange(len(tied))]
