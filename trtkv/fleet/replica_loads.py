"""ReplicaLoads: what is routed to each replica and not finished, kept up as requests move on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

from trtkv.fleet.router import RoutedRequest


class _Replica:
    __slots__ = ("active", "backlog", "capacity", "num_queued", "num_running", "running_blocks", "tokens")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.num_queued = 0
        self.num_running = 0
        self.tokens = 0
        self.backlog = 0
        self.running_blocks = 0
        self.active: Counter[Hashable] = Counter()


class ReplicaLoads:
    """The router's view of a fleet. ``find_blocks(replica, request)`` answers ``found``."""

    def __init__(self, capacities: list[int], find_blocks: Callable[[int, RoutedRequest], int]) -> None:
        self._replicas = [_Replica(capacity) for capacity in capacities]
        self._find_blocks = find_blocks
        self._request: RoutedRequest | None = None
        self._found: dict[int, int] = {}
        self._predicted: dict[int, int] = {}

    # -- what routers ask --------------------------------------------------------------------------------

    @property
    def num_replicas(self) -> int:
        """Replicas in service."""
        return len(self._replicas)

    def num_queued(self, replica: int) -> int:
        """Requests routed and not admitted."""
        return self._replicas[replica].num_queued

    def num_running(self, replica: int) -> int:
        """Requests admitted and not finished."""
        return self._replicas[replica].num_running

    def load(self, replica: int) -> int:
        """Requests routed and not finished."""
        return self._replicas[replica].num_queued + self._replicas[replica].num_running

    def tokens(self, replica: int) -> int:
        """Prompt tokens of the requests routed and not finished."""
        return self._replicas[replica].tokens

    def prefill_backlog(self, replica: int) -> int:
        """Blocks that queued requests are expected to compute."""
        return self._replicas[replica].backlog

    def active_blocks(self, replica: int, request: RoutedRequest | None = None) -> int:
        """Distinct blocks of the prompts routed and not finished, with those of a request if one is given."""
        active = self._replicas[replica].active
        return len(active) + (0 if request is None else sum(key not in active for key in request.path))

    def running_blocks(self, replica: int) -> int:
        """Blocks of the prompts that run, shared ones as often as they are shared."""
        return self._replicas[replica].running_blocks

    def capacity_blocks(self, replica: int) -> int:
        """Blocks of the cache."""
        return self._replicas[replica].capacity

    def found(self, replica: int) -> int:
        """Leading blocks of the request being routed that the replica is known to hold; looked up once a decision."""
        if replica not in self._found:
            if self._request is None:
                raise LookupError("no request is being routed")
            self._found[replica] = self._find_blocks(replica, self._request)
        return self._found[replica]

    # -- what happens to requests -------------------------------------------------------------------------

    def start_decision(self, request: RoutedRequest) -> None:
        """``found`` is about this request from now on."""
        self._request = request
        self._found = {}

    def routed(self, request: RoutedRequest, replica: int, predicted: int) -> None:
        """A request is queued; ``predicted`` of its blocks are expected to be found."""
        state = self._replicas[replica]
        state.num_queued += 1
        state.tokens += request.prompt_tokens
        state.backlog += request.num_blocks - predicted
        state.active.update(request.path)
        self._predicted[request.index] = predicted

    def admitted(self, request: RoutedRequest, replica: int) -> None:
        """A queued request runs."""
        state = self._replicas[replica]
        state.num_queued -= 1
        state.num_running += 1
        state.backlog -= request.num_blocks - self._predicted.pop(request.index)
        state.running_blocks += request.num_blocks

    def finished(self, request: RoutedRequest, replica: int) -> None:
        """A running request is over."""
        state = self._replicas[replica]
        state.num_running -= 1
        state.tokens -= request.prompt_tokens
        state.running_blocks -= request.num_blocks
        for key in request.path:
            state.active[key] -= 1
            if not state.active[key]:
                del state.active[key]
