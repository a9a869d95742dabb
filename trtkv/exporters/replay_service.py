"""ReplayService: answers requests for missed messages, a little of each in turn, without waiting for any client."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from trtkv.exporters.event_message import END_OF_REPLAY, SEQUENCE, import_zmq, read_replay_request
from trtkv.exporters.replay_buffer import ReplayBuffer

_LOGGER = logging.getLogger(__name__)
_IDLE_MS: Final = 50
_BLOCKED_MS: Final = 5
_REQUESTS_AT_ONCE: Final = 100
_MESSAGES_AT_ONCE: Final = 64
HIGH_WATER_MARK: Final = 64
"""Answers that wait in the socket for one client; further ones stay in the buffer that all share."""
MAX_REPLAYS: Final = 256
"""Clients answered at the same time; others get the end mark alone."""


class _Replay:
    """What is left of an answer: messages from ``next`` up to, not including, ``stop``, then the end mark."""

    __slots__ = ("deadline", "next", "stop")

    def __init__(self, first: int, stop: int, deadline: float) -> None:
        self.next = first
        self.stop = stop
        self.deadline = deadline


class ReplayService:
    """Serves one ROUTER socket in the thread that calls ``run``.

    Only the place of each client is kept, so one that asks and never reads costs ``HIGH_WATER_MARK`` messages, and
    only until it has taken nothing for ``timeout_s``. A client has one answer at a time; a second request replaces it.
    ``clock`` returns seconds.
    """

    def __init__(
        self, socket: Any, buffer: ReplayBuffer, timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        zmq = import_zmq()
        self._again, self._unreachable = zmq.Again, zmq.ZMQError
        self._dontwait = zmq.DONTWAIT
        self._socket = socket
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a full or lost client is an error, not a silent drop
        self._buffer = buffer
        self._timeout_s = timeout_s
        self._clock = clock
        self._replays: dict[bytes, _Replay] = {}
        self.num_replays = 0
        """Requests for messages accepted."""
        self.num_messages = 0
        """Messages sent again."""
        self.num_aborted = 0
        """Answers given up: the client did not read, was gone, or asked anew."""
        self.num_refused = 0
        """Requests that were malformed, or too many at once; they are answered by the end mark alone."""

    @property
    def num_active(self) -> int:
        """Clients being answered."""
        return len(self._replays)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Serve until told that it is over; an error of one step is logged, and the next step is done."""
        while not is_over():
            try:
                self._step()
            except Exception:
                _LOGGER.exception("a step of the replay service failed")
                time.sleep(_IDLE_MS / 1000)

    def _step(self) -> None:
        moved = [self._advance(identity, replay) for identity, replay in list(self._replays.items())]
        wait_ms = 0 if any(moved) else _BLOCKED_MS if self._replays else _IDLE_MS
        if self._socket.poll(wait_ms):
            self._receive()

    def _receive(self) -> None:
        for _ in range(_REQUESTS_AT_ONCE):
            try:
                frames = self._socket.recv_multipart(self._dontwait)
            except self._again:
                return
            self._accept(frames[0], read_replay_request(frames))

    def _accept(self, identity: bytes, first: int | None) -> None:
        self.num_aborted += self._replays.pop(identity, None) is not None
        stop = self._buffer.next_sequence
        if first is None or len(self._replays) >= MAX_REPLAYS:
            self.num_refused += 1
            first = stop
        else:
            self.num_replays += 1
        self._replays[identity] = _Replay(max(first, 0), stop, self._clock() + self._timeout_s)

    def _advance(self, identity: bytes, replay: _Replay) -> bool:
        """Send some of an answer; whether anything was sent."""
        for count in range(_MESSAGES_AT_ONCE):
            found = self._buffer.get_from(replay.next) if replay.next < replay.stop else None
            is_last = found is None or found[0] >= replay.stop
            number, payload = (END_OF_REPLAY, b"") if found is None or is_last else (SEQUENCE.pack(found[0]), found[1])
            try:
                self._socket.send_multipart((identity, b"", number, payload), self._dontwait)
            except self._again:
                if self._clock() > replay.deadline:
                    self._give_up(identity)
                return count > 0
            except self._unreachable:  # the client is gone
                self._give_up(identity)
                return count > 0
            replay.deadline = self._clock() + self._timeout_s
            if found is None or is_last:
                del self._replays[identity]
                return True
            replay.next = found[0] + 1
            self.num_messages += 1
        return True

    def _give_up(self, identity: bytes) -> None:
        del self._replays[identity]
        self.num_aborted += 1
