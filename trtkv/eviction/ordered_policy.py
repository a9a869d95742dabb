"""OrderedPolicy: an EvictionOrder, which ranks single items, as the policy of the free blocks of a manager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, ClassVar

from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.eviction.orders.order import AdaptiveOrder, EvictionOrder, Incoming, Item
from trtkv.eviction.protocol import LevelOfBlocks


class _CachedBlock(Item):
    """A block in the tree. Its parent is the block before it, if that is on the same level."""

    __slots__ = ("block", "num_children", "parent")

    def __init__(self, block: KVCacheBlock, key: Hashable, depth: int, parent: _CachedBlock | None) -> None:
        super().__init__(key, depth, block.priority)
        self.block = block
        self.parent = parent
        self.num_children = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> _CachedBlock:
        """An item for the same block; its parent is left to the caller."""
        twin = memo[id(self)] = _CachedBlock(self.block, self.key, self.depth, None)
        twin.priority, twin.num_children = self.priority, self.num_children
        return twin


class OrderedPolicy:
    """Victim: the next of the order; with ``leaves_only`` no block goes while a block behind it is cached.

    What counts as a use is that a request finds a block, wholly or in part. A block's age starts when it is stored, not
    when it is released. If every free block has a cached one behind it, the one that has been free for the longest time
    goes (``num_orphaning``): what is behind it cannot be found until it is stored again. Time is the number of calls.
    """

    follows_tree: ClassVar[bool] = True

    def __init__(
        self, level: LevelOfBlocks, make_order: Callable[[LevelOfBlocks], EvictionOrder], leaves_only: bool = True
    ) -> None:
        self._order = make_order(level)
        self._leaves_only = leaves_only
        self._cached: dict[KVCacheBlock, _CachedBlock] = {}
        self._free: dict[KVCacheBlock, None] = {}  # cached ones, those free for the longest time first
        self._loose: dict[KVCacheBlock, None] = {}  # free blocks that are not in the tree: they go first
        self._now = 0
        self.num_orphaning = 0
        """Blocks taken although a block behind them was cached."""

    # -- the tree -----------------------------------------------------------------------------------

    def stored(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Blocks entered the tree or the level."""
        self._now += 1
        for block in blocks:
            parent_block = block.prev_block
            parent = None if parent_block is None else self._cached.get(parent_block)
            key, depth = self._name(block)
            item = self._cached[block] = _CachedBlock(block, key, depth, parent)
            if isinstance(self._order, AdaptiveOrder):
                self._order.adapt(Incoming(key, depth))
            self._order.stored(item, self._now)
            if parent is not None:
                self._add_child(parent)
            for child_block in block.next_blocks:
                child = self._cached.get(child_block)
                if child is not None and child.parent is not item:
                    child.parent = item
                    item.num_children += 1

    def _name(self, block: KVCacheBlock) -> tuple[Hashable, int]:
        """What names a block together with all before it, and how many those are."""
        before = block.prev_block
        if before is None or before.lookup_node is None or before.lookup_node.parent is None:  # the root
            return hash((0, block.key)), 0
        item = self._cached.get(before)
        key, depth = self._name(before) if item is None else (item.key, item.depth)
        return hash((key, block.key)), depth + 1

    def _add_child(self, parent: _CachedBlock) -> None:
        if self._is_evictable(parent) and self._leaves_only:
            self._order.claimed(parent)
        parent.num_children += 1

    def _drop_child(self, parent: _CachedBlock) -> None:
        parent.num_children -= 1
        if self._leaves_only and self._is_evictable(parent):
            self._order.released(parent, self._now)

    def _is_evictable(self, item: _CachedBlock) -> bool:
        """Whether the order may take the block now."""
        return item.block in self._free and not (self._leaves_only and item.num_children)

    def used(self, blocks: Sequence[KVCacheBlock]) -> None:
        """A request found these blocks, held or free."""
        self._now += 1
        for block in blocks:
            item = self._cached.get(block)
            if item is None:
                continue
            is_evictable = self._is_evictable(item)
            if is_evictable:
                self._order.claimed(item)
            self._order.used(item, self._now)
            if is_evictable:
                self._order.released(item, self._now)

    def removed(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Blocks left the tree or the level; those that are free can still be taken."""
        for block in blocks:
            item = self._cached.get(block)
            if item is None:
                continue
            if self._is_evictable(item):
                self._order.claimed(item)
            self._order.removed(item)
            if self._free.pop(block, self) is None:
                self._loose[block] = None
            self._forget(item)

    def _forget(self, item: _CachedBlock) -> None:
        """Drop a block that is neither cached here nor known to the order any more."""
        del self._cached[item.block]
        if item.parent is not None and self._cached.get(item.parent.block) is item.parent:
            self._drop_child(item.parent)

    # -- free blocks ----------------------------------------------------------------------------------

    def released(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Blocks are no longer held."""
        self._now += 1
        for block in blocks:
            item = self._cached.get(block)
            if item is None:
                self._loose[block] = None
                continue
            self._free[block] = None
            if self._is_evictable(item):
                self._order.released(item, self._now)

    def claimed(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Free blocks are held again."""
        for block in blocks:
            item = self._cached.get(block)
            if item is None:
                del self._loose[block]
                continue
            if self._is_evictable(item):
                self._order.claimed(item)
            del self._free[block]

    def peek(self) -> KVCacheBlock | None:
        """The next victim. Changes nothing."""
        if self._loose:
            return next(iter(self._loose))
        item = self._order.peek()
        if isinstance(item, _CachedBlock):
            return item.block
        return next(iter(self._free), None)

    def take(self, count: int) -> list[KVCacheBlock]:
        """Evict the next blocks, one after the other: the parent of a leaf that went may be next."""
        taken: list[KVCacheBlock] = []
        while len(taken) < count and len(self):
            taken.append(self._take_one())
        return taken

    def _take_one(self) -> KVCacheBlock:
        if self._loose:
            block = next(iter(self._loose))
            del self._loose[block]
            return block
        item = self._order.take()
        if not isinstance(item, _CachedBlock):
            item = self._cached[next(iter(self._free))]
            self._order.removed(item)
            self.num_orphaning += 1
        del self._free[item.block]
        self._forget(item)
        return item.block

    # -- looking --------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._loose) + len(self._free)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        """What ``take`` would return, found out on a copy."""
        memo: dict[int, Any] = {id(block): block for blocks in (self._loose, self._cached) for block in blocks}
        for item in self._cached.values():
            copy.deepcopy(item, memo)
        for item in self._cached.values():
            memo[id(item)].parent = memo.get(id(item.parent))  # None as well for one that has left
        return iter(copy.deepcopy(self, memo).take(len(self)))

    def is_intact(self) -> bool:
        """Whether children are counted right, and free blocks are known."""
        counts = dict.fromkeys(self._cached.values(), 0)
        for item in self._cached.values():
            if item.parent in counts:
                counts[item.parent] += 1
        return (
            all(item.num_children == number for item, number in counts.items())
            and self._free.keys() <= self._cached.keys()
            and not self._loose.keys() & self._cached.keys()
        )
