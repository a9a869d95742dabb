"""From memory to block counts: free bytes of a device or bytes given, and agreement of several ranks."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from trtkv.common import RECURRENT_STATES, BlocksPerWindow, CacheType
from trtkv.errors import ConfigurationError, MissingExtraError
from trtkv.pools.capacity_estimation import (
    calculate_max_num_blocks,
    group_layers_by_window_size,
    read_window_size_shares,
)
from trtkv.records.config import KvCacheConfig, ModelConfig

_LOGGER: Final = logging.getLogger(__name__)
_GIB: Final = 2**30


class DeviceMemory(NamedTuple):
    """Memory of a device in bytes; ``free`` includes what the allocator holds without using it."""

    free_bytes: int
    total_bytes: int


class CacheMemory(NamedTuple):
    """Bytes the primary and secondary pools may take."""

    primary_bytes: int
    secondary_bytes: int


def get_device_memory(device: int | str | None = None) -> DeviceMemory:
    """Free and total memory of a CUDA device (default: the current one) through torch. Waits for the device."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError('free device memory is asked of torch; pip install "trtkv[torch]"') from error
    if not torch.cuda.is_available():
        raise ConfigurationError("torch sees no CUDA device; give the bytes of the cache instead of a fraction")
    torch.cuda.synchronize(device)
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    unused_bytes = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return DeviceMemory(free_bytes + unused_bytes, total_bytes)


def calculate_free_mem_bytes(config: KvCacheConfig, memory: DeviceMemory) -> CacheMemory:
    """Bytes of the pools by ``free_gpu_memory_fraction``, ``max_gpu_total_bytes`` and ``host_cache_size``.

    Warns when both ``max_tokens`` and the fraction were written down; the smaller one counts.
    """
    if not 0 <= memory.free_bytes <= memory.total_bytes:
        raise ConfigurationError(
            f"{memory.free_bytes} bytes free of {memory.total_bytes} cannot be; free memory is a part of the total"
        )
    if config.limits_memory_twice:
        _LOGGER.warning(
            "both free_gpu_memory_fraction (%g) and max_tokens (%d) are set; the smaller of the two counts",
            config.free_gpu_memory_fraction,
            config.max_tokens,
        )
    primary_bytes = int(memory.free_bytes * config.free_gpu_memory_fraction)
    if config.max_gpu_total_bytes:
        primary_bytes = min(primary_bytes, config.max_gpu_total_bytes)
    _LOGGER.info(
        "%.2f GiB of %.2f GiB are free, the cache may take %.2f GiB",
        memory.free_bytes / _GIB,
        memory.total_bytes / _GIB,
        primary_bytes / _GIB,
    )
    return CacheMemory(primary_bytes, config.host_cache_size or 0)


def calculate_blocks_per_window(
    config: KvCacheConfig,
    model: ModelConfig,
    memory: CacheMemory,
    *,
    extra_cost_memory: int = 0,
    max_batch_size: int = 1,
    window_size_shares: str | None = None,
    across_ranks: bool = False,
) -> BlocksPerWindow:
    """Primary and secondary block counts per window, ascending windows.

    ``memory``: bytes given, or what calculate_free_mem_bytes found. With ``cross_kv_cache_fraction`` the
    cross cache gets that part of both, the self cache the rest. ``window_size_shares``: value of
    TRTLLM_WINDOW_SIZE_SHARES; None reads the environment. ``across_ranks``: a collective call of all ranks
    of torch.distributed, which all get the smallest counts (see synchronize_block_counts).

    Warns about a host cache without block reuse or too small for a block, and about a pool too small for the longest
    sequence.
    Raises ConfigurationError when a window gets no block.
    """
    memory = _share_of_cache(config, model, memory)
    windows = group_layers_by_window_size(config.resolve_attention_windows(model), model.num_layers)
    if config.max_tokens is not None and len(windows) > 1:
        _LOGGER.warning("max_tokens %d has no effect on several attention windows %s", config.max_tokens, list(windows))
    blocks = calculate_max_num_blocks(
        dtype=config.resolve_dtype(model),
        num_kv_heads_per_layer=model.heads_per_layer,
        size_per_head=model.size_per_head,
        tokens_per_block=config.tokens_per_block,
        window_size_to_layers=windows,
        allotted_primary_mem_bytes=memory.primary_bytes,
        allotted_secondary_mem_bytes=memory.secondary_bytes,
        extra_cost_memory=extra_cost_memory,
        kv_factor=model.kv_factor,
        max_batch_size=max_batch_size,
        max_tokens=config.max_tokens,
        enable_block_reuse=config.enable_block_reuse,
        linear_attention_metadata=model.linear_attention_metadata,
        pool_configurations=model.pool_configurations,
        window_size_shares=read_window_size_shares() if window_size_shares is None else window_size_shares,
    )
    # Agreement comes before the check, so that one rank without room does not leave the others waiting.
    if across_ranks:
        blocks = synchronize_block_counts(blocks)
    if memory.secondary_bytes and not config.enable_block_reuse:
        _LOGGER.warning(
            "host_cache_size of %d bytes is of no use without block reuse; set it to 0, or enable_block_reuse to true",
            memory.secondary_bytes,
        )
    _check_block_counts(blocks, config, model, memory)
    return blocks


def _share_of_cache(config: KvCacheConfig, model: ModelConfig, memory: CacheMemory) -> CacheMemory:
    if config.cross_kv_cache_fraction is None:
        return memory
    fraction = config.cross_kv_cache_fraction
    if model.cache_type is not CacheType.CROSS:
        fraction = 1.0 - fraction
    return CacheMemory(int(memory.primary_bytes * fraction), int(memory.secondary_bytes * fraction))


def _check_block_counts(
    blocks: BlocksPerWindow, config: KvCacheConfig, model: ModelConfig, memory: CacheMemory
) -> None:
    for window, (num_primary, *colder) in blocks.items():
        if num_primary < 1:
            raise ConfigurationError(
                f"{memory.primary_bytes} bytes leave window {window} without a block; raise the memory or its share"
            )
        if memory.secondary_bytes and not any(colder) and window != RECURRENT_STATES:
            _LOGGER.warning(
                "host_cache_size of %d bytes gives window %d no block; nothing will be offloaded from it",
                memory.secondary_bytes,
                window,
            )
        longest = min(window, model.max_sequence_length)
        if window != RECURRENT_STATES and num_primary * config.tokens_per_block < longest:
            _LOGGER.warning(
                "window %d has %d blocks of %d tokens, fewer than one sequence of %d tokens; longer ones are refused",
                window,
                num_primary,
                config.tokens_per_block,
                longest,
            )


# -- several ranks -------------------------------------------------------------------------------------


def reduce_block_counts(rank_blocks: Sequence[BlocksPerWindow]) -> BlocksPerWindow:
    """Smallest counts of every tier and window over the ranks, in rank order.

    Attention windows must be the same on all ranks; ConfigurationError names those that differ. A window of
    recurrent states may be missing on some.
    """
    attention = [[window for window in sorted(blocks) if window != RECURRENT_STATES] for blocks in rank_blocks]
    different = [rank for rank, windows in enumerate(attention) if windows != attention[0]]
    if different:
        listed = ", ".join(f"rank {rank}: {attention[rank]}" for rank in [0, *different])
        raise ConfigurationError(
            f"ranks hold layers of different attention windows ({listed}); spread the layers so that every rank has all"
        )
    result: BlocksPerWindow = {}
    for window in sorted({window for blocks in rank_blocks for window in blocks}):
        counts = [blocks[window] for blocks in rank_blocks if window in blocks]
        result[window] = tuple(map(min, zip(*counts, strict=True)))
    return result


def synchronize_block_counts(blocks_per_window: BlocksPerWindow, group: Any = None) -> BlocksPerWindow:
    """Counts that all ranks of a torch.distributed group (default: all) can hold; a collective call.

    Without an initialised process group, or with one rank, the counts come back as they are.
    A rank with recurrent states keeps that window, others do not get it. C++: synchronizeBlockCountsAcrossRanks.
    """
    # Whoever made a process group has imported torch; loading it here only to find none would take seconds.
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return dict(blocks_per_window)
    rank_blocks: list[BlocksPerWindow] = [{} for _ in range(distributed.get_world_size(group))]
    distributed.all_gather_object(rank_blocks, dict(blocks_per_window), group=group)
    reduced = reduce_block_counts(rank_blocks)
    return {window: counts for window, counts in reduced.items() if window in blocks_per_window}
