"""Plain records about one attention window and its pools."""

from __future__ import annotations

from typing import NamedTuple

from trtkv.common import CacheType, DataType, WindowSize


class PoolConfiguration(NamedTuple):
    """Head size and element type of the pool that serves one window. C++: PoolConfiguration."""

    window_size: WindowSize
    size_per_head: int
    dtype: DataType


class WindowSizeMetadata(NamedTuple):
    """What a manager allots to one window. C++: WindowSizeMetadata."""

    blocks_per_tier: tuple[int, ...]
    """Warm to cold."""
    absolute_pools_offset: int
    num_pools: int
    max_token_num: int
    max_blocks_per_seq: int
    max_num_blocks: int
    window_size: WindowSize
    is_swa: bool

    @property
    def allotted_primary_blocks(self) -> int:
        """Blocks of the first tier."""
        return self.blocks_per_tier[0]

    @property
    def allotted_secondary_blocks(self) -> int:
        """Blocks of the second tier."""
        return self.blocks_per_tier[1]


class OffsetTableDimensions(NamedTuple):
    """Extent of the block-offset table shared by all windows. C++: OffsetTableDimensions."""

    max_blocks_per_seq: int
    num_pools: int
    cache_type: CacheType


class PrefixReuseSummary(NamedTuple):
    """Outcome of one read-only prefix walk. C++: PrefixReuseSummary.

    ``first_new_block`` is the packed key (see block_key) of the first block not found, or None.
    """

    reusable_blocks_allocated: int
    reusable_blocks_all: int
    first_new_block: object = None
