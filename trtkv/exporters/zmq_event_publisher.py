"""ZmqEventPublisher: numbered messages to subscribers, and a socket that sends missed ones again."""

from __future__ import annotations

import threading
import time
from typing import Any, Final, NamedTuple

from trtkv.checks import check_count, check_integer, check_number, check_type
from trtkv.errors import InvalidInputError
from trtkv.exporters.endpoints import check_endpoint, offset_port
from trtkv.exporters.event_message import (
    SEQUENCE,
    EventMessage,
    import_zmq,
    make_replay_request,
    read_message,
)
from trtkv.exporters.replay_buffer import ReplayBuffer
from trtkv.exporters.replay_service import HIGH_WATER_MARK, ReplayService

__all__ = [
    "EventMessage",
    "PublisherCounters",
    "ZmqEventPublisher",
    "make_replay_request",
    "offset_port",
    "read_message",
]

DEFAULT_ENDPOINT: Final = "tcp://127.0.0.1:5557"
DEFAULT_TOPIC: Final = "kv-events"
_SUBSCRIPTIONS_AT_ONCE: Final = 100
_WAIT_S: Final = 0.01


class PublisherCounters(NamedTuple):
    """What a publisher has done since it was made."""

    num_published: int
    num_published_bytes: int
    num_subscriptions: int
    """Subscriptions now; as of the last message."""
    num_overflows: int
    """Times that subscribers had ``high_water_mark`` unread messages; they lose all others until they read."""
    num_kept: int
    """Messages kept for replays."""
    num_kept_bytes: int
    num_replays: int
    num_replayed: int
    """Messages sent again."""
    num_replays_active: int
    num_replays_aborted: int
    """Replays given up: the client did not read, was gone, or asked anew."""
    num_replays_refused: int
    """Requests that were malformed, or too many at once."""


class ZmqEventPublisher:
    """Publishes payloads as vLLM does (extra ``events``).

    Frames: topic, number (8 bytes, big endian, signed), payload. A subscriber that sees a hole in the numbers asks the
    replay socket for everything from a number on: request ``["", number]`` behind its identity, answers
    ``["", number, payload]``, the last with number -1 and an empty payload. The newest ``num_replay_batches`` payloads,
    ``max_replay_bytes`` together, are kept for that; older ones are gone, which shows in the first number of the
    answer.

    ``publish`` may be called from any thread and never waits. For each subscriber up to ``high_water_mark`` messages
    wait; one that does not read loses what comes after, which ``counters`` shows. A replay that its client does not
    read is given up after ``replay_timeout_s``. Endpoints are bound, on this machine only by default, as messages hold
    the tokens of all prompts: name an interface, or ``tcp://*:5557`` for all, to publish them further.
    ``tcp://127.0.0.1:*`` picks a port, see ``endpoint``. With several ranks give each publisher a port of its own
    (``offset_port``). Close it, or use it in ``with``.
    """

    def __init__(
        self,
        endpoint: str = DEFAULT_ENDPOINT,
        replay_endpoint: str | None = None,
        *,
        topic: str = DEFAULT_TOPIC,
        num_replay_batches: int = 10_000,
        max_replay_bytes: int = 256 * 2**20,
        high_water_mark: int = 2_000,
        replay_timeout_s: float = 30.0,
    ) -> None:
        check_endpoint(endpoint)
        if replay_endpoint is not None:
            check_endpoint(replay_endpoint)
        check_type("topic", topic, str)
        check_count("num_replay_batches", num_replay_batches)
        check_integer("max_replay_bytes", max_replay_bytes, 0)
        check_count("high_water_mark", high_water_mark, 1)
        check_number("replay_timeout_s", replay_timeout_s, 0)
        zmq = self._zmq = import_zmq()
        self._topic = topic.encode()
        self._buffer = ReplayBuffer(num_replay_batches, max_replay_bytes)
        self._num_bytes = self._num_subscriptions = self._num_overflows = 0
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._context = zmq.Context()
        self._thread: threading.Thread | None = None
        self._service: ReplayService | None = None
        self._replay_endpoint: str | None = None
        try:
            self._publisher, self._endpoint = self._bind(zmq.XPUB, endpoint, high_water_mark)
            self._publisher.setsockopt(zmq.XPUB_NODROP, 1)
            if replay_endpoint is not None:
                socket, self._replay_endpoint = self._bind(zmq.ROUTER, replay_endpoint, HIGH_WATER_MARK)
                self._service = ReplayService(socket, self._buffer, replay_timeout_s)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise InvalidInputError(
                f"cannot publish events on {endpoint} (replay {replay_endpoint}): {error}; give free endpoints"
            ) from error
        if self._service is not None:
            self._thread = threading.Thread(
                target=self._service.run, args=(self._is_closed.is_set,), name="trtkv-event-replay", daemon=True
            )
            self._thread.start()

    def _bind(self, kind: int, endpoint: str, high_water_mark: int) -> tuple[Any, str]:
        socket = self._context.socket(kind)
        socket.set_hwm(high_water_mark)
        if kind == self._zmq.XPUB:
            socket.setsockopt(self._zmq.XPUB_VERBOSER, 1)  # each subscription is told, so that they can be counted
        socket.bind(endpoint)
        return socket, str(socket.getsockopt_string(self._zmq.LAST_ENDPOINT))

    def __enter__(self) -> ZmqEventPublisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def endpoint(self) -> str:
        """Where subscribers connect, with the port that was picked."""
        return self._endpoint

    @property
    def replay_endpoint(self) -> str | None:
        """Where missed messages are asked for; None without a replay socket."""
        return self._replay_endpoint

    @property
    def next_sequence(self) -> int:
        """Number of the next message."""
        return self._buffer.next_sequence

    @property
    def counters(self) -> PublisherCounters:
        """What was published and sent again so far, and who did not read; see ``KvCacheMetrics.record_publisher``."""
        service = self._service
        replays = (
            (0, 0, 0, 0, 0)
            if service is None
            else (
                service.num_replays,
                service.num_messages,
                service.num_active,
                service.num_aborted,
                service.num_refused,
            )
        )
        return PublisherCounters(
            self._buffer.next_sequence,
            self._num_bytes,
            self._num_subscriptions,
            self._num_overflows,
            len(self._buffer),
            self._buffer.num_bytes,
            *replays,
        )

    def publish(self, payload: bytes) -> int:
        """Send a payload to all subscribers; returns its number.

        Raises InvalidInputError for what is not bytes, for an empty payload, which marks the end of a replay, and after
        ``close``.
        """
        check_type("payload", payload, bytes)
        if not payload:
            raise InvalidInputError("payload is empty, which marks the end of a replay; give what an encoder packs")
        with self._lock:  # the socket is used by one thread at a time
            if self._is_closed.is_set():
                raise InvalidInputError("the publisher is closed; make a new one")
            sequence = self._buffer.append(payload)
            self._num_bytes += len(payload)
            self._count_subscriptions()
            self._send((self._topic, SEQUENCE.pack(sequence), payload))
        return sequence

    def wait_for_subscribers(self, count: int, timeout_s: float) -> bool:
        """Wait until ``count`` subscriptions are there; False if they are not after ``timeout_s``."""
        check_count("count", count)
        check_number("timeout_s", timeout_s, 0, inclusive=True)
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                if self._is_closed.is_set():
                    raise InvalidInputError("the publisher is closed; make a new one")
                self._count_subscriptions()
                if self._num_subscriptions >= count:
                    return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_WAIT_S)

    def _send(self, frames: tuple[bytes, bytes, bytes]) -> None:
        """Send to all subscribers that have room; of one without, the socket tells once until it reads again."""
        zmq = self._zmq
        try:
            self._publisher.send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again:
            self._num_overflows += 1
            self._publisher.setsockopt(zmq.XPUB_NODROP, 0)
            self._publisher.send_multipart(frames, zmq.DONTWAIT)
            self._publisher.setsockopt(zmq.XPUB_NODROP, 1)

    def _count_subscriptions(self) -> None:
        for _ in range(_SUBSCRIPTIONS_AT_ONCE):
            try:
                message = self._publisher.recv(self._zmq.DONTWAIT)
            except self._zmq.Again:
                return
            self._num_subscriptions += {b"\x01": 1, b"\x00": -1}.get(message[:1], 0)

    def close(self, linger_ms: int = 500) -> None:
        """Stop answering and free the endpoints; a second call does nothing. Other threads may be publishing.

        Messages that subscribers have not taken yet are sent for up to ``linger_ms``, then dropped.
        """
        check_count("linger_ms", linger_ms)
        with self._lock:
            if self._is_closed.is_set():
                return
            self._is_closed.set()
        if self._thread is not None:
            self._thread.join()
        self._context.destroy(linger=linger_ms)
