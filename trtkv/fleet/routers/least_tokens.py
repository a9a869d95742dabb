"""Least tokens. Source: TensorRT-LLM, serve/router.py (``use_tokens``)."""

from __future__ import annotations

from trtkv.fleet.router import FleetView, RoutedRequest, Router, least_loaded


class LeastTokensRouter(Router):
    """The replica with the fewest prompt tokens routed and not finished; the lowest index among equals."""

    def choose(self, request: RoutedRequest, view: FleetView) -> int:
        """Looks at tokens."""
        return least_loaded([view.tokens(replica) for replica in range(view.num_replicas)])
