"""SimpleFleet: the closed loop of a fleet over caches of whole blocks, to check routers pick by pick.

Everything of docs/fleet.md but the managers: one unit a block, LRU over leaves, outputs take no room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from trtkv.events.block_holders import BlockHolders
from trtkv.eviction.orders.lru import LruOrder
from trtkv.eviction.orders.order import Item
from trtkv.fleet.replica_loads import ReplicaLoads
from trtkv.fleet.router import RoutedRequest, Router
from trtkv.replay.lab.prefix_cache import Held, PrefixCache


@dataclass(slots=True)
class SimpleRequest:
    """A request and the rounds it decodes."""

    routed: RoutedRequest
    output: int


@dataclass(slots=True)
class SimpleFleetResult:
    """What became of each request, in order of the trace, and of the fleet as a whole."""

    assigned: list[int] = field(default_factory=list)
    found: list[int] = field(default_factory=list)
    predicted: list[int] = field(default_factory=list)
    best_any: int = 0
    """Blocks that some replica held at the moment of routing, summed over requests."""
    peak_queue: int = 0
    rounds: int = 0
    resident: int = 0
    distinct: int = 0
    active_imbalances: list[float] = field(default_factory=list)
    load_imbalances: list[float] = field(default_factory=list)


class _Running:
    __slots__ = ("held", "left", "request")

    def __init__(self, request: SimpleRequest, held: Held) -> None:
        self.request = request
        self.held = held
        self.left = max(1, request.output)


class _SimpleReplica:
    """A cache, its queue and what runs; late events show its blocks in an index of the fleet."""

    def __init__(self, number: int, capacity: int, live: int, shown: BlockHolders) -> None:
        self._number = number
        self.cache = PrefixCache(capacity, LruOrder(), on_evicted=self._evicted)
        self.queue: deque[SimpleRequest] = deque()
        self.running: list[_Running] = []
        self._live = live
        self._shown = shown
        self._events: deque[tuple[int, Hashable, bool]] = deque()  # (round to show it, key, whether stored)
        self._shows_in = 0

    def _evicted(self, item: Item) -> None:
        self._events.append((self._shows_in, item.key, False))

    def deliver(self, now: int) -> None:
        """Show what has become due."""
        while self._events and self._events[0][0] <= now:
            _, key, is_stored = self._events.popleft()
            (self._shown.put if is_stored else self._shown.discard)(self._number, (key,))

    def admit(self, shows_in: int) -> list[tuple[SimpleRequest, int]]:
        """Fill free slots from the queue; returns each request with the blocks it found."""
        self._shows_in = shows_in
        batch = [self.queue.popleft() for _ in range(min(len(self.queue), self._live - len(self.running)))]
        found = [self.cache.count_found(request.routed.path) for request in batch]
        for request in batch:
            before = {key for key in request.routed.path if key in self.cache}
            _, held = self.cache.admit(request.routed.path)
            self._events.extend((shows_in, node.key, True) for node in held if node.key not in before)
            self.running.append(_Running(request, held))
        return list(zip(batch, found, strict=True))

    @property
    def active_blocks(self) -> int:
        """Distinct cached blocks that running requests hold."""
        return len({node.key for running in self.running for node in running.held})

    @property
    def load(self) -> int:
        """Requests routed and not finished."""
        return len(self.queue) + len(self.running)


class SimpleFleet:
    """``replicas`` caches of ``capacity`` blocks, at most ``live`` requests running on each.

    At most ``replicas x live`` requests are routed and not finished.
    What is stored or evicted in round r reaches the router in round r + max(1, ``event_delay``); with 0 it sees the
    caches as they are.
    """

    def __init__(self, router: Router, replicas: int, capacity: int, live: int, event_delay: int = 0) -> None:
        self._router = router
        self._shown = BlockHolders()
        self._looked_up: tuple[RoutedRequest | None, dict[int, int]] = None, {}
        self._replicas = [_SimpleReplica(number, capacity, live, self._shown) for number in range(replicas)]
        self._outstanding = replicas * live
        self._event_delay = event_delay
        self._loads = ReplicaLoads([capacity] * replicas, self._find)
        self._result = SimpleFleetResult()

    def _find(self, replica: int, request: RoutedRequest) -> int:
        if not self._event_delay:
            return self._replicas[replica].cache.count_found(request.path)
        if self._looked_up[0] is not request:  # one walk answers for all replicas
            self._looked_up = request, self._shown.count_prefixes(request.path)
        return self._looked_up[1].get(replica, 0)

    def run(self, requests: Sequence[SimpleRequest]) -> SimpleFleetResult:
        """Run all requests; may be called once."""
        result, waiting = self._result, deque(requests)
        result.found = [0] * len(requests)
        while waiting or any(replica.load for replica in self._replicas):
            for replica in self._replicas:
                replica.deliver(result.rounds)
            self._route(waiting)
            self._admit()
            self._observe()
            self._decode()
        keys = [key for replica in self._replicas for key in replica.cache.resident]
        result.resident, result.distinct = len(keys), len(set(keys))
        return result

    def _route(self, waiting: deque[SimpleRequest]) -> None:
        result = self._result
        num_out = sum(replica.load for replica in self._replicas)
        for _ in range(min(len(waiting), self._outstanding - num_out)):
            request = waiting.popleft()
            routed = request.routed
            self._loads.start_decision(routed)
            result.best_any += max(replica.cache.count_found(routed.path) for replica in self._replicas)
            chosen = self._router.choose(routed, self._loads)
            predicted = self._router.predicted(routed, self._loads, chosen)
            self._loads.routed(routed, chosen, predicted)
            self._router.request_routed(routed, chosen)
            self._replicas[chosen].queue.append(request)
            result.assigned.append(chosen)
            result.predicted.append(predicted)

    def _admit(self) -> None:
        shows_in = self._result.rounds + max(1, self._event_delay)
        for index, replica in enumerate(self._replicas):
            for request, found in replica.admit(shows_in):
                self._result.found[request.routed.index] = found
                self._loads.admitted(request.routed, index)
                self._router.first_token(request.routed, index)

    def _observe(self) -> None:
        result, count = self._result, len(self._replicas)
        result.peak_queue = max(result.peak_queue, *(len(replica.queue) for replica in self._replicas))
        for values, imbalances in (
            ([replica.active_blocks for replica in self._replicas], result.active_imbalances),
            ([replica.load for replica in self._replicas], result.load_imbalances),
        ):
            if any(values):
                imbalances.append(max(values) * count / sum(values))

    def _decode(self) -> None:
        """As many rounds as pass until some request ends."""
        left = [running.left for replica in self._replicas for running in replica.running]
        if not left:
            return
        self._result.rounds += min(left)
        for index, replica in enumerate(self._replicas):
            for running in replica.running:
                running.left -= min(left)
            ended = [running for running in replica.running if not running.left]
            replica.running = [running for running in replica.running if running.left]
            for running in ended:
                replica.cache.finish(running.held)
                self._loads.finished(running.request.routed, index)
                self._router.request_finished(running.request.routed, index)
