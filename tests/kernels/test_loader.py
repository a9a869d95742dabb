"""Kernels join torch's stream, with every version of CuPy; a fake stands in for both libraries' devices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trtkv.kernels import _loader
from trtkv.kernels.kernel_launch import KernelLaunch


class Protocol:
    """A stream that follows the CUDA stream protocol."""

    cuda_stream = 77

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream


class Entered:
    """A context that notes when it is entered and left."""

    def __init__(self, log: list[object], name: object) -> None:
        self._log, self._name = log, name

    def __enter__(self) -> None:
        self._log.append(("enter", self._name))

    def __exit__(self, *_error: object) -> None:
        self._log.append(("leave", self._name))


def make_cupy(log: list[object], has_from_external: bool) -> Any:
    class Stream:
        pass

    if has_from_external:
        Stream.from_external = staticmethod(lambda stream: Entered(log, ("from_external", stream)))  # type: ignore[attr-defined]
    cuda = SimpleNamespace(
        Stream=Stream,
        ExternalStream=lambda handle, device: Entered(log, ("ExternalStream", handle, device)),
        Device=lambda index: Entered(log, ("device", index)),
    )
    return SimpleNamespace(cuda=cuda)


@pytest.mark.parametrize(
    ("has_from_external", "stream", "way"),
    [
        (True, Protocol(), "from_external"),
        (True, SimpleNamespace(cuda_stream=77), "ExternalStream"),
        (False, Protocol(), "ExternalStream"),
    ],
)
def test_a_stream_is_adopted_by_protocol_where_both_sides_know_it(
    has_from_external: bool, stream: Any, way: str
) -> None:
    log: list[object] = []
    with _loader.adopt_stream(make_cupy(log, has_from_external), stream, 3):
        pass
    name = ("from_external", stream) if way == "from_external" else ("ExternalStream", 77, 3)
    assert log == [("enter", name), ("leave", name)]


def test_a_launch_joins_the_stream_that_is_current_at_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    log: list[object] = []
    streams = [Protocol(), Protocol()]
    current = [streams[0]]
    monkeypatch.setattr(_loader, "_import_cupy", lambda: make_cupy(log, True))
    monkeypatch.setattr(_loader, "load_kernel", lambda source, kernel: lambda *args: log.append((source, kernel, args)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _index: current[0])
    launch = _loader.make_cupy_launcher(torch.device("cuda", 1))
    current[0] = streams[1]
    launch(KernelLaunch("a.cu", "a", (2, 1, 1), 64, ()))
    assert log[:3] == [
        ("enter", ("device", 1)),
        ("enter", ("from_external", streams[1])),
        ("a.cu", "a", ((2, 1, 1), (64, 1, 1), ())),
    ]
