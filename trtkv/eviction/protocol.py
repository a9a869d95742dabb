"""EvictionPolicy: which of the free blocks of one level goes next. The only thing a new policy has to provide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from trtkv.blocks.kv_cache_block import KVCacheBlock


class EvictionPolicy(Protocol):
    """Orders the free blocks of one window and level; where priorities count, those of one priority.

    Everything comes in batches, and the calls about one request come one after the other. What a policy knows about a
    block it keeps itself, keyed by the block: fields of blocks belong to the manager. Blocks that were never used, and
    those released to the front because they are not cached, go before all blocks of a policy, which never sees them.

    A new policy is one file with this class and one line in ``registry.py``; docs/eviction.md shows one.
    """

    @property
    def follows_tree(self) -> bool:
        """Whether ``stored``, ``used`` and ``removed`` are called. False saves the time they take."""

    def stored(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Blocks entered the tree, or this level, those nearest to the root first; free or held by a request."""

    def used(self, blocks: Sequence[KVCacheBlock]) -> None:
        """A request found these blocks in the cache, the last one perhaps in part. Held blocks are found as well."""

    def removed(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Blocks left the tree or this level. Those just taken come here after ``take``; free ones stay in order."""

    def released(self, blocks: Sequence[KVCacheBlock]) -> None:
        """These blocks are no longer held, so they can be evicted. A request releases its last block first."""

    def claimed(self, blocks: Sequence[KVCacheBlock]) -> None:
        """These free blocks are held again: they cannot be evicted any more."""

    def peek(self) -> KVCacheBlock | None:
        """The block that ``take(1)`` would return, or None without free blocks. Changes nothing."""

    def take(self, count: int) -> list[KVCacheBlock]:
        """Evict the next ``count`` free blocks, or all if there are fewer."""

    def __len__(self) -> int:
        """Number of free blocks."""

    def __iter__(self) -> Iterator[KVCacheBlock]:
        """The free blocks in the order in which ``take`` would return them. For inspection; may be slow."""

    def is_intact(self) -> bool:
        """Whether the policy's own records agree with each other. For inspection; may be slow."""


class LevelOfBlocks(NamedTuple):
    """What a policy may know about the blocks that it orders."""

    level: int
    """0 for the device, 1 for the host, and so on."""
    num_blocks: int
    """Blocks of the level, free or not."""
    clock: Callable[[], int]
    """The manager's clock, in nanoseconds."""


PolicyFactory: TypeAlias = Callable[[LevelOfBlocks], EvictionPolicy]
"""Makes the policy of one level, or of one priority of it."""
