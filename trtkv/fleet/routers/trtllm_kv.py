"""KV-cache aware, by events. Source: TensorRT-LLM, serve/router.py (``KvCacheAwareRouter``)."""

from __future__ import annotations

from trtkv.checks import check_count
from trtkv.errors import ConfigurationError
from trtkv.fleet.router import FleetView, RoutedRequest, Router


class TrtllmKvRouter(Router):
    """The largest share of the prompt that is cached minus load / ``max_batch_size``; equals in turn."""

    looks_into_caches = True

    def __init__(self, max_batch_size: int = 64) -> None:
        check_count("max-batch-size", max_batch_size, 1, error=ConfigurationError)
        self._max_batch_size = max_batch_size
        self._count = 0

    def score(self, request: RoutedRequest, view: FleetView, replica: int) -> float:
        """Share found, less load."""
        return view.found(replica) / max(1, request.num_blocks) - view.load(replica) / self._max_batch_size

    def choose(self, request: RoutedRequest, view: FleetView) -> int:
        """Looks at matches and loads."""
        scores = [self.score(request, view, replica) for replica in range(view.num_replicas)]
        best = max(scores)
        tied = [replica for replica, score in enumerate(scores) if score == best]
        self._count += 1
        return tied[(self._count - 1) % len(tied)]
