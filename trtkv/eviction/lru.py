"""LRU: the block that has been free for the longest time goes first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from trtkv.blocks.kv_cache_block import KVCacheBlock, create_root_block
from trtkv.eviction.protocol import LevelOfBlocks


class LRU:
    """Least recently released first. C++: one FreeBlocksQueue of LRUEvictionPolicy.

    A ring that a block of the ring's own closes: each block knows its neighbours (``prev_free``, ``next_free``), so
    taking one out of the middle is two assignments, and the ring needs no memory for them.
    """

    __slots__ = ("_end", "_size")

    follows_tree: ClassVar[bool] = False

    def __init__(self, level: LevelOfBlocks | None = None) -> None:
        self._end = create_root_block(0)
        self._end.prev_free = self._end.next_free = self._end
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[KVCacheBlock]:
        block = self._end.next_free
        for _ in range(self._size):
            if block is self._end:
                return  # not intact
            yield block
            block = block.next_free

    def is_intact(self) -> bool:
        """Whether the ring closes after as many blocks as are counted, and leads back the same way."""
        block = self._end
        for _ in range(self._size + 1):
            if block.next_free.prev_free is not block:
                return False
            block = block.next_free
        return block is self._end

    def peek(self) -> KVCacheBlock | None:
        """The block that has been free for the longest time. Changes nothing."""
        return self._end.next_free if self._size else None

    def released(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks at the back."""
        last = self._end.prev_free
        for block in blocks:
            block.prev_free = last
            last.next_free = block
            last = block
        last.next_free = self._end
        self._end.prev_free = last
        self._size += len(blocks)

    def put_first(self, block: KVCacheBlock) -> None:
        """Put a block at the front: it goes next."""
        first = self._end.next_free
        block.prev_free, block.next_free = self._end, first
        self._end.next_free = first.prev_free = block
        self._size += 1

    def claimed(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Take blocks out, wherever they stand."""
        for block in blocks:
            before, after = block.prev_free, block.next_free
            before.next_free = after
            after.prev_free = before
        self._size -= len(blocks)

    def take(self, count: int) -> list[KVCacheBlock]:
        """Take the first ``count`` blocks, or all if there are fewer."""
        taken: list[KVCacheBlock] = []
        block = self._end.next_free
        for _ in range(min(count, self._size)):
            taken.append(block)
            block = block.next_free
        self._end.next_free = block
        block.prev_free = self._end
        self._size -= len(taken)
        return taken

    def stored(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Not called: only the order of release counts."""

    def used(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Not called."""

    def removed(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Not called."""
