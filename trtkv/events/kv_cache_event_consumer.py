"""KVCacheEventConsumer: the tree of cached blocks, rebuilt from the event stream of a manager alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trtkv.common import Priority, WindowSize
from trtkv.errors import InvalidInputError
from trtkv.events.kv_cache_events import (
    KVCacheCreatedData,
    KVCacheEvent,
    KVCacheRemovedData,
    KVCacheStoredData,
    KVCacheUpdatedData,
)
from trtkv.keys.packed_key import PackedKey


@dataclass(slots=True)
class CachedBlock:
    """What a listener knows of one cached block. ``parent_hash`` is None below the root."""

    parent_hash: int | None
    block_key: PackedKey
    cache_level: int
    priority: Priority


class CachedBlockTree:
    """Cached blocks of one window, by chain hash.

    A block whose parent is not cached (evicted, or outside a sliding window) is kept: the manager keeps it too, and
    finds it again once the parent is back.
    """

    def __init__(self) -> None:
        self.num_blocks_per_cache_level: tuple[int, ...] | None = None
        self._blocks: dict[int, CachedBlock] = {}
        self._children: dict[int | None, dict[int, None]] = {}

    @property
    def blocks(self) -> Mapping[int, CachedBlock]:
        """Cached blocks by hash; read only."""
        return self._blocks

    def get_children(self, block_hash: int | None) -> list[int]:
        """Hashes of the cached blocks right below a block, or below the root (None), oldest first."""
        return list(self._children.get(block_hash, ()))

    def count_cached_prefix(self, block_hashes: Iterable[int]) -> int:
        """Leading hashes of a chain that are cached: what full attention would find of these full blocks."""
        count = 0
        for block_hash in block_hashes:
            if block_hash not in self._blocks:
                break
            count += 1
        return count

    def is_reachable(self, block_hash: int) -> bool:
        """Whether the block and all blocks above it are cached."""
        block = self._blocks.get(block_hash)
        while block is not None and block.parent_hash is not None:
            block = self._blocks.get(block.parent_hash)
        return block is not None

    def put(self, block_hash: int, block: CachedBlock) -> None:
        """Add a block, or replace what is known of it."""
        self.discard(block_hash)
        self._blocks[block_hash] = block
        self._children.setdefault(block.parent_hash, {})[block_hash] = None

    def discard(self, block_hash: int) -> bool:
        """Drop a block; False, and nothing changes, if it is not there. Blocks below it stay."""
        block = self._blocks.pop(block_hash, None)
        if block is None:
            return False
        siblings = self._children[block.parent_hash]
        del siblings[block_hash]
        if not siblings:
            del self._children[block.parent_hash]
        return True

    def update(self, data: KVCacheUpdatedData) -> bool:
        """Apply new level and priority; False for an unknown block. Fields that are None stay."""
        block = self._blocks.get(data.block_hash)
        if block is None:
            return False
        if data.cache_level is not None:
            block.cache_level = data.cache_level[1]
        if data.priority is not None:
            block.priority = data.priority[1]
        return True

    def clear(self) -> None:
        """Drop all blocks."""
        self._blocks.clear()
        self._children.clear()


class EventGap(NamedTuple):
    """Events that never arrived: ids from ``first_missing_id`` up to, not including, ``next_id``."""

    first_missing_id: int
    next_id: int

    @property
    def num_missing(self) -> int:
        """Lost events."""
        return self.next_id - self.first_missing_id


class KVCacheEventConsumer:
    """Follows the events of one manager (one attention-DP rank) and keeps a tree per window.

    Events may come in any portions. Those applied already are skipped, so that a stream may be read again. A hole
    in the ids is recorded in ``gaps``: from then on blocks may be missing and stale ones may linger, until
    ``resync`` replaces everything. Removing an unknown block does nothing.
    """

    def __init__(self, attention_dp_rank: int | None = None) -> None:
        self.attention_dp_rank = attention_dp_rank
        self.gaps: list[EventGap] = []
        self.num_unknown_blocks = 0
        """Removals and updates of blocks not known here; none in a stream that was followed from its start."""
        self._trees: dict[WindowSize, CachedBlockTree] = {}
        self._next_event_id = 0
        self._needs_resync = False

    @property
    def windows(self) -> Mapping[WindowSize, CachedBlockTree]:
        """Trees by window."""
        return self._trees

    @property
    def next_event_id(self) -> int:
        """Id that the next event should have."""
        return self._next_event_id

    @property
    def needs_resync(self) -> bool:
        """Whether events were lost since the start or the last ``resync``."""
        return self._needs_resync

    def get_tree(self, window_size: WindowSize) -> CachedBlockTree:
        """Tree of a window, empty if nothing was heard of it."""
        return self._trees.setdefault(window_size, CachedBlockTree())

    def apply(self, events: Iterable[KVCacheEvent]) -> None:
        """Apply events in their order. Raises InvalidInputError for those of another rank."""
        for event in events:
            self._check_rank(event)
            if event.event_id < self._next_event_id:
                continue
            if event.event_id > self._next_event_id:
                self.gaps.append(EventGap(self._next_event_id, event.event_id))
                self._needs_resync = True
            self._next_event_id = event.event_id + 1
            self._apply_event(event)

    def resync(self, events: Sequence[KVCacheEvent]) -> None:
        """Forget all blocks and take those of ``KVCacheManager.get_cached_block_events()``.

        Events with older ids, which may still be under way, are skipped afterwards.
        """
        if not events:
            raise InvalidInputError("no events to start from; give those of get_cached_block_events()")
        self._check_rank(events[0])
        for tree in self._trees.values():
            tree.clear()
        for event in events:
            self._apply_event(event)
        self._next_event_id = events[-1].event_id + 1
        self._needs_resync = False

    def _check_rank(self, event: KVCacheEvent) -> None:
        if event.attention_dp_rank != self.attention_dp_rank:
            raise InvalidInputError(
                f"event {event.event_id} is of attention-DP rank {event.attention_dp_rank}, this consumer follows "
                f"{self.attention_dp_rank}; use one consumer a rank, or RankedEventConsumer"
            )

    def _apply_event(self, event: KVCacheEvent) -> None:
        tree, data = self.get_tree(event.window_size), event.data
        if isinstance(data, KVCacheCreatedData):
            tree.num_blocks_per_cache_level = data.num_blocks_per_cache_level
        elif isinstance(data, KVCacheStoredData):
            parent_hash = data.parent_hash
            for block in data.blocks:
                tree.put(block.block_hash, CachedBlock(parent_hash, block.block_key, block.cache_level, block.priority))
                parent_hash = block.block_hash
        elif isinstance(data, KVCacheRemovedData):
            self.num_unknown_blocks += sum(not tree.discard(block_hash) for block_hash in data.block_hashes)
        else:
            self.num_unknown_blocks += not tree.update(data)


class RankedEventConsumer:
    """Follows a stream gathered from several attention-DP ranks: one consumer a rank, made when first heard of."""

    def __init__(self) -> None:
        self._consumers: dict[int | None, KVCacheEventConsumer] = {}

    @property
    def ranks(self) -> Mapping[int | None, KVCacheEventConsumer]:
        """Consumers by rank."""
        return self._consumers

    @property
    def needs_resync(self) -> bool:
        """Whether events of any rank were lost."""
        return any(consumer.needs_resync for consumer in self._consumers.values())

    def apply(self, events: Iterable[KVCacheEvent]) -> None:
        """Apply events in their order; those of different ranks may be mixed."""
        for event in events:
            rank = event.attention_dp_rank
            if rank not in self._consumers:
                self._consumers[rank] = KVCacheEventConsumer(rank)
            self._consumers[rank].apply((event,))
