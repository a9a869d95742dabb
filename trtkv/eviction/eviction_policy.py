"""Which free block is taken next: lowest priority first, and within a priority the longest free one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from sortedcontainers import SortedDict

from trtkv.blocks.kv_cache_block import KVCacheBlock, create_root_block
from trtkv.blocks.old_generation import OldGeneration
from trtkv.common import (
    CACHED_BLOCKS_ROOT_ID,
    PLACEHOLDER_BLOCK_ID,
    PLACEHOLDER_LEVEL,
    PRIMARY_LEVEL,
    SECONDARY_LEVEL,
    BlockId,
    Priority,
)
from trtkv.errors import LogicError, OutOfBlocksError, check
from trtkv.records.kv_cache_index import SECONDARY_POOL_FLAG
from trtkv.records.retention_config import (
    DEFAULT_RETENTION_PRIORITY,
    DEFAULT_SECONDARY_OFFLOAD_MIN_PRIORITY,
    MAX_RETENTION_PRIORITY,
)

_MADE_TOGETHER: Final = 1024
"""Block objects made at a time, in about a third of a millisecond."""
_NUM_LEVELS: Final = 3
_NS_PER_MS: Final = 1_000_000


class FreeBlocksQueue:
    """Free blocks of one level and priority, first out first.

    A ring that a block of the queue's own closes: each block knows its neighbours (``_prev_free``, ``_next_free``), so
    taking one out of the middle is two assignments, and the queue needs no memory for them. Whoever moves a block sets
    its ``_free_queue``.
    """

    __slots__ = ("end", "level", "priority", "size")

    def __init__(self, level: int, priority: Priority) -> None:
        self.end = create_root_block(0)
        self.end._prev_free = self.end._next_free = self.end
        self.level = level
        self.priority = priority
        self.size = 0

    def __iter__(self) -> Iterator[KVCacheBlock]:
        block = self.end._next_free
        for _ in range(self.size):
            if block._block_id == CACHED_BLOCKS_ROOT_ID:
                return  # not intact
            yield block
            block = block._next_free

    def is_intact(self) -> bool:
        """Whether the ring closes after as many blocks as are counted, and leads back the same way."""
        block = self.end
        for _ in range(self.size + 1):
            if block._next_free._prev_free is not block:
                return False
            block = block._next_free
        return block is self.end

    def first(self) -> KVCacheBlock | None:
        """The block to be taken next, if there is one."""
        return self.end._next_free if self.size else None

    def insert_block(self, block: KVCacheBlock, to_front: bool) -> None:
        """Put a block at the back or at the front."""
        before = self.end if to_front else self.end._prev_free
        after = before._next_free
        block._prev_free, block._next_free = before, after
        before._next_free = after._prev_free = block
        self.size += 1

    def discard_block(self, block: KVCacheBlock) -> None:
        """Take a block out, wherever it stands."""
        before, after = block._prev_free, block._next_free
        before._next_free = after
        after._prev_free = before
        self.size -= 1

    def take(self, count: int) -> list[KVCacheBlock]:
        """Take the first ``count`` blocks, or all if there are fewer."""
        taken: list[KVCacheBlock] = []
        block = self.end._next_free
        for _ in range(min(count, self.size)):
            taken.append(block)
            block._free_queue = None
            block = block._next_free
        self.end._next_free = block
        block._prev_free = self.end
        self.size -= len(taken)
        return taken


class FreshBlocks:
    """Blocks of a level never used so far: a range of ids whose block objects are made when they are needed."""

    __slots__ = ("_front", "_make_block", "_num_taken", "_old_generation", "blocks", "ids", "level", "priority")

    def __init__(
        self, level: int, ids: range, front: FreeBlocksQueue, make_block: Callable[[BlockId, FreshBlocks], KVCacheBlock]
    ) -> None:
        self.level = level
        self.priority = DEFAULT_RETENTION_PRIORITY
        self.ids = ids
        self.blocks: list[KVCacheBlock] = []  # those made so far, taken or not, in the order of ids
        self._num_taken = 0
        self._front = front
        self._make_block = make_block
        self._old_generation = OldGeneration()

    def __len__(self) -> int:
        return len(self.ids) - self._num_taken

    def remaining_ids(self) -> range:
        """The ids left, in the order in which they are taken."""
        return self.ids[self._num_taken :]

    def get_block(self, index: int) -> KVCacheBlock:
        """The block of the index-th id, taken or not; making its object changes nothing else."""
        self._make_up_to(index + 1)
        return self.blocks[index]

    def _make_up_to(self, count: int) -> None:
        if count > len(self.blocks):
            num_more = max(count - len(self.blocks), _MADE_TOGETHER)
            self.blocks += self._old_generation.fill(num_more, lambda: self._make_next(count))

    def _make_next(self, count: int) -> list[KVCacheBlock]:
        """The blocks behind those made so far, up to a number of blocks at least."""
        num_made = len(self.blocks)  # counted here, as a finalizer that just ran may have asked for blocks too
        make_block = self._make_block
        return [make_block(block_id, self) for block_id in self.ids[num_made : max(count, num_made + _MADE_TOGETHER)]]

    def make_all(self) -> None:
        """Make every block object now."""
        self._make_up_to(len(self.ids))

    def make(self, count: int) -> None:
        """Make the objects of the next ones."""
        self._make_up_to(self._num_taken + count)

    def peek(self) -> KVCacheBlock:
        """The next one."""
        return self.get_block(self._num_taken)

    def take(self, count: int) -> list[KVCacheBlock]:
        """Take the next ones."""
        first, end = self._num_taken, self._num_taken + count
        self._make_up_to(end)
        self._num_taken = end
        taken = self.blocks[first:end]
        for block in taken:
            block._free_queue = None
        return taken

    def discard_block(self, block: KVCacheBlock) -> None:
        """Take a block out; those before it move to the queue in front, so the order stays."""
        if block is not self.blocks[self._num_taken]:
            index = self.ids.index(block._block_id)
            for earlier in self.take(index - self._num_taken):
                self._front.insert_block(earlier, to_front=False)
                earlier._free_queue = self._front
        self._num_taken += 1


class BaseEvictionPolicy(Protocol):
    """What a window block manager asks of a policy. C++: BaseEvictionPolicy."""

    def get_free_block(self, cache_level: int, want_placeholder: bool = False) -> tuple[KVCacheBlock, bool]:
        """The block to take next, without taking it, and whether it may be offloaded."""

    def end_duration(self, block: KVCacheBlock) -> None:
        """Let the priority of a block hold for good."""

    def get_duration_ms(self, block: KVCacheBlock) -> int | None:
        """How long the priority of a block holds after its release."""

    def release_block(self, block: KVCacheBlock, to_front: bool = False) -> None:
        """Put an unreferenced block into its queue."""

    def get_num_free_blocks(self, cache_level: int) -> int:
        """Free blocks of a level, cached ones included."""

    def claim_block(
        self, block: KVCacheBlock, priority: Priority | None = None, duration_ms: int | None = None
    ) -> None:
        """Take a block out of its queue and set its retention."""

    def refresh(self) -> list[tuple[KVCacheBlock, Priority]]:
        """Bring blocks whose duration is over back to the default priority; returns them with the one they had."""

    def verify_queue_integrity(self) -> bool:
        """Whether every queued block is free and stands in a queue of its level."""


class LRUEvictionPolicy:
    """Priority queues per level, least recently released first. C++: LRUEvictionPolicy.

    ``clock`` returns nanoseconds. ``make_block`` makes the block of an id; blocks are made, some at a time, when
    they are first asked for. They start in the queue of the default priority in id order; those that were released to
    the front go before them.
    """

    def __init__(
        self,
        num_primary_blocks: int,
        num_secondary_blocks: int,
        make_block: Callable[[BlockId, FreshBlocks], KVCacheBlock],
        clock: Callable[[], int],
        secondary_offload_min_priority: Priority | None = None,
        num_placeholder_blocks: int = 0,
    ) -> None:
        self._clock = clock
        self._secondary_offload_min_priority = (
            DEFAULT_SECONDARY_OFFLOAD_MIN_PRIORITY
            if secondary_offload_min_priority is None
            else secondary_offload_min_priority
        )
        # Per level: queues by priority (made at first use), those before the fresh blocks, the fresh blocks.
        self._queues: list[list[FreeBlocksQueue | None]] = [
            [None] * (MAX_RETENTION_PRIORITY + 1) for _ in range(_NUM_LEVELS)
        ]
        default = DEFAULT_RETENTION_PRIORITY
        self._default_queues = [FreeBlocksQueue(level, default) for level in range(_NUM_LEVELS)]
        for level in range(_NUM_LEVELS):
            self._queues[level][default] = self._default_queues[level]
        self._front_queues = [FreeBlocksQueue(level, default) for level in range(_NUM_LEVELS)]
        num_blocks = num_primary_blocks + num_secondary_blocks
        ids = (
            range(num_primary_blocks),
            range(num_primary_blocks, num_blocks),
            range(CACHED_BLOCKS_ROOT_ID - 1, CACHED_BLOCKS_ROOT_ID - 1 - num_placeholder_blocks, -1),
        )
        self._fresh = [FreshBlocks(level, ids[level], self._front_queues[level], make_block) for level in range(3)]
        self._num_free = [num_primary_blocks, num_secondary_blocks, num_placeholder_blocks]
        self._used_priorities = [1 << default] * _NUM_LEVELS  # bit set: the queue may hold blocks
        self._durations: dict[KVCacheBlock, int] = {}  # of the few blocks that have one
        self._expiring: SortedDict[tuple[int, int], KVCacheBlock] = SortedDict()
        self._expiry_keys: dict[KVCacheBlock, tuple[int, int]] = {}
        self._num_releases = 0

    # -- taking -----------------------------------------------------------------------------------

    def get_num_free_blocks(self, cache_level: int) -> int:
        """Free blocks of a level, cached ones included."""
        return self._num_free[cache_level]

    def get_fresh_blocks(self, level: int) -> FreshBlocks:
        """The never-used blocks of a level."""
        return self._fresh[level]

    def make_all_blocks(self) -> None:
        """Make the objects of all blocks that were never used."""
        for fresh in self._fresh:
            fresh.make_all()

    def get_free_block(self, cache_level: int, want_placeholder: bool = False) -> tuple[KVCacheBlock, bool]:
        """The block to take next, without taking it, and whether it may be offloaded. Changes nothing."""
        level = PLACEHOLDER_LEVEL if want_placeholder else cache_level
        used = self._used_priorities[level]
        queues = self._queues[level]
        while used:
            priority = (used & -used).bit_length() - 1
            if priority == DEFAULT_RETENTION_PRIORITY:
                block = self._first_default(level)
            else:
                queue = queues[priority]
                block = queue.first() if queue is not None else None
            if block is not None:
                check(not block._ref_count, f"free queue of level {level} holds referenced block {block._block_id}")
                return block, level == PRIMARY_LEVEL and priority >= self._secondary_offload_min_priority
            used &= used - 1
            if priority != DEFAULT_RETENTION_PRIORITY:
                self._used_priorities[level] &= ~(1 << priority)
        raise OutOfBlocksError(f"no free block at level {level}; free a sequence or enlarge the pool")

    def _first_default(self, level: int) -> KVCacheBlock | None:
        front, fresh = self._front_queues[level], self._fresh[level]
        if not front.size and fresh:
            return fresh.peek()
        return front.first() or self._default_queues[level].first()

    def can_take_default_blocks(self, count: int) -> bool:
        """Whether the next ``count`` primary blocks all stand in the queue of the default priority."""
        below = self._used_priorities[PRIMARY_LEVEL] & ((1 << DEFAULT_RETENTION_PRIORITY) - 1)
        in_queue = self._front_queues[0].size + len(self._fresh[0]) + self._default_queues[0].size
        return not below and in_queue >= count

    def take_default_blocks(self, count: int) -> list[KVCacheBlock]:
        """Take the next primary blocks with the default retention: ``get_free_block`` and ``claim_block`` in one.

        A hot loop, for admission. Only after ``can_take_default_blocks``.
        """
        fresh, front = self._fresh[PRIMARY_LEVEL], self._front_queues[PRIMARY_LEVEL]
        num_fresh = min(max(0, count - front.size), len(fresh))
        fresh.make(num_fresh)  # before anything is changed, as memory may run out
        self._num_free[PRIMARY_LEVEL] -= count
        taken = front.take(count)
        taken += fresh.take(num_fresh)
        taken += self._default_queues[PRIMARY_LEVEL].take(count - len(taken))
        if self._durations:
            for block in taken:
                self.end_duration(block)
        return taken

    def claim_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """``claim_block`` for each, without a new priority. A hot loop, for admission."""
        if self._durations:
            for block in blocks:
                self.claim_block(block)
            return
        default = self._default_queues[PRIMARY_LEVEL]
        num_claimed = 0
        for block in blocks:
            queue = block._free_queue
            if queue is default:
                before, after = block._prev_free, block._next_free
                before._next_free = after
                after._prev_free = before
                block._free_queue = None
                num_claimed += 1
            elif queue is not None:
                queue.discard_block(block)
                self._num_free[queue.level] -= 1
                block._free_queue = None
        default.size -= num_claimed
        self._num_free[PRIMARY_LEVEL] -= num_claimed

    def release_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Drop one reference of each block; those left without go to the back if cached, else to the front.

        A hot loop, for removal: a cached primary block of default priority goes straight to its queue.
        """
        default = self._default_queues[PRIMARY_LEVEL]
        last = default.end._prev_free
        num_released = 0
        try:
            for block in blocks:
                count = block._ref_count
                if count > 1:
                    block._ref_count = count - 1
                    continue
                block._ref_count = 0
                if (
                    block._lookup_node is not None
                    and block._priority == DEFAULT_RETENTION_PRIORITY
                    and block._memory_pool_block_index < SECONDARY_POOL_FLAG
                ):
                    block._prev_free = last
                    last._next_free = block
                    last = block
                    block._free_queue = default
                    num_released += 1
                else:
                    self.release_block(block, block._lookup_node is None)
        finally:
            last._next_free = default.end
            default.end._prev_free = last
            default.size += num_released
            self._num_free[PRIMARY_LEVEL] += num_released

    def claim_block(
        self, block: KVCacheBlock, priority: Priority | None = None, duration_ms: int | None = None
    ) -> None:
        """Take a block out of its queue, if it is in one; the duration is always overwritten."""
        queue = block._free_queue
        if queue is not None:
            queue.discard_block(block)
            self._num_free[queue.level] -= 1
            block._free_queue = None
        if priority is not None:
            block._priority = priority
        if self._durations:
            self.end_duration(block)
        if duration_ms is not None:
            self._durations[block] = duration_ms

    def end_duration(self, block: KVCacheBlock) -> None:
        """Let the priority of a block hold for good."""
        self._durations.pop(block, None)
        self._forget_expiry(block)

    def get_duration_ms(self, block: KVCacheBlock) -> int | None:
        """How long the priority of a block holds after its release. C++: KVCacheBlock::getDurationMs."""
        return self._durations.get(block)

    def get_expiration_time(self, block: KVCacheBlock) -> int | None:
        """Clock reading (ns) at which a free block falls back to the default priority.

        C++: KVCacheBlock::getExpirationTime.
        """
        key = self._expiry_keys.get(block)
        return None if key is None else key[0]

    def _forget_expiry(self, block: KVCacheBlock) -> None:
        key = self._expiry_keys.pop(block, None)
        if key is not None:
            del self._expiring[key]

    # -- giving back --------------------------------------------------------------------------------

    def release_block(self, block: KVCacheBlock, to_front: bool = False) -> None:
        """Put an unreferenced block at the back (or front) of the queue of its level and priority."""
        if block._block_id == PLACEHOLDER_BLOCK_ID:
            return
        check(block._block_id != CACHED_BLOCKS_ROOT_ID, "the root block must never be queued")
        if block._free_queue is not None:
            raise LogicError(f"block {block._block_id} is released twice; it already stands in a free queue")
        level = get_cache_level(block)
        self._enqueue(block, level, to_front)
        self._num_free[level] += 1
        duration_ms = self._durations.get(block)
        if duration_ms is not None and block._priority != DEFAULT_RETENTION_PRIORITY:
            expiry = self._clock() + duration_ms * _NS_PER_MS
            self._num_releases += 1
            self._expiry_keys[block] = key = (expiry, self._num_releases)
            self._expiring[key] = block

    def _enqueue(self, block: KVCacheBlock, level: int, to_front: bool) -> None:
        priority = block._priority
        queue = self._queues[level][priority]
        if queue is None:
            queue = self._queues[level][priority] = FreeBlocksQueue(level, priority)
        self._used_priorities[level] |= 1 << priority
        if to_front and priority == DEFAULT_RETENTION_PRIORITY:
            queue = self._front_queues[level]
        queue.insert_block(block, to_front)
        block._free_queue = queue

    def refresh(self) -> list[tuple[KVCacheBlock, Priority]]:
        """Move blocks whose duration is over to the back of the default queue of their present level.

        Returns them with the priority they had, in the order of expiry.
        """
        expired = []
        while self._expiring:
            key, block = self._expiring.peekitem(0)
            if key[0] > self._clock():
                break
            expired.append((block, block._priority))
            self._forget_expiry(block)
            queue = block._free_queue
            block._priority = DEFAULT_RETENTION_PRIORITY
            if queue is not None:
                queue.discard_block(block)
                self._num_free[queue.level] -= 1
                level = get_cache_level(block)
                self._enqueue(block, level, to_front=False)
                self._num_free[level] += 1
        return expired

    # -- looking ------------------------------------------------------------------------------------

    def free_queues(self) -> list[tuple[int, Priority, list[BlockId]]]:
        """All non-empty queues as (level, priority, ids front to back)."""
        result = []
        for level in range(_NUM_LEVELS):
            for priority, queue in enumerate(self._queues[level]):
                if queue is None:
                    continue
                ids = [block._block_id for block in queue]
                if priority == DEFAULT_RETENTION_PRIORITY:
                    front = [block._block_id for block in self._front_queues[level]]
                    ids = front + list(self._fresh[level].remaining_ids()) + ids
                if ids:
                    result.append((level, priority, ids))
        return result

    def queued_blocks(self) -> list[tuple[FreeBlocksQueue, KVCacheBlock]]:
        """Every block object that stands in a queue, with its queue; never-used blocks are left out."""
        return [(queue, block) for queue in self.queues() if queue.is_intact() for block in queue]

    def queues(self) -> list[FreeBlocksQueue]:
        """All queues, those in front of the never-used blocks included."""
        return [queue for level in self._queues for queue in level if queue is not None] + self._front_queues

    def expiring(self) -> list[tuple[BlockId, int]]:
        """(block id, expiry in ns) in the order of expiry."""
        return [(block._block_id, key[0]) for key, block in self._expiring.items()]

    def verify_queue_integrity(self) -> bool:
        """Whether every queued block is unreferenced and stands in a queue of its level."""
        return all(queue.is_intact() for queue in self.queues()) and all(
            not block._ref_count and get_cache_level(block) == queue.level for queue, block in self.queued_blocks()
        )


def get_cache_level(block: KVCacheBlock) -> int:
    """Level on which the block's slot lies now."""
    if block.is_placeholder:
        return PLACEHOLDER_LEVEL
    return SECONDARY_LEVEL if block._memory_pool_block_index >= SECONDARY_POOL_FLAG else PRIMARY_LEVEL
