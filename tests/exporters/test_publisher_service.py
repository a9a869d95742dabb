"""A publisher that is left running: what it refuses, what clients cost that do not read, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from trtkv.errors import InvalidInputError
from trtkv.exporters.endpoints import check_endpoint, offset_port
from trtkv.exporters.event_message import make_replay_request, read_message
from trtkv.exporters.replay_buffer import ReplayBuffer
from trtkv.exporters.replay_service import MAX_REPLAYS, ReplayService
from trtkv.exporters.zmq_event_publisher import DEFAULT_ENDPOINT, ZmqEventPublisher

zmq = pytest.importorskip("zmq", reason="pyzmq is not installed; it carries the messages")

LOOPBACK = "tcp://127.0.0.1:*"
WAIT_MS = 10_000


@pytest.fixture
def context() -> Iterator[Any]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


def ask(context: Any, endpoint: str | None, first: int = 0, high_water_mark: int = 1000) -> Any:
    socket = context.socket(zmq.DEALER)
    socket.set_hwm(high_water_mark)
    socket.setsockopt(zmq.RCVBUF, 4096)
    socket.connect(endpoint)
    socket.send_multipart(make_replay_request(first))
    return socket


def read_replay(socket: Any) -> list[int]:
    numbers: list[int] = []
    while not numbers or numbers[-1] >= 0:
        assert socket.poll(WAIT_MS), f"the replay stopped after {numbers[-3:]}"
        numbers.append(read_message(socket.recv_multipart()).sequence)
    return numbers


def test_default_is_this_machine_only() -> None:
    assert DEFAULT_ENDPOINT.startswith("tcp://127.0.0.1:")


@pytest.mark.parametrize(
    "endpoint", ["tcp://127.0.0.1:99999", "tcp://127.0.0.1", "127.0.0.1:5557", "", 5557, "tcp://:1"]
)
def test_endpoints_that_are_none_are_refused(endpoint: Any) -> None:
    for call in (check_endpoint, ZmqEventPublisher, lambda value: ZmqEventPublisher(LOOPBACK, value)):
        with pytest.raises(InvalidInputError, match=r"(endpoint is|port of) "):
            call(endpoint)


def test_rank_beyond_the_last_port_is_refused() -> None:
    assert offset_port("tcp://127.0.0.1:65530", 5) == "tcp://127.0.0.1:65535"
    assert offset_port(LOOPBACK, 3) == LOOPBACK
    with pytest.raises(InvalidInputError, match="is 65536; give a value from 0 to 65535"):
        offset_port("tcp://127.0.0.1:65530", 6)
    with pytest.raises(InvalidInputError, match="rank is -1"):
        offset_port("tcp://127.0.0.1:65530", -1)


@pytest.mark.parametrize("payload", ["text", None, 3, b""])
def test_payloads_that_are_none_are_refused_and_replays_go_on(context: Any, payload: Any) -> None:
    with ZmqEventPublisher(LOOPBACK, LOOPBACK) as publisher:
        publisher.publish(b"good")
        with pytest.raises(InvalidInputError, match="payload is"):
            publisher.publish(payload)
        assert read_replay(ask(context, publisher.replay_endpoint)) == [0, -1]
        assert publisher.next_sequence == 1


@pytest.mark.parametrize(
    "options", [{"num_replay_batches": -1}, {"high_water_mark": 0}, {"max_replay_bytes": "1"}, {"topic": b"x"}]
)
def test_other_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        ZmqEventPublisher(LOOPBACK, **options)


def test_replay_longer_than_what_a_client_queues_ends(context: Any) -> None:
    with ZmqEventPublisher(LOOPBACK, LOOPBACK, high_water_mark=3) as publisher:
        for _ in range(2000):
            publisher.publish(bytes(2000))
        assert read_replay(ask(context, publisher.replay_endpoint, high_water_mark=2)) == [*range(2000), -1]
        assert publisher.counters.num_replayed == 2000


def test_client_that_asks_and_does_not_read_does_not_hold_up_others(context: Any) -> None:
    with ZmqEventPublisher(LOOPBACK, LOOPBACK, replay_timeout_s=0.2) as publisher:
        for _ in range(300):
            publisher.publish(bytes(100_000))
        silent = [ask(context, publisher.replay_endpoint, high_water_mark=1) for _ in range(3)]
        assert read_replay(ask(context, publisher.replay_endpoint, 290)) == [*range(290, 300), -1]
        for _ in range(1000):
            if publisher.counters.num_replays_aborted == len(silent):
                break
            threading.Event().wait(0.01)
        assert publisher.counters.num_replays_aborted == len(silent)
        assert publisher.counters.num_replays_active == 0
        assert publisher.counters.num_replayed < 3 * 300


def test_buffer_keeps_a_count_and_a_size() -> None:
    buffer = ReplayBuffer(3, 10)
    for size in (1, 2, 3, 4):
        buffer.append(bytes(size))
    assert (len(buffer), buffer.num_bytes, buffer.next_sequence) == (3, 9, 4)
    assert buffer.get_from(0) == (1, bytes(2))
    assert buffer.get_from(4) is None
    buffer.append(bytes(8))
    assert (len(buffer), buffer.num_bytes) == (1, 8)
    buffer.append(bytes(11))
    assert (len(buffer), buffer.get_from(0)) == (0, None)


def test_subscriber_that_does_not_read_is_counted(context: Any) -> None:
    with ZmqEventPublisher(LOOPBACK, high_water_mark=10) as publisher:
        socket = context.socket(zmq.SUB)
        socket.set_hwm(1)
        socket.setsockopt(zmq.RCVBUF, 4096)
        socket.connect(publisher.endpoint)
        socket.subscribe(b"")
        for _ in range(1000):
            publisher.publish(b"x")
            if publisher.counters.num_subscriptions:
                break
            threading.Event().wait(0.01)
        assert publisher.counters.num_overflows == 0
        for _ in range(500):
            publisher.publish(bytes(100_000))
        counters = publisher.counters
        assert 0 < counters.num_overflows < 500
        assert counters.num_published == publisher.next_sequence
        socket.close(linger=0)
        for _ in range(1000):
            publisher.publish(b"x")
            if not publisher.counters.num_subscriptions:
                break
            threading.Event().wait(0.01)
        assert publisher.counters.num_subscriptions == 0


def test_closing_while_others_publish() -> None:
    """Publishing threads get InvalidInputError and nothing else, and the last messages reach a reader."""
    for _ in range(5):
        publisher = ZmqEventPublisher(LOOPBACK, LOOPBACK)
        failures: list[BaseException] = []

        def publish(publisher: ZmqEventPublisher = publisher, failures: list[BaseException] = failures) -> None:
            try:
                while True:
                    publisher.publish(b"x" * 1000)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=publish) for _ in range(4)]
        for thread in threads:
            thread.start()
        while publisher.next_sequence < 100:
            threading.Event().wait(0.001)
        publisher.close()
        for thread in threads:
            thread.join(10)
        assert [type(failure) for failure in failures] == [InvalidInputError] * 4
        assert publisher.endpoint.startswith("tcp://127.0.0.1:")
        assert publisher.counters.num_published == publisher.next_sequence


def test_messages_published_before_closing_arrive(context: Any) -> None:
    publisher = ZmqEventPublisher(LOOPBACK)
    socket = context.socket(zmq.SUB)
    socket.connect(publisher.endpoint)
    socket.subscribe(b"")
    while not publisher.counters.num_subscriptions:
        publisher.publish(b"x")
        threading.Event().wait(0.01)
    for _ in range(500):
        publisher.publish(bytes(1000))
    last = publisher.next_sequence - 1
    publisher.close(linger_ms=10_000)
    numbers = []
    while not numbers or numbers[-1] < last:
        assert socket.poll(WAIT_MS)
        numbers.append(read_message(socket.recv_multipart()).sequence)
    assert numbers == list(range(numbers[0], last + 1))


class FakeSocket:
    """A ROUTER socket of which every client is full."""

    def __init__(self) -> None:
        self.received: list[list[bytes]] = []
        self.sent: list[tuple[bytes, ...]] = []
        self.is_full = True

    def setsockopt(self, *_: object) -> None:
        pass

    def poll(self, _: int) -> bool:
        return bool(self.received)

    def recv_multipart(self, _: int) -> list[bytes]:
        if not self.received:
            raise zmq.Again
        return self.received.pop(0)

    def send_multipart(self, frames: tuple[bytes, ...], _: int) -> None:
        if self.is_full:
            raise zmq.Again
        self.sent.append(frames)


def test_too_many_clients_at_once_get_the_end_mark_alone() -> None:
    socket, buffer = FakeSocket(), ReplayBuffer(10, 1000)
    buffer.append(b"x")
    service = ReplayService(socket, buffer, 30.0, clock=lambda: 0.0)
    socket.received = [[b"%d" % index, *make_replay_request(0)] for index in range(MAX_REPLAYS + 5)]
    for _ in range(10):
        service._step()
    assert (service.num_replays, service.num_refused, service.num_active) == (MAX_REPLAYS, 5, MAX_REPLAYS + 5)
    socket.is_full = False
    service._step()
    assert service.num_active == 0
    by_client: dict[bytes, list[bytes]] = {}
    for identity, _, _, payload in socket.sent:
        by_client.setdefault(identity, []).append(payload)
    assert sorted(by_client.values()) == [[b""]] * 5 + [[b"x", b""]] * MAX_REPLAYS
