"""WindowEvictionPolicy: the free blocks of one window, by level and priority."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import ClassVar

from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import (
    CACHED_BLOCKS_ROOT_ID,
    PLACEHOLDER_BLOCK_ID,
    PLACEHOLDER_LEVEL,
    PRIMARY_LEVEL,
    BlockId,
    Priority,
)
from trtkv.errors import LogicError, OutOfBlocksError, check
from trtkv.eviction.free_blocks_queue import FreeBlocksQueue
from trtkv.eviction.fresh_blocks import FreshBlocks
from trtkv.eviction.level_queues import LevelQueues
from trtkv.eviction.protocol import LevelOfBlocks
from trtkv.eviction.registry import DEFAULT_EVICTION, EVICTIONS, Eviction
from trtkv.eviction.retention_durations import RetentionDurations
from trtkv.records.kv_cache_index import SECONDARY_POOL_FLAG, get_level
from trtkv.records.retention_config import DEFAULT_RETENTION_PRIORITY, DEFAULT_SECONDARY_OFFLOAD_MIN_PRIORITY


class WindowEvictionPolicy:
    """What the parts of a window ask about free blocks: who goes next, and the retention of each.

    Per level one or more policies (``eviction``) decide the order; priorities and durations are handled here, around
    them. ``blocks_per_tier`` counts the blocks of the levels, warm to cold; placeholders have a level of their own.
    ``clock`` returns nanoseconds. ``make_block`` makes the block of an id; blocks are made, some at a time, when they
    are first asked for. Those that were never used are taken in id order, after blocks that were released and that no
    request can find, and before all that are cached. C++: LRUEvictionPolicy.
    """

    level_queues: ClassVar[type[LevelQueues]] = LevelQueues

    def __init__(
        self,
        blocks_per_tier: Sequence[int],
        make_block: Callable[[BlockId, FreshBlocks], KVCacheBlock],
        clock: Callable[[], int],
        secondary_offload_min_priority: Priority | None = None,
        num_placeholder_blocks: int = 0,
        eviction: Eviction = EVICTIONS[DEFAULT_EVICTION],
    ) -> None:
        self._clock = clock
        self._offload_min_priority = (
            DEFAULT_SECONDARY_OFFLOAD_MIN_PRIORITY
            if secondary_offload_min_priority is None
            else secondary_offload_min_priority
        )
        ids = [range(first, end) for first, end in pairwise(accumulate(blocks_per_tier, initial=0))]
        ids.append(range(CACHED_BLOCKS_ROOT_ID - 1, CACHED_BLOCKS_ROOT_ID - 1 - num_placeholder_blocks, -1))
        numbers = (*range(len(blocks_per_tier)), PLACEHOLDER_LEVEL)
        self._levels = [
            self.level_queues(LevelOfBlocks(number, len(own_ids), clock), own_ids, make_block, eviction)
            for number, own_ids in zip(numbers, ids, strict=True)
        ]
        self._primary = self._levels[PRIMARY_LEVEL]
        self._durations = RetentionDurations()
        self.follows_tree = self._primary.default.policy.follows_tree
        """Whether ``stored``, ``used``, ``removed`` and ``moved`` are to be called."""

    # -- taking -----------------------------------------------------------------------------------

    def get_num_free_blocks(self, cache_level: int) -> int:
        """Free blocks of a level, cached ones included."""
        return self._levels[cache_level].num_free

    def is_free(self, block: KVCacheBlock) -> bool:
        """Whether a block waits in a queue."""
        return block.free_queue is not None

    def get_free_block(self, cache_level: int, want_placeholder: bool = False) -> tuple[KVCacheBlock, bool]:
        """The block to take next, without taking it, and whether it may be offloaded. Changes nothing."""
        level = PLACEHOLDER_LEVEL if want_placeholder else cache_level
        found = self._levels[level].peek()
        if found is None:
            raise OutOfBlocksError(f"no free block at level {level}; free a sequence or enlarge the pool")
        block, priority = found
        return block, level == PRIMARY_LEVEL and priority >= self._offload_min_priority

    def take_free_block(self, block: KVCacheBlock) -> None:
        """Take the block that ``get_free_block`` returned."""
        self._levels[block.free_queue.level].take_first(block)
        if self._durations.by_block:
            self._durations.end(block)

    def take_free_blocks(self, count: int) -> list[KVCacheBlock]:
        """Take the next primary blocks, with the default retention. Raises OutOfBlocksError, with nothing changed."""
        if count > self._primary.num_free:
            raise OutOfBlocksError(
                f"{count} blocks are needed and {self._primary.num_free} are free; free a sequence or enlarge the pool"
            )
        has_default_only = self._primary.has_default_priority_only
        taken = self._primary.take(count)
        for block in taken:
            block.free_queue = None
        if not has_default_only:
            for block in taken:
                if block.priority != DEFAULT_RETENTION_PRIORITY:
                    self._set_priority(block, DEFAULT_RETENTION_PRIORITY)
        if self._durations.by_block:
            for block in taken:
                self._durations.end(block)
        return taken

    def claim_block(
        self, block: KVCacheBlock, priority: Priority | None = None, duration_ms: int | None = None
    ) -> None:
        """Take a block out of its queue, if it is in one; the duration is always overwritten."""
        queue = block.free_queue
        if queue is not None:
            self._levels[queue.level].discard(block)
        self.set_retention(block, block.priority if priority is None else priority, duration_ms)

    def claim_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """``claim_block`` for each, without a new priority. Hot: those in the usual queue leave it together."""
        if self._durations.by_block:
            for block in blocks:
                self.claim_block(block)
            return
        default = self._primary.default
        usual: list[KVCacheBlock] = []
        for block in blocks:
            queue = block.free_queue
            if queue is default:
                block.free_queue = None
                usual.append(block)
            elif queue is not None:
                self._levels[queue.level].discard(block)
        default.discard(usual)
        self._primary.num_free -= len(usual)

    # -- retention ----------------------------------------------------------------------------------

    def set_retention(self, block: KVCacheBlock, priority: Priority, duration_ms: int | None) -> None:
        """Give a block that is not free a priority, and the time for which it holds (None: for good)."""
        if priority != block.priority:
            self._set_priority(block, priority)
        durations = self._durations
        if durations.by_block:
            durations.end(block)
        if duration_ms is not None:
            durations.by_block[block] = duration_ms

    def _set_priority(self, block: KVCacheBlock, priority: Priority) -> None:
        """Change a priority; policies of single priorities hear of blocks that come and go."""
        is_followed = self.follows_tree and block.lookup_node is not None
        if is_followed:
            self.removed((block,))
        block.priority = priority
        if is_followed:
            self.stored((block,))

    def end_duration(self, block: KVCacheBlock) -> None:
        """Let the priority of a block hold for good."""
        self._durations.end(block)

    def get_duration_ms(self, block: KVCacheBlock) -> int | None:
        """How long the priority of a block holds after its release. C++: KVCacheBlock::getDurationMs."""
        return self._durations.by_block.get(block)

    def get_expiration_time(self, block: KVCacheBlock) -> int | None:
        """Clock reading (ns) at which a free block falls back to the default priority.

        C++: KVCacheBlock::getExpirationTime.
        """
        return self._durations.get_expiration_time(block)

    # -- giving back --------------------------------------------------------------------------------

    def release_block(self, block: KVCacheBlock, to_front: bool | None = None) -> None:
        """Make an unreferenced block free on its level: at its priority if a request can find it, else at the front.

        ``to_front`` says where instead.
        """
        if block.block_id == PLACEHOLDER_BLOCK_ID:
            return
        check(block.block_id != CACHED_BLOCKS_ROOT_ID, "the root block must never be queued")
        if block.free_queue is not None:
            raise LogicError(f"block {block.block_id} is released twice; it already stands in a free queue")
        self.get_level_of(block).put(block, self._goes_first(block) if to_front is None else to_front)
        durations = self._durations
        if block in durations.by_block and block.priority != DEFAULT_RETENTION_PRIORITY:
            durations.start(block, self._clock())

    def _goes_first(self, block: KVCacheBlock) -> bool:
        """Whether a block is the next victim of its level: nobody can find it."""
        return block.lookup_node is None

    def requeue(self, block: KVCacheBlock) -> None:
        """Give a block that left the tree the place of one that nobody can find, if it is free."""
        queue = block.free_queue
        if queue is not None and block.lookup_node is None:
            self._levels[queue.level].discard(block)
            self._durations.end(block)
            self.release_block(block)

    def release_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Drop one reference of each block; those left without become free, those that are not cached at the front.

        Hot: cached primary blocks of default priority go to their queue together.
        """
        default = self._primary.default
        usual: list[KVCacheBlock] = []
        try:
            for block in blocks:
                count = block.ref_count
                if count > 1:
                    block.ref_count = count - 1
                    continue
                block.ref_count = 0
                if (
                    block.lookup_node is not None
                    and block.priority == DEFAULT_RETENTION_PRIORITY
                    and block.memory_pool_block_index < SECONDARY_POOL_FLAG
                ):
                    block.free_queue = default
                    usual.append(block)
                else:
                    self.release_block(block, block.lookup_node is None)
        finally:
            default.append(usual)
            self._primary.num_free += len(usual)

    def refresh(self) -> list[tuple[KVCacheBlock, Priority]]:
        """Bring blocks whose duration is over back to the default priority; free ones go to the queue there.

        Returns them with the priority they had, in the order of expiry.
        """
        expired = []
        durations = self._durations
        while (first := durations.first()) is not None:
            expiry, block = first
            if expiry > self._clock():
                break
            expired.append((block, block.priority))
            durations.stop(block)
            queue = block.free_queue
            if queue is not None:
                self._levels[queue.level].discard(block)
            self._set_priority(block, DEFAULT_RETENTION_PRIORITY)
            if queue is not None:
                level = self.get_level_of(block)
                level.put(block, to_front=False)
                self._note_requeued(self._levels[queue.level], level)
        return expired

    def _note_requeued(self, old_level: LevelQueues, new_level: LevelQueues) -> None:
        """A free block went from a queue of one level to one of another, or of the same; both are counted."""

    # -- what policies are told about the tree, if they follow it -------------------------------------

    def stored(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Blocks entered the tree, those nearest to the root first."""
        for queue, part in self._by_queue(blocks):
            queue.policy.stored(part)

    def used(self, blocks: Sequence[KVCacheBlock]) -> None:
        """A request found these blocks."""
        for queue, part in self._by_queue(blocks):
            queue.policy.used(part)

    def removed(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Blocks left the tree."""
        for queue, part in self._by_queue(blocks):
            queue.policy.removed(part)

    def moved(self, block: KVCacheBlock, old_level: int) -> None:
        """A block lies on another level now; it is not free."""
        self._levels[old_level].get_queue_of(block).policy.removed((block,))
        if block.lookup_node is not None:
            self.stored((block,))

    def _by_queue(self, blocks: Sequence[KVCacheBlock]) -> list[tuple[FreeBlocksQueue, list[KVCacheBlock]]]:
        """Blocks by the queue they belong to, in their order; stand-ins are left out."""
        parts: list[tuple[FreeBlocksQueue, list[KVCacheBlock]]] = []
        for block in blocks:
            if block.block_id == PLACEHOLDER_BLOCK_ID:
                continue
            queue = self.get_level_of(block).get_queue_of(block)
            if not parts or parts[-1][0] is not queue:
                parts.append((queue, []))
            parts[-1][1].append(block)
        return parts

    # -- looking ------------------------------------------------------------------------------------

    def get_fresh_blocks(self, level: int) -> FreshBlocks:
        """The never-used blocks of a level."""
        return self._levels[level].fresh

    def make_all_blocks(self) -> None:
        """Make the objects of all blocks that were never used."""
        for level in self._levels:
            level.fresh.make_all()

    def get_level_of(self, block: KVCacheBlock) -> LevelQueues:
        """The queues of the level on which a block's slot lies now."""
        return self._levels[get_cache_level(block)]

    def levels(self) -> Sequence[LevelQueues]:
        """All levels, warm to cold; that of placeholders last."""
        return self._levels

    def free_queues(self) -> list[tuple[int, Priority, list[BlockId]]]:
        """All non-empty queues as (level, priority, ids front to back)."""
        return [(level.level, priority, ids) for level in self._levels for priority, ids in level.free_ids()]

    def queues(self) -> list[FreeBlocksQueue]:
        """All queues, those in front of the never-used blocks included."""
        return [queue for level in self._levels for queue in level.queues()]

    def queued_blocks(self) -> list[tuple[FreeBlocksQueue, KVCacheBlock]]:
        """Every block object that stands in a queue, with its queue; never-used blocks are left out."""
        return [(queue, block) for queue in self.queues() if queue.policy.is_intact() for block in queue]

    def expiring(self) -> list[tuple[BlockId, int]]:
        """(block id, expiry in ns) in the order of expiry."""
        return self._durations.expiring()

    @property
    def num_orphaning(self) -> int:
        """Cached blocks evicted so far before a block behind them, as far as policies count it."""
        return sum(getattr(queue.policy, "num_orphaning", 0) for queue in self.queues())

    def verify_queue_integrity(self) -> bool:
        """Whether every free block is unreferenced and counts to its level."""
        free = [(queue.level, block) for queue, block in self.queued_blocks()]
        free += [(level.level, block) for level in self._levels for block in level.fresh.remaining_blocks()]
        return all(queue.policy.is_intact() for queue in self.queues()) and all(
            not block.ref_count and get_cache_level(block) == level for level, block in free
        )


def get_cache_level(block: KVCacheBlock) -> int:
    """Level on which the block's slot lies now."""
    return PLACEHOLDER_LEVEL if block.is_placeholder else get_level(block.memory_pool_block_index)
