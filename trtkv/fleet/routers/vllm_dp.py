"""Data-parallel balancing. Source: vLLM's engine coordinator, as modelled in inference-sim, docs/guide/routing.md."""

from __future__ import annotations

from trtkv.fleet.router import FleetView, RoutedRequest, Router, least_loaded


class VllmDpRouter(Router):
    """The smallest 4 x waiting + running; the lowest index among equals."""

    def choose(self, request: RoutedRequest, view: FleetView) -> int:
        """Looks at queues."""
        replicas = range(view.num_replicas)
        return least_loaded([4 * view.num_queued(replica) + view.num_running(replica) for replica in replicas])
