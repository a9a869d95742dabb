"""Hash of the prefix with bounded load. Source: SGLang model gateway, policies/prefix_hash.rs."""

from __future__ import annotations

from trtkv.errors import ConfigurationError
from trtkv.fleet.router import FleetView, RoutedRequest, least_loaded, loads_of
from trtkv.fleet.routers.first_blocks import FirstBlocksRouter


class PrefixHashRouter(FirstBlocksRouter):
    """The owner of the first ``blocks`` blocks unless its load exceeds ``factor`` x (sum of loads + 1) / replicas.

    Then the least loaded replica within that bound, the lowest index among equals; without one, the owner. The source
    hashes 256 tokens.
    """

    def __init__(self, blocks: int = 1, factor: float = 1.25) -> None:
        super().__init__(blocks)
        if not factor > 0:
            raise ConfigurationError(f"factor is {factor}; give a number above 0")
        self._factor = factor

    def bound(self, view: FleetView) -> float:
        """The load above which the owner is passed over."""
        return self._factor * (sum(loads_of(view)) + 1) / view.num_replicas

    def choose(self, request: RoutedRequest, view: FleetView) -> int:
        """Hashes, then looks at loads."""
        owner, loads, bound = self.owner(request, view), loads_of(view), self.bound(view)
        if loads[owner] <= bound:
            return owner
        within = [load if load <= bound else float("inf") for load in loads]
        return least_loaded(within) if min(within) <= bound else owner
