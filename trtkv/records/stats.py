"""Counters of a manager, of one iteration and of transfers. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtkv.common import WindowSize


def hit_rate(reused: int, missed: int) -> float:
    """reused / (reused + missed); 0 when nothing was asked for."""
    total = reused + missed
    return reused / total if total else 0.0


@dataclass(slots=True)
class KvCacheStats:
    """Totals since construction, summed over windows. C++: KvCacheStats.

    Block counts without a prefix are those of the primary level.
    """

    max_num_blocks: int = 0
    free_num_blocks: int = 0
    used_num_blocks: int = 0
    tokens_per_block: int = 0
    alloc_total_blocks: int = 0
    alloc_new_blocks: int = 0
    reused_blocks: int = 0
    missed_blocks: int = 0
    cache_hit_rate: float = 0.0
    """reused_blocks / (reused_blocks + missed_blocks), in blocks."""
    num_free_blocks_per_window_size: dict[WindowSize, int] = field(default_factory=dict)
    allocated_bytes: int = 0
    """Bytes that the primary pools take."""
    secondary_max_num_blocks: int = 0
    secondary_free_num_blocks: int = 0


@dataclass(slots=True)
class KvCacheTransferStats:
    """Blocks and bytes moved since the last reading. C++: KvCacheTransferStats."""

    onboard_blocks: int = 0
    onboard_bytes: int = 0
    offload_blocks: int = 0
    offload_bytes: int = 0
    intra_device_copy_blocks: int = 0
    intra_device_copy_bytes: int = 0


@dataclass(slots=True)
class KvCacheIterationStats:
    """Gauges now, and counters since the last reading, of one window. C++: KvCacheIterationStats."""

    primary_max_num_blocks: int = 0
    primary_free_num_blocks: int = 0
    primary_used_num_blocks: int = 0
    secondary_max_num_blocks: int = 0
    secondary_free_num_blocks: int = 0
    secondary_used_num_blocks: int = 0
    iter_alloc_total_blocks: int = 0
    iter_alloc_new_blocks: int = 0
    iter_reused_blocks: int = 0
    iter_full_reused_blocks: int = 0
    iter_partial_reused_blocks: int = 0
    iter_missed_blocks: int = 0
    iter_cache_hit_rate: float = 0.0
    iter_gen_alloc_blocks: int = 0
    """Decode steps of a sequence at which this window needed a block."""
    iter_onboard_blocks: int = 0
    iter_onboard_bytes: int = 0
    iter_offload_blocks: int = 0
    iter_offload_bytes: int = 0
    iter_intra_device_copy_blocks: int = 0
    iter_intra_device_copy_bytes: int = 0
