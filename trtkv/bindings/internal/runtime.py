"""``tensorrt_llm.bindings.internal.runtime``: handles that callers pass around and the cache has no use for."""

from __future__ import annotations


class CudaStream:
    """A stream by its handle."""

    def __init__(self, stream_ptr: int, device: int = 0) -> None:
        self._handle = stream_ptr
        self._device = device

    def get_device(self) -> int:
        """Index of the device."""
        return self._device


class BufferManager:
    """A memory manager on a stream, given by its handle."""

    def __init__(self, stream: int, trim_pool: bool = False) -> None:
        self.stream = stream
        self.trim_pool = trim_pool


class TaskLayerModuleConfig:
    """Place of adapter weights; a name for annotations."""
