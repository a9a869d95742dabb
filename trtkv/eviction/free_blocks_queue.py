"""Where free blocks wait: queues of one level and priority, each in the order of a policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import Priority
from trtkv.eviction.lru import LRU
from trtkv.eviction.protocol import EvictionPolicy


class FreeBlocksQueue:
    """Free blocks of one level and priority in the order of ``policy``. C++: FreeBlocksQueue.

    A block that waits in a queue knows it (``free_queue``), so that it can be claimed from there.
    """

    __slots__ = ("level", "policy", "priority")

    def __init__(self, level: int, priority: Priority, policy: EvictionPolicy) -> None:
        self.level = level
        self.priority = priority
        self.policy = policy

    def __len__(self) -> int:
        return len(self.policy)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        return iter(self.policy)

    def append(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks in; whoever calls it sets their ``free_queue``, in a loop it makes anyway."""
        self.policy.released(blocks)

    def discard(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Take these blocks out, wherever they stand; the caller clears their ``free_queue``."""
        self.policy.claimed(blocks)

    def take(self, count: int) -> list[KVCacheBlock]:
        """Take the next blocks, or all if there are fewer; the caller clears their ``free_queue``."""
        return self.policy.take(count)


class FrontQueue(FreeBlocksQueue):
    """Blocks of one level and priority that go before those of the policy, the last one put in first."""

    __slots__ = ("_ring",)

    def __init__(self, level: int, priority: Priority) -> None:
        self._ring = LRU()
        super().__init__(level, priority, self._ring)

    def push(self, block: KVCacheBlock) -> None:
        """Put a block in; it goes next."""
        self._ring.put_first(block)
