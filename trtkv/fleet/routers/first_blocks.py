"""Hash of the first blocks. The rule of thumb behind prefix affinity; no single source."""

from __future__ import annotations

from trtkv.checks import check_count
from trtkv.errors import ConfigurationError
from trtkv.fleet.router import FleetView, RoutedRequest, Router, rendezvous


class FirstBlocksRouter(Router):
    """The owner of the first ``blocks`` blocks by rendezvous hashing. How many to hash is what matters."""

    def __init__(self, blocks: int = 1) -> None:
        check_count("blocks", blocks, 1, error=ConfigurationError)
        self._blocks = blocks

    def owner(self, request: RoutedRequest, view: FleetView) -> int:
        """The replica that the first blocks belong to."""
        return rendezvous(tuple(request.names[: self._blocks]), view.num_replicas)

    def choose(self, request: RoutedRequest, view: FleetView) -> int:
        """Hashes."""
        return self.owner(request, view)
