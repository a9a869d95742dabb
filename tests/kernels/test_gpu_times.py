"""Times on a device: what the host needs to queue calls is not part of them."""

from __future__ import annotations

import pytest

from tools.gpu_times import FIRST_SLEEP_CYCLES, Timing, measure, print_timings


class FakeEvent:
    """Takes place when the device gets there."""

    def __init__(self, device: FakeCuda) -> None:
        self._device = device
        self.time = 0.0

    def record(self) -> None:
        self.time = self._device.queue()

    def query(self) -> bool:
        return self._device.host_time >= self.time

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.time - self.time) / 1000


class FakeCuda:
    """A host that queues calls and a device that runs them in order; times in microseconds."""

    def __init__(self, host_cost: float, device_cost: float, cycles_per_us: float = 2000.0) -> None:
        self.host_time = self.device_time = 0.0
        self.sleeps: list[int] = []
        self._costs = (host_cost, device_cost)
        self._cycles_per_us = cycles_per_us

    def queue(self, device_cost: float = 0.0, host_cost: float = 0.0) -> float:
        self.host_time += host_cost
        self.device_time = max(self.device_time, self.host_time) + device_cost
        return self.device_time

    def call(self) -> None:
        self.queue(self._costs[1], self._costs[0])

    def Event(self, enable_timing: bool) -> FakeEvent:  # noqa: N802 (torch's name)
        assert enable_timing
        return FakeEvent(self)

    def synchronize(self) -> None:
        self.host_time = max(self.host_time, self.device_time)

    def _sleep(self, cycles: int) -> None:
        self.sleeps.append(cycles)
        self.queue(cycles / self._cycles_per_us)


@pytest.mark.parametrize("host_cost", [1.0, 20.0, 45.0])
def test_time_of_the_host_does_not_count(host_cost: float) -> None:
    cuda = FakeCuda(host_cost, device_cost=3.0)
    assert measure(cuda.call, cuda=cuda) == pytest.approx(3.0)
    assert cuda.sleeps == [FIRST_SLEEP_CYCLES]


def test_the_device_sleeps_longer_when_the_host_was_too_slow() -> None:
    cuda = FakeCuda(host_cost=80.0, device_cost=3.0)
    assert measure(cuda.call, cuda=cuda) == pytest.approx(3.0)
    assert cuda.sleeps == [FIRST_SLEEP_CYCLES, 2 * FIRST_SLEEP_CYCLES]


def test_a_call_that_waits_for_the_device_is_refused() -> None:
    cuda = FakeCuda(1.0, 3.0)

    def wait() -> None:
        cuda.call()
        cuda.synchronize()

    with pytest.raises(RuntimeError, match="a call waits for the device"):
        measure(wait, cuda=cuda)


def test_table_shows_device_and_host_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    print_timings([Timing("copy", 10.0, 4.0, 1500.0, 33.25), Timing("empty kernel", 2.0, 2.0)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["operation", "device", "us", "floor", "us", "ratio", "host", "us", "GB/s"]
    assert lines[1] == ["copy", "10.00", "4.00", "2.50", "33.2", "1500"]
    assert lines[2] == ["empty", "kernel", "2.00", "2.00", "1.00"]
