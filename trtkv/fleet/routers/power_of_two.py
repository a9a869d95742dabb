"""Power of two choices. Source: SGLang model gateway, policies/power_of_two.rs."""

from __future__ import annotations

from random import Random

from trtkv.fleet.router import FleetView, RoutedRequest, Router


class PowerOfTwoRouter(Router):
    """Two different replicas are drawn; the less loaded takes the request, the first one if they are equal."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, request: RoutedRequest, view: FleetView) -> int:
        """Draws twice, unless there is only one replica."""
        count = view.num_replicas
        if count == 1:
            return 0
        first = self._random.randrange(count)
        second = (first + 1 + self._random.randrange(count - 1)) % count
        return first if view.load(first) <= view.load(second) else second
