"""Least requests. Sources: TensorRT-LLM, serve/router.py; SGLang model gateway."""

from __future__ import annotations

from trtkv.fleet.router import FleetView, RoutedRequest, Router, least_loaded, loads_of


class LeastRequestsRouter(Router):
    """The replica with the fewest requests routed and not finished; the lowest index among equals."""

    def choose(self, request: RoutedRequest, view: FleetView) -> int:
        """Looks at loads."""
        return least_loaded(loads_of(view))
