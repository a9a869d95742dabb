"""Random. Source: SGLang model gateway, policies/random.rs."""

from __future__ import annotations

from random import Random

from trtkv.fleet.router import FleetView, RoutedRequest, Router


class RandomRouter(Router):
    """Any replica with equal probability."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, request: RoutedRequest, view: FleetView) -> int:
        """Draws."""
        return self._random.randrange(view.num_replicas)
