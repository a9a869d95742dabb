"""LevelQueues: the free blocks of one level, lowest priority first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    """Queues of one level by priority: in each the blocks at the front, then those in the order of a policy.

    Blocks that were never used stand between the two at the default priority. Where priorities do not count, all
    blocks stand at that one. C++: mFreeQueues of one cache level.
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
        self._fronts: list[FrontQueue | None] = [None] * (MAX_RETENTION_PRIORITY + 1)
        self._used_priorities = 1 << _DEFAULT  # bit set: its queues may hold blocks
        self.default = self._get_queue(_DEFAULT)
        self.default_front = self._get_front(_DEFAULT)
        self.fresh = FreshBlocks(self.level, ids, self.default_front, make_block)

    def _get_queue(self, priority: Priority) -> FreeBlocksQueue:
        queue = self._queues[priority]
        if queue is None:
            queue = FreeBlocksQueue(self.level, priority, self._eviction.make_policy(self._description))
            self._queues[priority] = queue
        return queue

    def _get_front(self, priority: Priority) -> FrontQueue:
        front = self._fronts[priority]
        if front is None:
            front = self._fronts[priority] = FrontQueue(self.level, priority)
        return front

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
        used = self._used_priorities
        while used:
            lowest = used & -used
            priority = lowest.bit_length() - 1
            front, queue = self._fronts[priority], self._queues[priority]
            block = None if front is None else front.policy.peek()
            if block is None:
                if priority == _DEFAULT and len(self.fresh):
                    block = self.fresh.peek()
                elif queue is not None:
                    block = queue.policy.peek()
            if block is not None:
                if block.ref_count:
                    raise LogicError(f"free queue of level {self.level} holds referenced block {block.block_id}")
                return block, priority
            used ^= lowest
            if priority != _DEFAULT:
                self._used_priorities ^= lowest
        return None

    def take(self, count: int) -> list[KVCacheBlock]:
        """Take the next blocks; there must be as many. Nothing is changed if memory for new block objects runs out.

        The caller clears their ``free_queue``, in a loop it makes anyway.
        """
        num_before_fresh = sum(map(len, self._queues_before_fresh()))
        self.fresh.make(min(max(0, count - num_before_fresh), len(self.fresh)))
        taken: list[KVCacheBlock] = []
        used = self._used_priorities
        while len(taken) < count:
            lowest = used & -used
            priority = lowest.bit_length() - 1
            front, queue = self._fronts[priority], self._queues[priority]
            if front is not None:
                taken += front.take(count - len(taken))
            if priority == _DEFAULT:
                taken += self.fresh.take(count - len(taken))
            if queue is not None:
                taken += queue.take(count - len(taken))
            used ^= lowest
        self.num_free -= count
        return taken

    def _queues_before_fresh(self) -> list[FreeBlocksQueue]:
        queues: list[FreeBlocksQueue] = [self.default_front]
        below = self._used_priorities & ((1 << _DEFAULT) - 1)
        if below:
            queues += [queue for queue in self.queues() if queue.priority < _DEFAULT]
        return queues

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
        """Put a block at the front of its priority, or where the policy has it."""
        priority = self.get_priority_of(block)
        self._used_priorities |= 1 << priority
        if to_front:
            front = self._get_front(priority)
            front.push(block)
            block.free_queue = front
        else:
            queue = self._get_queue(priority)
            queue.append((block,))
            block.free_queue = queue
        self.num_free += 1

    # -- looking ------------------------------------------------------------------------------------

    def queues(self) -> list[FreeBlocksQueue]:
        """All queues made so far, at each priority the front first."""
        pairs = zip(self._fronts, self._queues, strict=True)
        return [queue for pair in pairs for queue in pair if queue is not None]

    def free_ids(self) -> Iterator[tuple[Priority, list[BlockId]]]:
        """Priorities with free blocks, lowest first, and the ids of the blocks, next first."""
        for priority, (front, queue) in enumerate(zip(self._fronts, self._queues, strict=True)):
            ids = [] if front is None else [block.block_id for block in front]
            if priority == _DEFAULT:
                ids += self.fresh.remaining_ids()
            if queue is not None:
                ids += [block.block_id for block in queue]
            if ids:
                yield priority, ids

    def looks_at(self, priority: Priority) -> bool:
        """Whether victims are looked for at a priority."""
        return bool(self._used_priorities >> priority & 1)
