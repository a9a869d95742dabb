"""ZmqEventSubscriber: the messages of one publisher in order, missed ones asked for again."""

from __future__ import annotations

from typing import Final

from trtkv.checks import check_number, check_type
from trtkv.errors import InvalidInputError
from trtkv.exporters.endpoints import check_endpoint
from trtkv.exporters.event_message import EventMessage, import_zmq, make_replay_request, read_message
from trtkv.exporters.zmq_event_publisher import DEFAULT_TOPIC

_MESSAGES_AT_ONCE: Final = 1000
_REMEMBERED: Final = 10_000


class ZmqEventSubscriber:
    """Subscribes to a publisher of vLLM's protocol (extra ``events``).

    With a ``replay_endpoint`` it first asks for all that the publisher still has, and at every hole for what is
    missing; what is gone there too stays a hole, which the numbers of the messages show. A message that was
    received before is left out; one that has an old number and another payload comes from a publisher that restarted.
    Close it, or use it in ``with``. Not thread-safe.
    """

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str | None = None,
        *,
        topic: str = DEFAULT_TOPIC,
        replay_timeout_s: float = 5.0,
    ) -> None:
        for name in (endpoint, *([] if replay_endpoint is None else [replay_endpoint])):
            if check_endpoint(name).endswith(":*"):
                raise InvalidInputError(f"endpoint is {name!r}; give the port that the publisher is bound to")
        check_type("topic", topic, str)
        check_number("replay_timeout_s", replay_timeout_s, 0)
        zmq = self._zmq = import_zmq()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.subscribe(topic.encode())
        self._socket.connect(endpoint)
        self._replay_endpoint = replay_endpoint
        self._replay_timeout_ms = int(replay_timeout_s * 1000)
        self._seen: dict[int, int] = {}  # number -> hash of the payload, of the newest messages
        self._next: int | None = None
        self._has_started = replay_endpoint is None
        self.num_malformed = 0
        """Messages that are not of this protocol; they are left out."""
        self.num_missed = 0
        """Messages that never arrived, as far as their numbers tell."""

    def __enter__(self) -> ZmqEventSubscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def receive(self, timeout_s: float) -> list[EventMessage]:
        """What has arrived, oldest first; waits up to ``timeout_s`` if there is nothing."""
        check_number("timeout_s", timeout_s, 0, inclusive=True)
        found: list[EventMessage] = []
        if not self._has_started:
            self._has_started = True
            self._accept(self._ask_again(0), found)
        if not found and not self._socket.poll(int(timeout_s * 1000)):
            return []
        for _ in range(_MESSAGES_AT_ONCE):
            try:
                frames = self._socket.recv_multipart(self._zmq.DONTWAIT)
            except self._zmq.Again:
                break
            message = self._read(frames)
            if message is None:
                continue
            if self._replay_endpoint is not None and self._next is not None and message.sequence > self._next:
                self._accept(self._ask_again(self._next), found)
            self._accept([message], found)
        return found

    def _accept(self, messages: list[EventMessage], found: list[EventMessage]) -> None:
        for message in messages:
            mark = hash(message.payload)
            if self._next is None:
                self._next = message.sequence
            if message.sequence < self._next:
                if self._seen.get(message.sequence) == mark:
                    continue
                self._seen.clear()
            else:
                self.num_missed += message.sequence - self._next
            self._next = message.sequence + 1
            self._seen[message.sequence] = mark
            if len(self._seen) > _REMEMBERED:
                del self._seen[next(iter(self._seen))]
            found.append(message)

    def _ask_again(self, first: int) -> list[EventMessage]:
        """All that the publisher still has from a number on; what came until the time was over."""
        socket = self._context.socket(self._zmq.DEALER)
        found: list[EventMessage] = []
        try:
            socket.connect(self._replay_endpoint)
            socket.send_multipart(make_replay_request(first))
            while socket.poll(self._replay_timeout_ms):
                message = self._read(socket.recv_multipart())
                if message is not None and message.is_end_of_replay:
                    break
                if message is not None:
                    found.append(message)
        finally:
            socket.close(linger=0)
        return found

    def _read(self, frames: list[bytes]) -> EventMessage | None:
        try:
            return read_message(frames)
        except InvalidInputError:
            self.num_malformed += 1
            return None

    def close(self) -> None:
        """Free the sockets; a second call does nothing."""
        self._context.destroy(linger=0)
