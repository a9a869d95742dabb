"""RecordedLevelQueues: strictly by priority, whether a block holds anything or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import BlockId, Priority
from trtkv.eviction.free_blocks_queue import FreeBlocksQueue, FrontQueue
from trtkv.eviction.fresh_blocks import FreshBlocks
from trtkv.eviction.level_queues import LevelQueues
from trtkv.eviction.protocol import LevelOfBlocks
from trtkv.eviction.registry import Eviction


class RecordedLevelQueues(LevelQueues):
    """A front for each priority; blocks that were never used follow that of the default priority."""

    def __init__(
        self,
        level: LevelOfBlocks,
        ids: range,
        make_block: Callable[[BlockId, FreshBlocks], KVCacheBlock],
        eviction: Eviction,
    ) -> None:
        super().__init__(level, ids, make_block, eviction)
        self._fronts: dict[Priority, FrontQueue] = {self.default.priority: self.default_front}

    def _peek_before_priorities(self) -> KVCacheBlock | None:
        """Nothing goes before a lower priority."""
        return None

    def _peek_at(self, priority: Priority) -> KVCacheBlock | None:
        """The next block of a priority, from its front, never used, or from its queue."""
        front = self._fronts.get(priority)
        block = None if front is None else front.policy.peek()
        if block is None and priority == self.default.priority and len(self.fresh):
            return self.fresh.peek()
        return super()._peek_at(priority) if block is None else block

    def take(self, count: int) -> list[KVCacheBlock]:
        """Take the next blocks, as many as there are at each priority; see ``LevelQueues``."""
        sources = self._sources(self._used_queues())
        num_before_fresh = sum(map(len, sources[: sources.index(self.fresh)]))
        self.fresh.make(min(max(0, count - num_before_fresh), len(self.fresh)))
        taken: list[KVCacheBlock] = []
        for source in sources:
            taken += source.take(count - len(taken))
            if len(taken) == count:
                break
        self.num_free -= count
        return taken

    def _sources(self, queues: Sequence[FreeBlocksQueue]) -> list[FreeBlocksQueue | FreshBlocks]:
        """Where blocks are taken from, in this order."""
        sources: list[FreeBlocksQueue | FreshBlocks] = []
        for queue in queues:
            front = self._fronts.get(queue.priority)
            if front is not None:
                sources.append(front)
            if queue is self.default:
                sources.append(self.fresh)
            sources.append(queue)
        return sources

    def _prepare_front(self, block: KVCacheBlock) -> FrontQueue:
        """The front of a block's priority."""
        priority = self.get_priority_of(block)
        self._used_priorities |= 1 << self._get_queue(priority).priority
        return self._fronts.setdefault(priority, FrontQueue(self.level, priority))
