"""Frames on the wire, over the loopback device: publishing, numbers, replay."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from trtkv.errors import InvalidInputError, MissingExtraError
from trtkv.exporters.zmq_event_publisher import (
    EventMessage,
    ZmqEventPublisher,
    make_replay_request,
    offset_port,
    read_message,
)

zmq = pytest.importorskip("zmq", reason="pyzmq is not installed; it carries the messages")

WAIT_MS = 10_000
LOOPBACK = "tcp://127.0.0.1:*"


@pytest.fixture
def context() -> Iterator[Any]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def publisher() -> Iterator[ZmqEventPublisher]:
    with ZmqEventPublisher(LOOPBACK, LOOPBACK, num_replay_batches=5) as publisher:
        yield publisher


def connect(context: Any, kind: int, endpoint: str | None) -> Any:
    socket = context.socket(kind)
    socket.connect(endpoint)
    if kind == zmq.SUB:
        socket.subscribe(b"kv-events")
    return socket


def receive(socket: Any) -> list[bytes]:
    assert socket.poll(WAIT_MS), "no message arrived"
    frames: list[bytes] = socket.recv_multipart()
    return frames


def subscribe(context: Any, publisher: ZmqEventPublisher) -> tuple[Any, int]:
    """A subscriber that hears the publisher, and the number of the next message; connecting takes some messages."""
    socket = connect(context, zmq.SUB, publisher.endpoint)
    for _ in range(1000):
        sequence = publisher.publish(b"hello")
        if socket.poll(20):
            break
    while read_message(receive(socket)).sequence != sequence:
        pass
    return socket, publisher.next_sequence


def ask(socket: Any, first: int) -> list[list[bytes]]:
    """All answers to a replay request, as frames."""
    socket.send_multipart(make_replay_request(first))
    answers = []
    for _ in range(100):
        answers.append(receive(socket))
        if read_message(answers[-1]).is_end_of_replay:
            break
    return answers


def test_message_has_topic_number_and_payload(context: Any, publisher: ZmqEventPublisher) -> None:
    socket, start = subscribe(context, publisher)
    assert [publisher.publish(b"first"), publisher.publish(b"second")] == [start, start + 1]
    assert receive(socket) == [b"kv-events", struct.pack(">q", start), b"first"]
    assert read_message(receive(socket)) == EventMessage(start + 1, b"second")


def test_replay_answers_from_the_number_asked_for_and_ends_with_a_mark(
    context: Any, publisher: ZmqEventPublisher
) -> None:
    for value in b"abc":
        publisher.publish(bytes([value]))
    socket = connect(context, zmq.DEALER, publisher.replay_endpoint)
    assert ask(socket, 1) == [
        [b"", struct.pack(">q", 1), b"b"],
        [b"", struct.pack(">q", 2), b"c"],
        [b"", struct.pack(">q", -1), b""],
    ]
    assert [read_message(frames).sequence for frames in ask(socket, 3)] == [-1]


def test_a_missed_message_shows_as_a_hole_and_is_replayed(context: Any, publisher: ZmqEventPublisher) -> None:
    socket, start = subscribe(context, publisher)
    socket.unsubscribe(b"kv-events")
    for _ in range(1000):
        publisher.publish(b"lost")
        is_heard = socket.poll(20)
        if not is_heard:
            break
        socket.recv_multipart()
    assert not is_heard
    lost = publisher.next_sequence - 1
    socket.subscribe(b"kv-events")
    for _ in range(1000):
        publisher.publish(b"heard")
        if socket.poll(20):
            break
    heard = read_message(receive(socket))
    assert heard.sequence > lost >= start
    answers = [read_message(frames) for frames in ask(connect(context, zmq.DEALER, publisher.replay_endpoint), lost)]
    sequences = [message.sequence for message in answers]
    assert heard.sequence in sequences
    assert sequences[:-1] == list(range(sequences[0], sequences[-2] + 1))


def test_replay_keeps_a_bounded_number_of_messages(context: Any, publisher: ZmqEventPublisher) -> None:
    for value in range(12):
        publisher.publish(bytes([value]))
    answers = ask(connect(context, zmq.DEALER, publisher.replay_endpoint), 0)
    assert [read_message(frames).sequence for frames in answers] == [7, 8, 9, 10, 11, -1]


def test_a_req_socket_and_a_malformed_request_are_answered(context: Any, publisher: ZmqEventPublisher) -> None:
    publisher.publish(b"a")
    socket = connect(context, zmq.DEALER, publisher.replay_endpoint)
    for request in ([b"", b"short"], [b"", b"x", b"y", b"z"], [struct.pack(">q", 0)]):
        socket.send_multipart(request)
        assert read_message(receive(socket)).is_end_of_replay
    assert len(ask(socket, 0)) == 2  # and goes on answering


@pytest.mark.parametrize(
    "frames",
    [
        [b"topic", struct.pack(">q", 4), b"payload"],
        [struct.pack(">q", 4), b"payload"],
        [b"", struct.pack(">q", 4), b"payload"],
        [b"", b"topic", struct.pack(">q", 4), b"payload"],
    ],
)
def test_both_layouts_of_answers_are_read(frames: list[bytes]) -> None:
    assert read_message(frames) == EventMessage(4, b"payload")


@pytest.mark.parametrize("frames", [[], [b"x"], [b"topic", b"short", b"payload"]])
def test_other_frames_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(InvalidInputError, match="not an event message"):
        read_message(frames)


def test_topic_is_an_option_and_replay_is_off_by_default(context: Any) -> None:
    with ZmqEventPublisher(LOOPBACK, topic="") as publisher:
        assert publisher.replay_endpoint is None
        socket = context.socket(zmq.SUB)
        socket.connect(publisher.endpoint)
        socket.subscribe(b"")
        for _ in range(1000):
            publisher.publish(b"x")
            if socket.poll(20):
                break
        assert receive(socket)[0] == b""


def test_closing_frees_the_endpoint_and_ends_publishing() -> None:
    publisher = ZmqEventPublisher(LOOPBACK, LOOPBACK)
    endpoint = publisher.endpoint
    with pytest.raises(InvalidInputError, match="cannot publish events on"):
        ZmqEventPublisher(endpoint)
    publisher.close()
    publisher.close()
    with pytest.raises(InvalidInputError, match="closed"):
        publisher.publish(b"late")
    with ZmqEventPublisher(endpoint) as again:
        assert again.endpoint == endpoint


def test_ranks_have_ports_of_their_own() -> None:
    assert offset_port("tcp://*:5557", 3) == "tcp://*:5560"
    assert offset_port("inproc://events", 0) == "inproc://events"
    assert offset_port("ipc:///tmp/events", 2) == "ipc:///tmp/events_2"


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(MissingExtraError, match=r'pip install "trtkv\[events\]"'):
        ZmqEventPublisher(LOOPBACK)
