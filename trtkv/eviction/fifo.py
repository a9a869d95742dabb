"""FIFO: the block that was stored first goes first, however often it was found since."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from sortedcontainers import SortedDict

from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.eviction.protocol import LevelOfBlocks

_BEFORE_ALL: Final = 1 << 60


class FIFO:
    """Victim: the smallest number of storing; of blocks stored together the one farthest from the root.

    A baseline: when a conversation goes on, the blocks of its earlier turns do not become younger, as they do under
    LRU. Releasing, claiming and taking cost O(log n) a block.
    """

    follows_tree: ClassVar[bool] = True

    def __init__(self, level: LevelOfBlocks) -> None:
        self._numbers: dict[KVCacheBlock, int] = {}
        self._num_stored = 0
        self._num_unstored = 0
        self._free: SortedDict[int, KVCacheBlock] = SortedDict()
        self._keys: dict[KVCacheBlock, int] = {}  # where free blocks stand

    def stored(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Number the blocks, the last one lowest."""
        self._num_stored += len(blocks)
        for position, block in enumerate(blocks):
            self._numbers[block] = self._num_stored - position

    def used(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Being found changes nothing."""

    def removed(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Forget the numbers; a free block keeps its place."""
        for block in blocks:
            self._numbers.pop(block, None)

    def released(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks where their numbers say; before all of them those that are not in the tree."""
        for block in blocks:
            key = self._numbers.get(block)
            if key is None:
                self._num_unstored += 1
                key = self._num_unstored - _BEFORE_ALL
            self._keys[block] = key
            self._free[key] = block

    def claimed(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Take blocks out."""
        for block in blocks:
            del self._free[self._keys.pop(block)]

    def peek(self) -> KVCacheBlock | None:
        """The block with the smallest number. Changes nothing."""
        return self._free.peekitem(0)[1] if self._free else None

    def take(self, count: int) -> list[KVCacheBlock]:
        """Take the blocks with the smallest numbers."""
        taken = [self._free.popitem(0)[1] for _ in range(min(count, len(self._free)))]
        for block in taken:
            del self._keys[block]
        return taken

    def __len__(self) -> int:
        return len(self._free)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        return iter(self._free.values())

    def is_intact(self) -> bool:
        """Whether both records name the same free blocks."""
        return self._keys == {block: key for key, block in self._free.items()}
