"""ReplayBuffer: the newest payloads, by number, within a count and a size."""

from __future__ import annotations

import threading


class ReplayBuffer:
    """Numbers payloads from 0 on and keeps the newest ``max_batches`` of them, ``max_bytes`` together. Thread-safe."""

    def __init__(self, max_batches: int, max_bytes: int) -> None:
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._payloads: dict[int, bytes] = {}
        self._num_bytes = 0
        self._next_sequence = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._payloads)

    @property
    def num_bytes(self) -> int:
        """Bytes of the payloads kept."""
        return self._num_bytes

    @property
    def next_sequence(self) -> int:
        """Number of the next payload."""
        return self._next_sequence

    def append(self, payload: bytes) -> int:
        """Keep a payload, dropping the oldest ones as needed; returns its number."""
        with self._lock:
            sequence = self._next_sequence
            self._next_sequence += 1
            self._payloads[sequence] = payload
            self._num_bytes += len(payload)
            while self._payloads and (len(self._payloads) > self._max_batches or self._num_bytes > self._max_bytes):
                oldest = next(iter(self._payloads))
                self._num_bytes -= len(self._payloads.pop(oldest))
            return sequence

    def get_from(self, sequence: int) -> tuple[int, bytes] | None:
        """The first payload kept of this number or a later one, with its number; None if there is none."""
        with self._lock:
            payload = self._payloads.get(sequence)
            if payload is not None:
                return sequence, payload
            if not self._payloads or sequence >= self._next_sequence:
                return None
            oldest = next(iter(self._payloads))
            return oldest, self._payloads[oldest]
