"""BlockManager: one WindowBlockManager per attention window, one tree for all of them."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Sequence

from trtkv.blocks.block_listener import BlockListener
from trtkv.blocks.guarded_listener import GuardedListener
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.blocks.radix_block_tree import UnifiedBlockTree
from trtkv.checks import check_integer
from trtkv.common import (
    RECURRENT_STATES,
    BlockId,
    KeyForm,
    WindowSize,
    ceil_div,
)
from trtkv.errors import UnknownIdError
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.eviction.eviction_policy import get_cache_level
from trtkv.eviction.registry import find_eviction
from trtkv.pools.capacity_estimation import group_layers_by_window_size
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool
from trtkv.records.cache_settings import CacheSettings, refuse_key_form
from trtkv.records.linear_attention import LinearAttentionMetadata
from trtkv.records.window_size_metadata import PoolConfiguration, WindowSizeMetadata
from trtkv.transfers.copy_engine import CopyEngine
from trtkv.window_block_manager import WindowBlockManager
from trtkv.window_block_manager.context import Services
from trtkv.window_block_manager.pools import WindowPools
from trtkv.window_block_manager.settings import WindowSettings


class BlockManager:
    """All windows of one cache, with the tree and the pools. C++: BlockManager.

    ``window_block_managers`` is keyed by window size, ascending; the recurrent window, being negative, comes
    first. ``pools`` are those of all windows in the same order. Block ids belong to a window, so what is done to a
    block or a sequence of one window is asked of ``get_window_block_manager``.
    """

    def __init__(
        self,
        settings: CacheSettings,
        copy_engine: CopyEngine,
        event_manager: KVCacheEventManager | None,
        clock: Callable[[], int],
        listener: BlockListener | None = None,
    ) -> None:
        if event_manager is not None and settings.reuse.key_form is KeyForm.DIGESTS:
            refuse_key_form(settings.reuse.key_form, "an event manager")
        self.settings = settings
        self.listener: BlockListener | None = None if listener is None else GuardedListener(listener)
        layers = settings.layers
        self.num_layers = len(layers.num_kv_heads_per_layer)
        self.lookup_tree = UnifiedBlockTree(settings.hash_map_order, settings.reuse.key_form)
        layers_per_window = group_layers_by_window_size(settings.windows.max_attention_window_vec, self.num_layers)
        self._layer_to_window_size = {layer: window for window, found in layers_per_window.items() for layer in found}
        self.is_variable_window = len(layers_per_window) > 1
        self.is_variable_gqa = len(set(layers.num_kv_heads_per_layer)) > 1
        services = Services(copy_engine, clock, event_manager, self.listener)
        self.window_block_managers: dict[WindowSize, WindowBlockManager] = {
            window: self._create_window(window, len(layers_per_window) - 1 - index, layers_per_window[window], services)
            for index, window in enumerate(layers_per_window)
        }
        self.window_sizes_metadata = self._create_metadata()
        self.pools: list[KVCacheBlockPool] = [
            pool for manager in self.window_block_managers.values() for pool in manager.pools.pools
        ]

    def _create_window(
        self,
        window_size: WindowSize,
        channel: int,
        layers: Sequence[int],
        services: Services,
    ) -> WindowBlockManager:
        settings = self.settings
        linear = settings.layers.linear_attention_metadata if window_size == RECURRENT_STATES else None
        configurations = {entry.window_size: entry for entry in settings.windows.pool_configurations}
        own = configurations.get(window_size)
        window = WindowSettings(
            window_size=window_size,
            channel=channel,
            num_channels=len(settings.windows_in_use),
            tokens_per_block=settings.tokens_per_block,
            is_swa=0 <= window_size < settings.limits.max_sequence_length,
            cache_type=settings.layers.cache_type,
            blocks_per_tier=settings.windows.get_blocks(window_size),
            num_placeholder_blocks=0 if linear is None else self._num_placeholders(linear),
            enable_partial_reuse=settings.reuse.enable_partial_reuse,
            copy_on_partial_reuse=settings.reuse.copy_on_partial_reuse,
            linear_attention_metadata=linear,
            key_form=settings.reuse.key_form,
            compatibility=settings.compatibility,
            secondary_offload_min_priority=settings.eviction.secondary_offload_min_priority,
        )
        pools = WindowPools(
            window,
            layers,
            settings.layers.num_kv_heads_per_layer,
            settings.layers.size_per_head if own is None else own.size_per_head,
            settings.layers.dtype if own is None else own.dtype,
            settings.layers.indexer_k_cache,
        )
        eviction = find_eviction(settings.eviction.eviction, settings.compatibility)
        return WindowBlockManager(window, pools, self.lookup_tree, services, eviction)

    def _num_placeholders(self, linear: LinearAttentionMetadata) -> int:
        if linear.num_placeholder_blocks is not None:
            return linear.num_placeholder_blocks
        return self.settings.windows.get_blocks(self.settings.limits.max_sequence_length)[0]

    def _create_metadata(self) -> dict[WindowSize, WindowSizeMetadata]:
        result = {}
        offset = 0
        for window_size, manager in self.window_block_managers.items():
            max_token_num = max(window_size, self.settings.limits.max_sequence_length)
            num_pools = manager.pools.get_num_pools()
            result[window_size] = WindowSizeMetadata(
                manager.settings.blocks_per_tier,
                offset,
                num_pools,
                max_token_num,
                ceil_div(max_token_num, self.settings.tokens_per_block),
                manager.settings.max_num_blocks,
                window_size,
                manager.settings.is_swa,
            )
            offset += num_pools
        return result

    def preallocate_blocks(self) -> None:
        """Make all block objects now instead of at their first use."""
        for manager in self.window_block_managers.values():
            manager.eviction_policy.make_all_blocks()
        if gc.isenabled():
            gc.collect()  # now and not during the first requests, since the number of objects has grown

    # -- windows, layers, pools ---------------------------------------------------------------------

    def get_window_block_manager(self, window_size: WindowSize) -> WindowBlockManager:
        """The manager of one window."""
        try:
            return self.window_block_managers[window_size]
        except KeyError:
            raise UnknownIdError(
                f"window {window_size} is not managed; choose one of {list(self.window_block_managers)}"
            ) from None

    @property
    def first_window_size(self) -> WindowSize:
        """The smallest window."""
        return next(iter(self.window_block_managers))

    @property
    def last_window_size(self) -> WindowSize:
        """The widest window."""
        return next(reversed(self.window_block_managers))

    def get_layer_window_size(self, layer_idx: int) -> WindowSize:
        """Window of a layer."""
        try:
            return self._layer_to_window_size[layer_idx]
        except KeyError:
            raise UnknownIdError(f"there is no layer {layer_idx}; layers run from 0 to {self.num_layers - 1}") from None

    def get_layer_pool_idx(self, layer_idx: int) -> int:
        """Index of a layer's pool over all windows."""
        window_size = self.get_layer_window_size(layer_idx)
        manager = self.window_block_managers[window_size]
        first = self.window_sizes_metadata[window_size].absolute_pools_offset
        return first + manager.pools.layer_to_pool_index[layer_idx]

    def get_pool_layer_idx(self, layer_idx: int) -> int:
        """Row of a layer inside its pool."""
        manager = self.window_block_managers[self.get_layer_window_size(layer_idx)]
        return manager.pools.layer_to_index_within_pool[layer_idx]

    def get_num_pools(self, include_block_scale_pools: bool = True, include_indexer_k_cache_pools: bool = True) -> int:
        """Pools of all windows."""
        return sum(
            manager.pools.get_num_pools(include_block_scale_pools, include_indexer_k_cache_pools)
            for manager in self.window_block_managers.values()
        )

    def get_pool(self, pool_idx: int) -> KVCacheBlockPool:
        """A pool by its index over all windows, narrowest window first."""
        if not 0 <= pool_idx < len(self.pools):
            raise UnknownIdError(f"there is no pool {pool_idx}; pools run from 0 to {len(self.pools) - 1}")
        return self.pools[pool_idx]

    def get_block_by_id(self, block_id: BlockId, window_size: WindowSize) -> KVCacheBlock:
        """A block of a window."""
        check_integer("block id", block_id)
        return self.get_window_block_manager(window_size).get_block_by_id(block_id)

    @property
    def pool_configurations(self) -> list[PoolConfiguration]:
        """Head size (0 for recurrent states) and element type of every window, ascending."""
        return [
            PoolConfiguration(
                window, 0 if manager.settings.is_recurrent_state else manager.pools.size_per_head, manager.pools.dtype
            )
            for window, manager in self.window_block_managers.items()
        ]

    def count_evictable_blocks(self) -> dict[WindowSize, tuple[int, ...]]:
        """Cached blocks that are not held, by window and tier: (primary, secondary). Walks the tree."""
        result = {}
        for window, manager in self.window_block_managers.items():
            levels = Counter(get_cache_level(block) for block in manager.matcher.list_blocks() if not block.has_refs)
            result[window] = tuple(levels[level] for level in range(len(manager.settings.blocks_per_tier)))
        return result

    def reset_reuse_state(self) -> None:
        """Forget everything cached: an empty tree for all windows."""
        self.lookup_tree = UnifiedBlockTree(self.settings.hash_map_order, self.settings.reuse.key_form)
        for manager in self.window_block_managers.values():
            manager.releaser.reset_reuse_state(self.lookup_tree)
