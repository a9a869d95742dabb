"""Checks a CachePlan against pools that are really allocated, in less memory: same windows, same blocks, fewer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from trtkv.common import WindowSize
from trtkv.tables.wording import memory_size

if TYPE_CHECKING:
    import torch

    from trtkv.manager.kv_cache_manager import KVCacheManager
    from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool
    from trtkv.sizing.cache_plan import CachePlan, WindowPlan

DEFAULT_CHECK_BYTES: Final = 256 * 2**20
"""Memory that a check may take; at least one block of each window is always made."""


class WindowCheck(NamedTuple):
    """What the tensors of one window say."""

    window_size: WindowSize
    primary_blocks: int
    """Blocks that were allocated."""
    secondary_blocks: int
    num_pools: int
    planned_block_bytes: int
    allocated_block_bytes: int
    """Bytes of its tensors in device memory / blocks allocated; all pools of the window together."""
    faults: tuple[str, ...]


class PlanCheck(NamedTuple):
    """Outcome of a check."""

    windows: tuple[WindowCheck, ...]
    allocated_bytes: int
    """Bytes of all tensors made, primary and secondary."""
    full_primary_bytes: int
    """Bytes of the whole plan by the blocks that were measured."""
    faults: tuple[str, ...]
    """What does not agree, of the plan as a whole and of each window; empty when all is well."""

    @property
    def is_good(self) -> bool:
        """Whether everything agrees."""
        return not self.faults


def check_plan(plan: CachePlan, max_bytes: int = DEFAULT_CHECK_BYTES) -> PlanCheck:
    """Build a manager of this plan with fewer blocks, allocate its pools on the CPU and measure the tensors.

    Needs torch (MissingExtraError). Everything is released again.
    """
    scale = min(1.0, max_bytes / max(1, plan.primary_bytes + plan.secondary_bytes))
    manager = _build_manager(plan, scale)
    sizes = [_allocated_bytes_per_block(plan, window) for window in plan.windows]
    manager.allocate_pools("cpu")
    try:
        windows = tuple(
            _check_window(manager, window, planned) for window, planned in zip(plan.windows, sizes, strict=True)
        )
        allocated = sum(map(_tensor_bytes, _all_pools(manager)))
        faults = [*_check_layers(manager, plan), *_check_budget(plan, windows)]
    finally:
        manager.release_pools()
    return PlanCheck(
        windows=windows,
        allocated_bytes=allocated,
        full_primary_bytes=_full_bytes(plan, windows),
        faults=(*faults, *(fault for window in windows for fault in window.faults)),
    )


def _build_manager(plan: CachePlan, scale: float) -> KVCacheManager:
    from trtkv.manager.kv_cache_manager import KVCacheManager
    from trtkv.records.cache_settings import IndexerKCacheSettings

    blocks = {
        window: (max(1, int(primary * scale)), int(secondary * scale) or min(secondary, 1))
        for window, (primary, secondary) in plan.blocks_per_window.items()
    }
    head_dim = plan.shape.index_head_dim if plan.shape.has_even_index_keys else 0
    settings = plan.kv_cache_config.to_settings(
        plan.model_config,
        blocks,
        max_num_sequences=plan.options.max_batch_size,
        indexer_k_cache=IndexerKCacheSettings(index_head_dim=head_dim) if head_dim else None,
    )
    return KVCacheManager(settings)


def _all_pools(manager: KVCacheManager) -> Sequence[KVCacheBlockPool]:
    return manager.block_manager.pools


def _allocated_bytes_per_block(plan: CachePlan, window: WindowPlan) -> int:
    """Bytes of a block in a manager's pools, which have index keys of every layer or of none."""
    if plan.shape.has_even_index_keys:
        return window.bytes_per_block
    return window.bytes_per_block - window.index_bytes_per_token * window.tokens_per_block


def _check_window(manager: KVCacheManager, plan: WindowPlan, bytes_per_block: int) -> WindowCheck:
    pools = [pool for pool in _all_pools(manager) if pool.window_size == plan.window_size]
    primary = sum(_num_bytes(pool.primary) for pool in pools)
    secondary = sum(_num_bytes(pool.secondary) for pool in pools)
    num_primary, num_secondary = pools[0].num_primary_blocks, pools[0].num_secondary_blocks
    faults = []
    for name, found, num_blocks in (("device", primary, num_primary), ("host", secondary, num_secondary)):
        if found != num_blocks * bytes_per_block:
            faults.append(
                f"window {plan.window_size}: {num_blocks} blocks take {found} bytes of {name} memory, planned were "
                f"{num_blocks * bytes_per_block}"
            )
    return WindowCheck(
        plan.window_size,
        num_primary,
        num_secondary,
        len(pools),
        bytes_per_block,
        primary // num_primary,
        tuple(faults),
    )


def _check_layers(manager: KVCacheManager, plan: CachePlan) -> list[str]:
    """Each layer's buffer has the heads and the head size that the model's config gives it."""
    faults = []
    model = plan.model_config
    linear = set(model.linear_layer_indices)
    for layer, heads in enumerate(model.heads_per_layer):
        if layer in linear:
            continue
        buffer = manager.get_buffers(layer)
        size = plan.shape.layers[layer].size_per_head // (2 if model.dtype.value == "nvfp4" else 1)
        wanted = (model.kv_factor, heads, plan.kv_cache_config.tokens_per_block, size)
        if tuple(buffer.shape[1:]) != wanted:
            faults.append(f"layer {layer}: a block is {tuple(buffer.shape[1:])}, the model says {wanted}")
    return faults


def _check_budget(plan: CachePlan, windows: Sequence[WindowCheck]) -> list[str]:
    """The measured blocks in their planned number fit the memory; each window may exceed it by less than a block."""
    full, allowed = _full_bytes(plan, windows), plan.options.memory_bytes
    slack = sum(window.allocated_block_bytes for window in windows)
    if full < allowed + slack:
        return []
    return [f"all blocks take {memory_size(full)} of {memory_size(allowed)}"]


def _full_bytes(plan: CachePlan, windows: Sequence[WindowCheck]) -> int:
    return sum(
        planned.primary_blocks * window.allocated_block_bytes
        for planned, window in zip(plan.windows, windows, strict=True)
    )


def _tensor_bytes(pool: KVCacheBlockPool) -> int:
    return _num_bytes(pool.primary) + _num_bytes(pool.secondary)


def _num_bytes(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.numel() * tensor.element_size()
