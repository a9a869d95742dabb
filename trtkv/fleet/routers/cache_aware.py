"""Cache aware, by an own tree of what was sent where. Source: SGLang model gateway, cache_aware.rs and tree.rs."""

from __future__ import annotations

from collections.abc import Hashable

from trtkv.fleet.router import FleetView, RoutedRequest, Router, least_loaded, loads_of


class CacheAwareRouter(Router):
    """The replica that the longest known prefix was sent to last, if it is more than ``threshold`` of the prompt.

    Else, and whenever loads differ by more than ``abs`` and by more than the factor ``rel``, the least loaded replica.
    The tree notes what was routed, not what is cached; nothing leaves it.
    """

    def __init__(self, threshold: float = 0.5, abs: float = 32, rel: float = 1.1) -> None:
        self._threshold = threshold
        self._abs = abs
        self._rel = rel
        self._entered: dict[Hashable, dict[int, int]] = {}  # block -> replica -> serial of its last entry
        self._serial = 0

    def choose(self, request: RoutedRequest, view: FleetView) -> int:
        """Looks at loads, then at the tree."""
        loads = loads_of(view)
        most, fewest = max(loads), min(loads)
        if most - fewest > self._abs and most > self._rel * fewest:
            return least_loaded(loads)
        depth = self._depth(request)
        if depth and depth / request.num_blocks > self._threshold:
            entries = self._entered[request.path[depth - 1]]
            return max(entries, key=entries.__getitem__)
        return least_loaded(loads)

    def _depth(self, request: RoutedRequest, replica: int | None = None) -> int:
        depth = 0
        for key in request.path:
            entries = self._entered.get(key)
            if entries is None or (replica is not None and replica not in entries):
                break
            depth += 1
        return depth

    def predicted(self, request: RoutedRequest, view: FleetView, replica: int) -> int:
        """The depth to which the replica stands in the tree."""
        return self._depth(request, replica)

    def request_routed(self, request: RoutedRequest, replica: int) -> None:
        """Enter the replica at every block of the prompt."""
        self._serial += 1
        for key in request.path:
            self._entered.setdefault(key, {})[replica] = self._serial
