"""StagingRing: how small lists of int32 travel to a device without waiting for it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


class Event(Protocol):
    """What a CUDA event offers; a test may bring its own."""

    def record(self, stream: torch.cuda.Stream) -> None:
        """Take place once the stream has done its work so far."""

    def query(self) -> bool:
        """Whether it has taken place."""


@dataclass(slots=True)
class _StagingBuffer:
    """Pinned host memory and the event that ends the last copy out of it."""

    host: torch.Tensor
    copied: Event


class StagingRing:
    """Host buffers used in turn. A buffer is written again only after the copy out of it has ended.

    When the oldest buffer is still being read, a further one is made: the ring grows as far as the device lags behind
    and the host never waits. On a CPU device nothing is staged.
    """

    def __init__(self, device: torch.device | str, min_capacity: int = 1024) -> None:
        """``min_capacity``: int32 entries of the smallest buffer."""
        import torch

        self.device = torch.device(device)
        self._min_capacity = min_capacity
        self._buffers: deque[_StagingBuffer] = deque()

    @property
    def num_buffers(self) -> int:
        """Host buffers made so far and still kept."""
        return len(self._buffers)

    def send(self, values: NDArray[np.int32]) -> torch.Tensor:
        """Copy ``values`` to the device, in order with the current stream; the array may be changed at once."""
        import torch

        if self.device.type == "cpu":
            return torch.from_numpy(values.copy())
        buffer = self._take_buffer(len(values))
        host = buffer.host[: len(values)]
        host.numpy()[:] = values
        on_device = torch.empty(len(values), dtype=torch.int32, device=self.device)
        on_device.copy_(host, non_blocking=True)
        buffer.copied.record(torch.cuda.current_stream(self.device))
        self._buffers.append(buffer)
        return on_device

    def _take_buffer(self, size: int) -> _StagingBuffer:
        """The oldest buffer if it is free and large enough, else a new one; a free one that is too small is dropped."""
        if self._buffers and self._buffers[0].copied.query():
            oldest = self._buffers.popleft()
            if len(oldest.host) >= size:
                return oldest
        return self._make_buffer(size)

    def _make_buffer(self, size: int) -> _StagingBuffer:
        import torch

        capacity = max(self._min_capacity, 1 << (size - 1).bit_length())
        event: Event = torch.cuda.Event()
        return _StagingBuffer(torch.empty(capacity, dtype=torch.int32, pin_memory=True), event)
