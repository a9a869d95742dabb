"""Event records: what happened to cached blocks. Plain data; hashes are unsigned 64-bit numbers."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from trtkv.common import Priority, WindowSize
from trtkv.keys.packed_key import PackedKey


class KVCacheCreatedData(NamedTuple):
    """A window came into being. C++: executor::KVCacheCreatedData."""

    num_blocks_per_cache_level: tuple[int, ...]


class KVCacheStoredBlockData(NamedTuple):
    """One block put into the tree. C++: executor::KVCacheStoredBlockData."""

    block_hash: int
    block_key: PackedKey
    cache_level: int
    priority: Priority


class KVCacheStoredData(NamedTuple):
    """A chain of blocks put into the tree below ``parent_hash`` (None: root). C++: executor::KVCacheStoredData."""

    parent_hash: int | None
    blocks: list[KVCacheStoredBlockData]


class KVCacheRemovedData(NamedTuple):
    """Blocks that left the tree. C++: executor::KVCacheRemovedData."""

    block_hashes: list[int]


class KVCacheUpdatedData(NamedTuple):
    """A block changed level or priority, as (old, new). C++: executor::KVCacheUpdatedData."""

    block_hash: int
    cache_level: tuple[int, int] | None = None
    priority: tuple[Priority, Priority] | None = None


KVCacheEventData: TypeAlias = "KVCacheCreatedData | KVCacheStoredData | KVCacheRemovedData | KVCacheUpdatedData"


class KVCacheEvent(NamedTuple):
    """One event; ids of a manager grow by 1, so a hole shows dropped events. C++: executor::KVCacheEvent.

    ``epoch`` is that of the event manager: a restarted manager has a higher one, and its ids begin with 0 again.
    """

    event_id: int
    data: KVCacheEventData
    window_size: WindowSize
    attention_dp_rank: int | None = None
    epoch: int = 0
