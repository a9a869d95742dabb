"""Longest prefix of what was routed, never forgotten. Source: vLLM production-stack (``PrefixAwareRouter``)."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random

from trtkv.checks import check_count
from trtkv.errors import ConfigurationError
from trtkv.fleet.router import FleetView, RoutedRequest, Router


class PrefixawareRouter(Router):
    """A replica drawn among those that the longest known prefix was sent to.

    Without a match of more than ``min_blocks`` blocks, the one with the fewest requests so far.
    """

    def __init__(self, random: Random, min_blocks: int = 0) -> None:
        check_count("min-blocks", min_blocks, error=ConfigurationError)
        self._random = random
        self._min_blocks = min_blocks
        self._sent: dict[Hashable, set[int]] = {}
        self._num_routed: dict[int, int] = {}

    def choose(self, request: RoutedRequest, view: FleetView) -> int:
        """Looks at what was routed."""
        depth = self._depth(request, None)
        if depth > self._min_blocks:
            tied = sorted(self._sent[request.path[depth - 1]])
            return tied[self._random.randrange(len(tied))]
        return min(range(view.num_replicas), key=lambda replica: self._num_routed.get(replica, 0))

    def _depth(self, request: RoutedRequest, replica: int | None) -> int:
        depth = 0
        for key in request.path:
            replicas = self._sent.get(key)
            if replicas is None or (replica is not None and replica not in replicas):
                break
            depth += 1
        return depth

    def predicted(self, request: RoutedRequest, view: FleetView, replica: int) -> int:
        """The longest prefix that was sent to the replica."""
        return self._depth(request, replica)

    def request_routed(self, request: RoutedRequest, replica: int) -> None:
        """Note the prefix."""
        self._num_routed[replica] = self._num_routed.get(replica, 0) + 1
        for key in request.path:
            self._sent.setdefault(key, set()).add(replica)
