"""ZmqEventPublisher: numbered messages on a PUB socket, and a ROUTER that sends missed ones again."""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from trtkv.checks import check_count
from trtkv.errors import InvalidInputError, MissingExtraError

_SEQUENCE: Final = struct.Struct(">q")
END_OF_REPLAY: Final = _SEQUENCE.pack(-1)
_POLL_MS: Final = 50


class EventMessage(NamedTuple):
    """One message: its number, which grows by 1, and its payload. The end of a replay has number -1."""

    sequence: int
    payload: bytes

    @property
    def is_end_of_replay(self) -> bool:
        """Whether the publisher has sent all it has."""
        return self.sequence < 0 or not self.payload


class ZmqEventPublisher:
    """Publishes payloads as vLLM does (extra ``events``).

    PUB frames: topic, number (8 bytes, big endian, signed), payload. A subscriber that sees a hole in the numbers asks
    the replay socket for everything from a number on: request ``["", number]`` behind its identity, answers
    ``["", number, payload]``, the last with number -1 and an empty payload. The newest ``num_replay_batches`` payloads
    are kept for that; older ones are gone, which shows in the first number of the answer.

    ``publish`` may be called from any thread and never waits: slow subscribers lose messages. Endpoints are bound;
    ``tcp://127.0.0.1:*`` picks a port, see ``endpoint``. With several ranks give each publisher a port of its own
    (``offset_port``). Close it, or use it in ``with``.
    """

    def __init__(
        self,
        endpoint: str = "tcp://*:5557",
        replay_endpoint: str | None = None,
        *,
        topic: str = "kv-events",
        num_replay_batches: int = 10_000,
        high_water_mark: int = 100_000,
    ) -> None:
        check_count("num_replay_batches", num_replay_batches)
        check_count("high_water_mark", high_water_mark)
        self._zmq = _import_zmq()
        self._topic = topic.encode()
        self._sent: deque[EventMessage] = deque(maxlen=num_replay_batches)
        self._next_sequence = 0
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._context = self._zmq.Context()
        self._thread: threading.Thread | None = None
        self._replay: Any = None
        try:
            self._publisher = self._bind(self._zmq.PUB, endpoint, high_water_mark)
            if replay_endpoint is not None:
                self._replay = self._bind(self._zmq.ROUTER, replay_endpoint, high_water_mark)
        except self._zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise InvalidInputError(
                f"cannot publish events on {endpoint} (replay {replay_endpoint}): {error}; give free endpoints"
            ) from error
        if self._replay is not None:
            self._thread = threading.Thread(target=self._answer_replays, name="trtkv-event-replay", daemon=True)
            self._thread.start()

    def _bind(self, kind: int, endpoint: str, high_water_mark: int) -> Any:
        socket = self._context.socket(kind)
        socket.set_hwm(high_water_mark)
        socket.bind(endpoint)
        return socket

    def __enter__(self) -> ZmqEventPublisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def endpoint(self) -> str:
        """Where subscribers connect, with the port that was picked."""
        return str(self._publisher.getsockopt_string(self._zmq.LAST_ENDPOINT))

    @property
    def replay_endpoint(self) -> str | None:
        """Where missed messages are asked for; None without a replay socket."""
        return None if self._replay is None else str(self._replay.getsockopt_string(self._zmq.LAST_ENDPOINT))

    @property
    def next_sequence(self) -> int:
        """Number of the next message."""
        return self._next_sequence

    def publish(self, payload: bytes) -> int:
        """Send a payload to all subscribers; returns its number."""
        with self._lock:
            if self._is_closed.is_set():
                raise InvalidInputError("the publisher is closed; make a new one")
            message = EventMessage(self._next_sequence, payload)
            self._next_sequence += 1
            self._sent.append(message)
            # The lock makes sure that the socket is used by one thread at a time.
            self._publisher.send_multipart((self._topic, _SEQUENCE.pack(message.sequence), payload))
        return message.sequence

    def close(self) -> None:
        """Stop answering and free the endpoints; a second call does nothing."""
        with self._lock:
            if self._is_closed.is_set():
                return
            self._is_closed.set()
        if self._thread is not None:
            self._thread.join()
        self._context.destroy(linger=0)

    # -- replay ---------------------------------------------------------------------------------------

    def _answer_replays(self) -> None:
        while not self._is_closed.is_set():
            if self._replay.poll(_POLL_MS):
                self._answer(self._replay.recv_multipart())

    def _answer(self, frames: Sequence[bytes]) -> None:
        """Send everything from the number asked for; a malformed request gets the end mark alone."""
        identity, start = frames[0], frames[-1]
        messages: list[EventMessage] = []
        if len(frames) == 3 and len(start) == _SEQUENCE.size:
            (first,) = _SEQUENCE.unpack(start)
            with self._lock:
                messages = [message for message in self._sent if message.sequence >= first]
        for message in messages:
            self._replay.send_multipart((identity, b"", _SEQUENCE.pack(message.sequence), message.payload))
        self._replay.send_multipart((identity, b"", END_OF_REPLAY, b""))


def make_replay_request(first_sequence: int) -> list[bytes]:
    """Frames with which a DEALER socket asks for all messages from a number on."""
    return [b"", _SEQUENCE.pack(first_sequence)]


def read_message(frames: Sequence[bytes]) -> EventMessage:
    """The message of received frames: published ones, and answers to a replay request of either known layout.

    Some publishers repeat the topic in their answers; what counts are the last two frames.
    """
    if len(frames) < 2 or len(frames[-2]) != _SEQUENCE.size:
        raise InvalidInputError(
            f"{len(frames)} frames of {[len(frame) for frame in frames]} bytes are no event message; "
            "the last two should be a number of 8 bytes and a payload"
        )
    (sequence,) = _SEQUENCE.unpack(frames[-2])
    return EventMessage(sequence, frames[-1])


def offset_port(endpoint: str, rank: int) -> str:
    """The endpoint of an attention-DP rank: the base port plus the rank; other transports get the rank as a suffix."""
    base, separator, port = endpoint.rpartition(":")
    if endpoint.startswith("tcp://") and separator and port.isdecimal():
        return f"{base}:{int(port) + rank}"
    return endpoint if rank == 0 else f"{endpoint}_{rank}"


def _import_zmq() -> Any:
    try:
        import zmq
    except ImportError as error:
        raise MissingExtraError('publishing events needs ZeroMQ: pip install "trtkv[events]"') from error
    return zmq
