"""Session affinity with bounded load. Source: SGLang model gateway, policies/bounded_consistent_hashing.rs."""

from __future__ import annotations

from trtkv.errors import ConfigurationError
from trtkv.fleet.router import FleetView, RoutedRequest, Router, loads_of, rendezvous


class SessionBoundedRouter(Router):
    """The owner of the session unless its load exceeds ``factor`` times the mean; then the next replica in ring order.

    If all exceed it, the owner.
    """

    def __init__(self, factor: float = 1.5) -> None:
        if not factor >= 1:
            raise ConfigurationError(f"factor is {factor}; give a number of at least 1")
        self._factor = factor

    def choose(self, request: RoutedRequest, view: FleetView) -> int:
        """Hashes, then looks at loads."""
        count, loads = view.num_replicas, loads_of(view)
        owner = rendezvous(request.affinity_key, count)
        bound = self._factor * sum(loads) / count
        ring = ((owner + step) % count for step in range(count))
        return next((replica for replica in ring if loads[replica] <= bound), owner)
