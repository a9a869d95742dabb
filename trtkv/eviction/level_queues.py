"""LevelQueues: the free blocks of one level, those that hold nothing first, then by priority."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import BlockId, Priority
from trtkv.errors import LogicError
from trtkv.eviction.free_blocks_queue import FreeBlocksQueue, FrontQueue
from trtkv.eviction.fresh_blocks import FreshBlocks
from trtkv.eviction.protocol import LevelOfBlocks
from trtkv.eviction.registry import Eviction
from trtkv.records.retention_config import DEFAULT_RETENTION_PRIORITY, MAX_RETENTION_PRIORITY

_DEFAULT: Final = DEFAULT_RETENTION_PRIORITY


class LevelQueues:
    """Queues of one level: blocks at the front, those never used, then by priority, each in the order of a policy.

    Blocks that no request can find go to the front, so that nothing cached is given up while one of them is free.
    Where priorities do not count, all blocks stand at the default one. C++: mFreeQueues of one cache level.
    """

    def __init__(
        self,
        level: LevelOfBlocks,
        ids: range,
        make_block: Callable[[BlockId, FreshBlocks], KVCacheBlock],
        eviction: Eviction,
    ) -> None:
        self.level = level.level
        self._description = level
        self._eviction = eviction
        self.num_free = len(ids)
        self._queues: list[FreeBlocksQueue | None] = [None] * (MAX_RETENTION_PRIORITY + 1)
        self._used_priorities = 1 << _DEFAULT  # bit set: its queues may hold blocks
        self.default = self._get_queue(_DEFAULT)
        self.default_front = FrontQueue(self.level, _DEFAULT)
        self.fresh = FreshBlocks(self.level, ids, self.default_front, make_block)

    def _get_queue(self, priority: Priority) -> FreeBlocksQueue:
        queue = self._queues[priority]
        if queue is None:
            queue = FreeBlocksQueue(self.level, priority, self._eviction.make_policy(self._description))
            self._queues[priority] = queue
        return queue

    def get_queue_of(self, block: KVCacheBlock) -> FreeBlocksQueue:
        """The queue that a block of this level belongs to, whether it is free or not."""
        return self._get_queue(self.get_priority_of(block))

    def get_priority_of(self, block: KVCacheBlock) -> Priority:
        """The priority that counts for a block."""
        return block.priority if self._eviction.by_priority else _DEFAULT

    @property
    def has_default_priority_only(self) -> bool:
        """Whether every free block certainly has the default priority."""
        return self._eviction.by_priority and self._used_priorities == 1 << _DEFAULT

    # -- taking -----------------------------------------------------------------------------------

    def peek(self) -> tuple[KVCacheBlock, Priority] | None:
        """The block to take next and the priority of its queue. Changes nothing that can be seen."""
        block = self._peek_before_priorities()
        priority = _DEFAULT
        used = self._used_priorities
        while block is None:
            if not used:
                return None
            lowest = used & -used
            priority = lowest.bit_length() - 1
            block = self._peek_at(priority)
            used ^= lowest
            if block is None and priority != _DEFAULT:
                self._used_priorities ^= lowest
        if block.ref_count:
            raise LogicError(f"free queue of level {self.level} holds referenced block {block.block_id}")
        return block, priority

    def _peek_before_priorities(self) -> KVCacheBlock | None:
        """The next block that holds nothing, from the front or never used."""
        block = self.default_front.policy.peek()
        return self.fresh.peek() if block is None and len(self.fresh) else block

    def _peek_at(self, priority: Priority) -> KVCacheBlock | None:
        """The next block of a priority."""
        queue = self._queues[priority]
        return None if queue is None else queue.policy.peek()

    def take(self, count: int) -> list[KVCacheBlock]:
        """Take the next blocks; there must be as many. Nothing is changed if memory for new block objects runs out.

        The caller clears their ``free_queue``, in a loop it makes anyway. Hot: a level has used blocks, or none yet.
        """
        fresh, num_front = self.fresh, len(self.default_front.policy)
        if count > num_front and len(fresh):
            fresh.make(min(count - num_front, len(fresh)))
        taken = self.default_front.policy.take(count) if num_front else []
        if len(taken) < count and len(fresh):
            taken += fresh.take(count - len(taken))
        if len(taken) < count:
            for queue in self._used_queues():
                taken += queue.policy.take(count - len(taken))
                if len(taken) == count:
                    break
        self.num_free -= count
        return taken

    def _used_queues(self) -> list[FreeBlocksQueue]:
        """The queues of priorities that may hold blocks, lowest first."""
        used = self._used_priorities
        if used == 1 << _DEFAULT:
            return [self.default]
        queues = []
        while used:
            lowest = used & -used
            queues.append(self._get_queue(lowest.bit_length() - 1))
            used ^= lowest
        return queues

    def _sources(self, queues: Sequence[FreeBlocksQueue]) -> list[FreeBlocksQueue | FreshBlocks]:
        """Where blocks are taken from, in this order, if these queues are looked at, lowest priority first."""
        return [self.default_front, self.fresh, *queues]

    def _all_sources(self) -> list[FreeBlocksQueue | FreshBlocks]:
        return self._sources([queue for queue in self._queues if queue is not None])

    def take_first(self, block: KVCacheBlock) -> None:
        """Take the block that ``peek`` returned, as a victim; ``discard`` is for blocks that are claimed."""
        taken = block.free_queue.take(1)[0]
        if taken is not block:
            raise LogicError(f"block {block.block_id} is not the next of its queue, {taken.block_id} is")
        block.free_queue = None
        self.num_free -= 1

    def discard(self, block: KVCacheBlock) -> None:
        """Take a block out, wherever it stands."""
        block.free_queue.discard((block,))
        block.free_queue = None
        self.num_free -= 1

    # -- giving back --------------------------------------------------------------------------------

    def put(self, block: KVCacheBlock, to_front: bool) -> None:
        """Put a block at the front, or where the policy of its priority has it."""
        if to_front:
            front = self._prepare_front(block)
            front.push(block)
            block.free_queue = front
        else:
            priority = self.get_priority_of(block)
            self._used_priorities |= 1 << priority
            queue = self._get_queue(priority)
            queue.append((block,))
            block.free_queue = queue
        self.num_free += 1

    def _prepare_front(self, block: KVCacheBlock) -> FrontQueue:
        """The front that a block goes to; the priority of what it held before counts no more."""
        block.priority = _DEFAULT
        return self.default_front

    # -- looking ------------------------------------------------------------------------------------

    def queues(self) -> list[FreeBlocksQueue]:
        """All queues made so far, in the order in which blocks are taken."""
        return [source for source in self._all_sources() if isinstance(source, FreeBlocksQueue)]

    def free_ids(self) -> Iterator[tuple[Priority, list[BlockId]]]:
        """Free blocks in the order in which they are taken: runs of one priority, and the ids of each.

        Those that were never used, or hold nothing, are counted to the default priority.
        """
        run: list[BlockId] = []
        priority = _DEFAULT
        for source in self._all_sources():
            ids = source.remaining_ids() if isinstance(source, FreshBlocks) else [block.block_id for block in source]
            if ids and source.priority != priority:
                if run:
                    yield priority, run
                run, priority = [], source.priority
            run += ids
        if run:
            yield priority, run

    def looks_at(self, priority: Priority) -> bool:
        """Whether victims are looked for at a priority."""
        return bool(self._used_priorities >> priority & 1)
