"""EventMessage: a numbered payload, and its frames on the wire."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from trtkv.checks import check_integer
from trtkv.errors import InvalidInputError, MissingExtraError

SEQUENCE: Final = struct.Struct(">q")
"""Number of a message: 8 bytes, big endian, signed."""
END_OF_REPLAY: Final = SEQUENCE.pack(-1)
_NUM_REQUEST_FRAMES: Final = 3


class EventMessage(NamedTuple):
    """One message: its number, which grows by 1, and its payload. The end of a replay has number -1."""

    sequence: int
    payload: bytes

    @property
    def is_end_of_replay(self) -> bool:
        """Whether the publisher has sent all it has."""
        return self.sequence < 0 or not self.payload


def make_replay_request(first_sequence: int) -> list[bytes]:
    """Frames with which a DEALER socket asks for all messages from a number on."""
    return [b"", SEQUENCE.pack(check_integer("first_sequence", first_sequence, 0, 2**63 - 1))]


def read_replay_request(frames: Sequence[bytes]) -> int | None:
    """The number that a request asks from, as a ROUTER socket receives it; None for anything else."""
    if len(frames) != _NUM_REQUEST_FRAMES or len(frames[-1]) != SEQUENCE.size:
        return None
    (first,) = SEQUENCE.unpack(frames[-1])
    return int(first)


def read_message(frames: Sequence[bytes]) -> EventMessage:
    """The message of received frames: published ones, and answers to a replay request of either known layout.

    Some publishers repeat the topic in their answers; what counts are the last two frames.
    """
    if len(frames) < 2 or len(frames[-2]) != SEQUENCE.size:
        raise InvalidInputError(
            f"{len(frames)} frames of {[len(frame) for frame in frames]} bytes are not an event message; "
            "the last two should be a number of 8 bytes and a payload"
        )
    (sequence,) = SEQUENCE.unpack(frames[-2])
    return EventMessage(sequence, frames[-1])


def import_zmq() -> Any:
    """The zmq module; MissingExtraError names the extra that brings it."""
    try:
        import zmq
    except ImportError as error:
        raise MissingExtraError('publishing events needs ZeroMQ: pip install "trtkv[events]"') from error
    return zmq
