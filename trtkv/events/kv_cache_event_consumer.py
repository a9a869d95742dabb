"""KVCacheEventConsumer: the tree of cached blocks, rebuilt from the event stream of a manager alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trtkv.common import Priority, WindowSize
from trtkv.errors import InvalidInputError
from trtkv.events.event_sequence import Arrival, EventGap, EventSequence
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

    Hashes have 64 bits, so two cached blocks may share one. Each counts: the hash stays until all of them are gone.
    ``num_ambiguous`` counts events that do not say which of several different blocks they mean.
    """

    def __init__(self) -> None:
        self.num_blocks_per_cache_level: tuple[int, ...] | None = None
        self.num_ambiguous = 0
        self._blocks: dict[int, CachedBlock] = {}
        self._hidden: dict[int, list[CachedBlock]] = {}  # older blocks that share the hash of one in _blocks
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

    def count_blocks(self, block_hash: int) -> int:
        """Cached blocks with this hash: 0, 1, or more where different blocks share it."""
        return (block_hash in self._blocks) + len(self._hidden.get(block_hash, ()))

    def put(self, block_hash: int, block: CachedBlock) -> None:
        """Add a block; one that is cached under the same hash stays, below it."""
        known = self._blocks.get(block_hash)
        if known is not None:
            self._hidden.setdefault(block_hash, []).append(known)
        self._blocks[block_hash] = block
        self._children.setdefault(block.parent_hash, {})[block_hash] = None

    def discard(self, block_hash: int) -> bool:
        """Drop a block, of several the oldest; False, and nothing changes, if none is there. Blocks below it stay."""
        hidden = self._hidden.get(block_hash)
        if hidden is None:
            block = self._blocks.pop(block_hash, None)
            if block is None:
                return False
            self._unlink(block.parent_hash, block_hash)
            return True
        block = hidden.pop(0)
        left = [*hidden, self._blocks[block_hash]]
        self.num_ambiguous += any(other != block for other in left)
        if all(other.parent_hash != block.parent_hash for other in left):
            self._unlink(block.parent_hash, block_hash)
        if not hidden:
            del self._hidden[block_hash]
        return True

    def _unlink(self, parent_hash: int | None, block_hash: int) -> None:
        siblings = self._children[parent_hash]
        del siblings[block_hash]
        if not siblings:
            del self._children[parent_hash]

    def update(self, data: KVCacheUpdatedData) -> bool:
        """Apply new level and priority; False for an unknown block. Fields that are None stay."""
        block = self._blocks.get(data.block_hash)
        if block is None:
            return False
        self.num_ambiguous += data.block_hash in self._hidden
        if data.cache_level is not None:
            block.cache_level = data.cache_level[1]
        if data.priority is not None:
            block.priority = data.priority[1]
        return True

    def clear(self) -> None:
        """Drop all blocks."""
        self._blocks.clear()
        self._hidden.clear()
        self._children.clear()


class KVCacheEventConsumer:
    """Follows the events of one manager (one attention-DP rank) and keeps a tree per window.

    Events may come in any portions. Those applied already are skipped. ``needs_resync`` says that the trees may differ
    from the cache: events are missing (listed in ``gaps``), the listener started late, the manager restarted within an
    epoch, or an event meant one of several blocks of one hash. ``resync`` then replaces everything. After a restart
    with a new epoch the trees start empty and are right without it. Removing an unknown block does nothing.
    """

    def __init__(self, attention_dp_rank: int | None = None) -> None:
        self.attention_dp_rank = attention_dp_rank
        self.num_unknown_blocks = 0
        """Removals and updates of blocks not known here; none in a stream that was followed from its start."""
        self._trees: dict[WindowSize, CachedBlockTree] = {}
        self._sequence = EventSequence()
        self._is_ambiguous = False

    @property
    def windows(self) -> Mapping[WindowSize, CachedBlockTree]:
        """Trees by window."""
        return self._trees

    @property
    def gaps(self) -> list[EventGap]:
        """Events that never arrived, oldest first; the newest ``MAX_GAPS`` holes."""
        return self._sequence.gaps

    @property
    def num_restarts(self) -> int:
        """How often the stream began anew."""
        return self._sequence.num_restarts

    @property
    def epoch(self) -> int | None:
        """Epoch of the manager listened to; None before the first event."""
        return self._sequence.epoch

    @property
    def next_event_id(self) -> int:
        """Id that the next event should have."""
        return self._sequence.next_event_id

    @property
    def needs_resync(self) -> bool:
        """Whether the trees may differ from the cache."""
        return self._sequence.needs_resync or self._is_ambiguous

    def get_tree(self, window_size: WindowSize) -> CachedBlockTree:
        """Tree of a window, empty if nothing was heard of it."""
        return self._trees.setdefault(window_size, CachedBlockTree())

    def apply(self, events: Iterable[KVCacheEvent]) -> None:
        """Apply events in their order. Raises InvalidInputError for those of another rank."""
        for event in events:
            self._check_rank(event)
            arrival = self._sequence.take(event)
            if arrival is Arrival.KNOWN:
                continue
            if arrival is Arrival.RESTART:
                self._clear()
            self._apply_event(event)

    def resync(self, events: Sequence[KVCacheEvent]) -> None:
        """Forget all blocks and take those of ``KVCacheManager.get_cached_block_events()``.

        Events with older ids, which may still be under way, are skipped afterwards. The snapshot is taken as the truth,
        so ask for it after the last event that was applied.
        """
        if not events:
            raise InvalidInputError("no events to start from; give those of get_cached_block_events()")
        for event in events:
            self._check_rank(event)
        self._clear()
        for event in events:
            self._apply_event(event)
        self._sequence.start_from(events[-1])

    def _clear(self) -> None:
        self._is_ambiguous = False
        for tree in self._trees.values():
            tree.clear()

    def _check_rank(self, event: KVCacheEvent) -> None:
        if event.attention_dp_rank != self.attention_dp_rank:
            raise InvalidInputError(
                f"event {event.event_id} is of attention-DP rank {event.attention_dp_rank}, this consumer follows "
                f"{self.attention_dp_rank}; use one consumer per rank, or RankedEventConsumer"
            )

    def _apply_event(self, event: KVCacheEvent) -> None:
        tree, data = self.get_tree(event.window_size), event.data
        num_ambiguous = tree.num_ambiguous
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
        self._is_ambiguous |= tree.num_ambiguous != num_ambiguous


class RankedEventConsumer:
    """Follows a stream gathered from several attention-DP ranks: one consumer per rank, made when first heard of."""

    def __init__(self) -> None:
        self._consumers: dict[int | None, KVCacheEventConsumer] = {}

    @property
    def ranks(self) -> Mapping[int | None, KVCacheEventConsumer]:
        """Consumers by rank."""
        return self._consumers

    @property
    def needs_resync(self) -> bool:
        """Whether the trees of any rank may differ from its cache."""
        return any(consumer.needs_resync for consumer in self._consumers.values())

    def apply(self, events: Iterable[KVCacheEvent]) -> None:
        """Apply events in their order; those of different ranks may be mixed."""
        for event in events:
            self._get_consumer(event.attention_dp_rank).apply((event,))

    def resync(self, events: Sequence[KVCacheEvent]) -> None:
        """Replace the trees of the rank of a snapshot; other ranks stay as they are."""
        if not events:
            raise InvalidInputError("no events to start from; give those of get_cached_block_events()")
        self._get_consumer(events[0].attention_dp_rank).resync(events)

    def _get_consumer(self, rank: int | None) -> KVCacheEventConsumer:
        if rank not in self._consumers:
            self._consumers[rank] = KVCacheEventConsumer(rank)
        return self._consumers[rank]
