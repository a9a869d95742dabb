"""Router: chooses a replica for each request, from what a router can know."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """A request as a router sees it; no tokens."""

    index: int
    """Its place in the trace."""
    path: Sequence[Hashable]
    """One key a prompt block; a key names the block together with all blocks before it."""
    names: Sequence[object]
    """One name a prompt block, of the block alone; for routers that hash blocks."""
    prompt_tokens: int
    session: object = None
    """The session that the trace gives; None if it gives none."""

    @property
    def num_blocks(self) -> int:
        """Prompt blocks."""
        return len(self.path)

    @property
    def affinity_key(self) -> object:
        """The session, or the name of the first block where there is no session."""
        if self.session is not None:
            return self.session
        return self.names[0] if self.names else self.index


class FleetView(Protocol):
    """What a router may ask at the moment of a decision, replica by replica. Nothing here changes anything."""

    @property
    def num_replicas(self) -> int:
        """Replicas in service."""

    def num_queued(self, replica: int) -> int:
        """Requests routed and not admitted."""

    def num_running(self, replica: int) -> int:
        """Requests admitted and not finished."""

    def load(self, replica: int) -> int:
        """Requests routed and not finished."""

    def tokens(self, replica: int) -> int:
        """Prompt tokens of the requests routed and not finished."""

    def prefill_backlog(self, replica: int) -> int:
        """Blocks that queued requests are expected to compute."""

    def active_blocks(self, replica: int, request: RoutedRequest | None = None) -> int:
        """Distinct blocks of the prompts routed and not finished, with those of a request if one is given."""

    def running_blocks(self, replica: int) -> int:
        """Blocks of the prompts that run, shared ones as often as they are shared."""

    def capacity_blocks(self, replica: int) -> int:
        """Blocks of the cache."""

    def found(self, replica: int) -> int:
        """Leading blocks of the request being routed that the replica's events say it holds."""


class Router:
    """Base of the routers: a subclass chooses, and may note what becomes of requests. One object serves one run."""

    looks_into_caches = False
    """Whether ``choose`` asks ``FleetView.found``, so that decisions depend on the replicas' caches."""

    def choose(self, request: RoutedRequest, view: FleetView) -> int:
        """The replica for a request. Called once a request, in order of arrival."""
        raise LookupError(f"{type(self).__name__} chooses nothing")

    def predicted(self, request: RoutedRequest, view: FleetView, replica: int) -> int:
        """Leading blocks that the router expects the chosen replica to find; asked before ``request_routed``."""
        return view.found(replica)

    def request_routed(self, request: RoutedRequest, replica: int) -> None:
        """A request was sent to a replica."""

    def first_token(self, request: RoutedRequest, replica: int) -> None:
        """A request has computed its prompt."""

    def request_finished(self, request: RoutedRequest, replica: int) -> None:
        """A request is over."""


def rendezvous(key: object, num_replicas: int) -> int:
    """The owner of a key: the replica whose hash with it is the largest. Few keys move when a replica comes or goes."""

    def weight(replica: int) -> int:
        digest = blake2b(f"{key}|{replica}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "big")

    return max(range(num_replicas), key=weight)


def least_loaded(loads: Sequence[float]) -> int:
    """The replica of the smallest load; the lowest index among equals."""
    return min(range(len(loads)), key=loads.__getitem__)


def loads_of(view: FleetView) -> list[int]:
    """Requests routed and not finished, by replica."""
    return [view.load(replica) for replica in range(view.num_replicas)]


def found_by(view: FleetView) -> list[int]:
    """Blocks found of the request being routed, by replica."""
    return [view.found(replica) for replica in range(view.num_replicas)]
