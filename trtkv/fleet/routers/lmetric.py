"""Product of prefill work and load. Source: Dynamo, router-concepts.md (LMetric)."""

from __future__ import annotations

from random import Random

from trtkv.fleet.router import FleetView, RoutedRequest
from trtkv.fleet.routers.dynamo_kv import DynamoKvRouter


class LmetricRouter(DynamoKvRouter):
    """The smallest max(0, backlog + prompt blocks - found) x (active blocks of others + prompt blocks + 1)."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)

    def cost(self, request: RoutedRequest, view: FleetView, replica: int) -> float:
        """Blocks to compute, weighed by what is active."""
        return self._prefill(request, view, replica) * (view.active_blocks(replica) + request.num_blocks + 1)
