"""Greedy affinity: the upper end of what affinity alone can do."""

from __future__ import annotations

from trtkv.fleet.router import FleetView, RoutedRequest, Router, found_by, loads_of


class GreedyRouter(Router):
    """The longest match, then the least load, then the lowest index."""

    looks_into_caches = True

    def choose(self, request: RoutedRequest, view: FleetView) -> int:
        """Looks at matches."""
        found, loads = found_by(view), loads_of(view)
        return min(range(view.num_replicas), key=lambda replica: (-found[replica], loads[replica]))
