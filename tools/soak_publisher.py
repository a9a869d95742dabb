"""A publisher of events under many subscribers, some of which never read: memory of its process, and lost messages.

Run: ``python tools/soak_publisher.py [--seconds 60] [--subscribers 100] [--silent 20] [--rate 200]
[--payload-bytes 4096] [--high-water-mark 2000] [--max-growth-mib 64]``.

The subscribers are in a process of their own. Each reader checks that the numbers of its messages have no hole. Exit
status 1 if a reader lost a message, or if the publisher's memory grew by more than was allowed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.arguments import at_least, run_tool
from trtkv.exporters.event_message import import_zmq, read_message
from trtkv.exporters.zmq_event_publisher import DEFAULT_TOPIC, ZmqEventPublisher

LOOPBACK: Final = "tcp://127.0.0.1:*"
END: Final = b"end"
PATIENCE_S: Final = 60


def subscribe(endpoint: str, num_readers: int, num_silent: int, pipe: Connection) -> None:
    """Read until the end with some sockets, never with the others; send (messages read, messages lost)."""
    zmq = import_zmq()
    context = zmq.Context(io_threads=1)
    silent, readers = [], []
    for index in range(num_readers + num_silent):
        socket = context.socket(zmq.SUB)
        socket.set_hwm(0 if index < num_readers else 1)
        if index >= num_readers:
            socket.setsockopt(zmq.RCVBUF, 4096)
        socket.connect(endpoint)
        socket.subscribe(DEFAULT_TOPIC.encode())
        (readers if index < num_readers else silent).append(socket)
    poller = zmq.Poller()
    for socket in readers:
        poller.register(socket, zmq.POLLIN)
    following: dict[object, int] = {}
    num_read = num_lost = 0
    remaining = set(readers)
    while remaining:
        ready = poller.poll(PATIENCE_S * 1000)
        if not ready:
            break
        for socket, _ in ready:
            message = read_message(socket.recv_multipart())
            num_lost += message.sequence - following.get(socket, message.sequence)
            following[socket] = message.sequence + 1
            num_read += 1
            if message.payload == END:
                remaining.discard(socket)
                poller.unregister(socket)
    pipe.send((num_read, num_lost, len(remaining)))
    context.destroy(linger=0)


def resident_mib() -> float:
    """Memory of this process now."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status has no VmRSS")


def publish(publisher: ZmqEventPublisher, seconds: float, rate: int, payload: bytes) -> tuple[float, float]:
    """Publish at a steady rate; memory before, and at its highest."""
    before = highest = resident_mib()
    start = time.monotonic()
    num_sent = 0
    while (now := time.monotonic() - start) < seconds:
        while num_sent < now * rate:
            publisher.publish(payload)
            num_sent += 1
        highest = max(highest, resident_mib())
        time.sleep(0.005)
    return before, highest


def main() -> int:
    """Run and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=at_least(1), default=60)
    parser.add_argument("--subscribers", type=at_least(1), default=100)
    parser.add_argument("--silent", type=at_least(0), default=20, help="of them that never read")
    parser.add_argument("--rate", type=at_least(1), default=200, help="messages a second")
    parser.add_argument("--payload-bytes", type=at_least(1), default=4096)
    parser.add_argument("--high-water-mark", type=at_least(1), default=2000)
    parser.add_argument("--max-growth-mib", type=at_least(1), default=64)
    options = parser.parse_args()
    if options.silent >= options.subscribers:
        parser.error(f"--silent is {options.silent} of {options.subscribers} subscribers; let at least one read")
    num_readers = options.subscribers - options.silent
    max_replay_bytes = 16 * 2**20
    with ZmqEventPublisher(
        LOOPBACK, LOOPBACK, high_water_mark=options.high_water_mark, max_replay_bytes=max_replay_bytes
    ) as publisher:
        processes = multiprocessing.get_context("spawn")
        mine, theirs = processes.Pipe()
        arguments = (publisher.endpoint, num_readers, options.silent, theirs)
        reader = processes.Process(target=subscribe, args=arguments, daemon=True)
        reader.start()
        if not publisher.wait_for_subscribers(options.subscribers, PATIENCE_S):
            raise TimeoutError(f"{options.subscribers} subscribers did not come in {PATIENCE_S} s")
        before, highest = publish(publisher, options.seconds, options.rate, b"x" * options.payload_bytes)
        publisher.publish(END)
        if not mine.poll(PATIENCE_S):
            raise TimeoutError(f"the readers did not end in {PATIENCE_S} s")
        num_read, num_lost, num_left = mine.recv()
        counters = publisher.counters
        reader.join(PATIENCE_S)
    growth = highest - before
    print(
        f"{counters.num_published:,} messages of {options.payload_bytes:,} bytes in {options.seconds} s "
        f"to {num_readers} readers and {options.silent} subscribers that never read"
    )
    print(f"read {num_read:,}, lost by readers {num_lost:,}, readers without the end {num_left}")
    print(f"subscribers found too far behind: {counters.num_overflows:,}")
    print(
        f"memory of the publisher: {before:.1f} MiB before, {highest:.1f} MiB at most, {growth:.1f} MiB more; "
        f"{counters.num_kept_bytes / 2**20:.1f} MiB are kept for replays"
    )
    return int(num_lost > 0 or num_left > 0 or growth > options.max_growth_mib)


if __name__ == "__main__":
    run_tool(main)
