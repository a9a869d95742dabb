"""Session affinity by hash. Source: vLLM production-stack, routing_logic.py (``SessionRouter``)."""

from __future__ import annotations

from trtkv.fleet.router import FleetView, RoutedRequest, Router, rendezvous


class SessionRouter(Router):
    """The owner of the session, or of the first block where a request has no session, by rendezvous hashing."""

    def choose(self, request: RoutedRequest, view: FleetView) -> int:
        """Hashes."""
        return rendezvous(request.affinity_key, view.num_replicas)
