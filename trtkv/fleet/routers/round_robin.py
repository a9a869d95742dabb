"""Round robin. Source: vLLM production-stack, routing_logic.py."""

from __future__ import annotations

from trtkv.fleet.router import FleetView, RoutedRequest, Router


class RoundRobinRouter(Router):
    """Request n goes to replica n modulo their number."""

    def __init__(self) -> None:
        self._count = 0

    def choose(self, request: RoutedRequest, view: FleetView) -> int:
        """The next replica in turn."""
        self._count += 1
        return (self._count - 1) % view.num_replicas
