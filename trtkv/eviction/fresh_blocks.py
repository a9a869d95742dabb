"""FreshBlocks: blocks that were never used, whose objects are made when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.blocks.old_generation import OldGeneration
from trtkv.common import BlockId
from trtkv.eviction.free_blocks_queue import FrontQueue
from trtkv.records.retention_config import DEFAULT_RETENTION_PRIORITY

_MADE_TOGETHER: Final = 1024
"""Block objects made at a time, in about a third of a millisecond."""


class FreshBlocks:
    """Blocks of a level never used so far: a range of ids whose block objects are made when they are needed."""

    __slots__ = ("_front", "_make_block", "_num_taken", "_old_generation", "blocks", "ids", "level", "priority")

    def __init__(
        self, level: int, ids: range, front: FrontQueue, make_block: Callable[[BlockId, FreshBlocks], KVCacheBlock]
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

    def remaining_blocks(self) -> list[KVCacheBlock]:
        """The blocks left whose objects are made."""
        return self.blocks[self._num_taken :]

    def get_block(self, index: int) -> KVCacheBlock:
        """The block of the index-th id, taken or not; making its object changes nothing else."""
        self._make_up_to(index + 1)
        return self.blocks[index]

    def _make_up_to(self, count: int) -> None:
        if count > len(self.blocks):
            num_more = max(count - len(self.blocks), _MADE_TOGETHER)
            self.blocks += self._old_generation.fill(num_more, lambda: self._make_next(count))

    def _make_next(self, count: int) -> list[KVCacheBlock]:
        """The blocks after those made so far, up to a number of blocks at least."""
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
        """Take the next ones, or all if there are fewer; the caller clears their ``free_queue``."""
        first, end = self._num_taken, min(self._num_taken + count, len(self.ids))
        self._make_up_to(end)
        self._num_taken = end
        return self.blocks[first:end]

    def discard(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Take these blocks out; those before them move to the queue in front, so the order stays."""
        for block in blocks:
            earlier = self.take(self.ids.index(block.block_id) - self._num_taken)
            self._front.append(earlier)
            for other in earlier:
                other.free_queue = self._front
            self.take(1)
