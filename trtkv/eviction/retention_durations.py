"""RetentionDurations: how long the priorities of blocks hold, and which free block falls back next."""

from __future__ import annotations

from typing import Final

from sortedcontainers import SortedDict

from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import BlockId

_NS_PER_MS: Final = 1_000_000


class RetentionDurations:
    """Durations of the few blocks that have one. They start to run when a block is released."""

    def __init__(self) -> None:
        self.by_block: dict[KVCacheBlock, int] = {}
        """Milliseconds."""
        self._expiring: SortedDict[tuple[int, int], KVCacheBlock] = SortedDict()
        self._expiry_keys: dict[KVCacheBlock, tuple[int, int]] = {}
        self._num_started = 0

    def start(self, block: KVCacheBlock, now: int) -> None:
        """Let the duration of a block run from a reading of the clock (ns) on."""
        self._num_started += 1
        key = (now + self.by_block[block] * _NS_PER_MS, self._num_started)
        self._expiry_keys[block] = key
        self._expiring[key] = block

    def end(self, block: KVCacheBlock) -> None:
        """Forget the duration of a block: its priority holds for good."""
        self.by_block.pop(block, None)
        self.stop(block)

    def stop(self, block: KVCacheBlock) -> None:
        """Let the duration of a block no longer run."""
        key = self._expiry_keys.pop(block, None)
        if key is not None:
            del self._expiring[key]

    def first(self) -> tuple[int, KVCacheBlock] | None:
        """The block that expires next, with the time (ns)."""
        if not self._expiring:
            return None
        key, block = self._expiring.peekitem(0)
        return key[0], block

    def get_expiration_time(self, block: KVCacheBlock) -> int | None:
        """Clock reading (ns) at which the duration of a free block is over."""
        key = self._expiry_keys.get(block)
        return None if key is None else key[0]

    def expiring(self) -> list[tuple[BlockId, int]]:
        """(block id, expiry in ns) in the order of expiry."""
        return [(block.block_id, key[0]) for key, block in self._expiring.items()]
