"""Match minus relative load. Source: vLLM production-stack, pull request 1035."""

from __future__ import annotations

from trtkv.fleet.router import FleetView, RoutedRequest, Router, loads_of


class LoadAwareRouter(Router):
    """The largest found / prompt blocks - ``beta`` x (load - mean) / max(1, mean); the lowest index among equals."""

    looks_into_caches = True

    def __init__(self, beta: float = 1) -> None:
        self._beta = beta

    def scores(self, request: RoutedRequest, view: FleetView) -> list[float]:
        """The score of each replica."""
        loads = loads_of(view)
        mean = sum(loads) / len(loads)
        return [
            view.found(replica) / max(1, request.num_blocks) - self._beta * (load - mean) / max(1.0, mean)
            for replica, load in enumerate(loads)
        ]

    def choose(self, request: RoutedRequest, view: FleetView) -> int:
        """Looks at matches and loads."""
        scores = self.scores(request, view)
        return max(range(len(scores)), key=scores.__getitem__)
