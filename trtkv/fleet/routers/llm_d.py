"""Weighted scorers. Source: llm-d inference scheduler, framework/plugins/scheduling."""

from __future__ import annotations

from random import Random

from trtkv.fleet.router import FleetView, RoutedRequest, Router, found_by


class LlmDRouter(Router):
    """The largest weighted sum of three scores in [0, 1]; equals are drawn.

    ``prefix``: blocks found, from the fewest to the most over the replicas; ``queue``: queued requests likewise,
    reversed; ``kv-utilisation``: 1 minus the share of the cache that running prompts hold.
    """

    looks_into_caches = True

    def __init__(self, random: Random, prefix: float = 2, queue: float = 1, kv_utilisation: float = 1) -> None:
        self._random = random
        self._prefix, self._queue, self._kv_utilisation = prefix, queue, kv_utilisation

    def scores(self, view: FleetView) -> list[float]:
        """The weighted sum of each replica."""
        replicas = range(view.num_replicas)
        prefix = _spread(found_by(view))
        queue = _spread([-view.num_queued(replica) for replica in replicas])
        free = [1 - min(1.0, view.running_blocks(replica) / view.capacity_blocks(replica)) for replica in replicas]
        return [self._prefix * prefix[i] + self._queue * queue[i] + self._kv_utilisation * free[i] for i in replicas]

    def choose(self, request: RoutedRequest, view: FleetView) -> int:
        """Looks at scores."""
        scores = self.scores(view)
        best = max(scores)
        tied = [replica for replica, score in enumerate(scores) if score == best]
        return tied[0] if len(tied) == 1 else tied[self._random.randrange(len(tied))]


def _spread(values: list[int]) -> list[float]:
    """Values moved to 0 (the smallest) to 1 (the largest); all 1 if they are equal."""
    least, most = min(values), max(values)
    return [1.0 if most == least else (value - least) / (most - least) for value in values]
