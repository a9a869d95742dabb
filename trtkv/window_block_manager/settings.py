"""What every part of a window block manager needs to know about its window."""

from __future__ import annotations

from dataclasses import dataclass

from trtkv.common import CacheType, KeyForm, Priority, WindowSize
from trtkv.records.linear_attention import LinearAttentionMetadata


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """Fixed properties of one window. ``channel`` is the window's slot in tree nodes, 0 for the widest of
    ``num_channels`` windows.
    """

    window_size: WindowSize
    channel: int
    num_channels: int
    tokens_per_block: int
    is_swa: bool
    cache_type: CacheType
    blocks_per_tier: tuple[int, ...]
    """Warm to cold, at least two."""
    num_placeholder_blocks: int
    enable_partial_reuse: bool
    copy_on_partial_reuse: bool
    linear_attention_metadata: LinearAttentionMetadata | None
    """Set for the recurrent-state window only."""
    key_form: KeyForm
    compatibility: bool
    """Whether recorded faults of the reference are reproduced."""
    secondary_offload_min_priority: Priority | None = None
    """Blocks of a lower priority are dropped instead of offloaded; None: the limit of the eviction policy."""

    @property
    def num_primary_blocks(self) -> int:
        """Blocks of the first tier."""
        return self.blocks_per_tier[0]

    @property
    def num_secondary_blocks(self) -> int:
        """Blocks of the second tier."""
        return self.blocks_per_tier[1]

    @property
    def max_num_blocks(self) -> int:
        """Blocks of all tiers."""
        return sum(self.blocks_per_tier)

    @property
    def has_one_tier(self) -> bool:
        """Whether blocks never move, so that the slot of each is its id."""
        return not any(self.blocks_per_tier[1:])

    @property
    def is_recurrent_state(self) -> bool:
        """Whether the window holds recurrent states instead of keys and values."""
        return self.linear_attention_metadata is not None
