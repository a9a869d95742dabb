"""Sticky conversations. Source: TensorRT-LLM, serve/router.py (``ConversationRouter``)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from trtkv.checks import check_count
from trtkv.errors import ConfigurationError
from trtkv.fleet.router import FleetView, RoutedRequest, Router, least_loaded


class TrtllmConversationRouter(Router):
    """A known session stays where it is, whatever the load.

    Else the longest prefix routed before decides, if it is at least ``threshold`` of the prompt; else the fewest prompt
    tokens in flight, equals in turn. ``max_sessions`` are remembered; the least recently seen one makes room.
    """

    def __init__(self, threshold: float = 0.75, max_sessions: int = 100_000) -> None:
        check_count("max-sessions", max_sessions, 1, error=ConfigurationError)
        self._threshold = threshold
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[object, int] = OrderedDict()
        self._routed_to: dict[Hashable, int] = {}
        self._count = 0

    def choose(self, request: RoutedRequest, view: FleetView) -> int:
        """Looks at sessions, prefixes and tokens."""
        if request.session is not None and request.session in self._sessions:
            return self._sessions[request.session]
        depth = next((i for i, key in enumerate(request.path) if key not in self._routed_to), request.num_blocks)
        if depth and depth / request.num_blocks >= self._threshold:
            return self._routed_to[request.path[depth - 1]]
        tokens = [view.tokens(replica) for replica in range(view.num_replicas)]
        tied = [replica for replica, count in enumerate(tokens) if count == tokens[least_loaded(tokens)]]
        self._count += 1
        return tied[(self._count - 1) % len(tied)]

    def request_routed(self, request: RoutedRequest, replica: int) -> None:
        """Remember session and prefix."""
        for key in request.path:
            self._routed_to[key] = replica
        if request.session is not None:
            self._sessions[request.session] = replica
            self._sessions.move_to_end(request.session)
            if len(self._sessions) > self._max_sessions:
                self._sessions.popitem(last=False)
