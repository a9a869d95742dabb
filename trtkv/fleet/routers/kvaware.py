"""Longest match of a controller, if nearly the whole prompt. Source: vLLM production-stack (``KvawareRouter``)."""

from __future__ import annotations

from trtkv.checks import check_count
from trtkv.errors import ConfigurationError
from trtkv.fleet.router import FleetView, RoutedRequest, Router, found_by, rendezvous


class KvawareRouter(Router):
    """The longest match if all but ``max_missing_tokens`` of the prompt match; else the owner of the session.

    A request without session goes to the replica with the fewest requests so far in that case.
    """

    looks_into_caches = True

    def __init__(self, max_missing_tokens: int = 2000) -> None:
        check_count("max-missing-tokens", max_missing_tokens, error=ConfigurationError)
        self._max_missing_tokens = max_missing_tokens
        self._num_routed: dict[int, int] = {}

    def choose(self, request: RoutedRequest, view: FleetView) -> int:
        """Looks at matches."""
        found = found_by(view)
        best = max(range(len(found)), key=found.__getitem__)
        matched = found[best] * request.prompt_tokens // max(1, request.num_blocks)
        if found[best] and matched >= max(request.prompt_tokens - self._max_missing_tokens, 0):
            return best
        if request.session is not None:
            return rendezvous(request.session, view.num_replicas)
        return min(range(view.num_replicas), key=lambda replica: self._num_routed.get(replica, 0))

    def request_routed(self, request: RoutedRequest, replica: int) -> None:
        """Count it."""
        self._num_routed[replica] = self._num_routed.get(replica, 0) + 1
