"""Pools of one window: one per head count, and the maps from layers to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from trtkv.common import CacheType, DataType
from trtkv.errors import ConfigurationError
from trtkv.pools.kv_cache_block_pool import (
    KVCacheBlockPool,
    create_block_scale_pool,
    create_data_pool,
    create_indexer_k_cache_pool,
    create_recurrent_state_pool,
)
from trtkv.records.cache_settings import IndexerKCacheSettings
from trtkv.window_block_manager.settings import WindowSettings


class WindowPools:
    """Pools and layer maps of one window. C++: the pool members of WindowBlockManager."""

    def __init__(
        self,
        settings: WindowSettings,
        managed_layers: Sequence[int],
        num_kv_heads_per_layer: Sequence[int],
        size_per_head: int,
        dtype: DataType,
        indexer_k_cache: IndexerKCacheSettings | None,
    ) -> None:
        self._settings = settings
        k_only = settings.cache_type is CacheType.SELFKONLY or settings.is_recurrent_state
        self.kv_factor = 1 if k_only else 2
        self.dtype = dtype
        self.size_per_head = size_per_head
        self.layer_to_pool_index: dict[int, int] = {}
        self.layer_to_index_within_pool: dict[int, int] = {}
        num_layers_per_pool: Counter[int] = Counter()
        for layer in managed_layers:
            heads = num_kv_heads_per_layer[layer]
            self.layer_to_index_within_pool[layer] = num_layers_per_pool[heads]
            num_layers_per_pool[heads] += 1
        head_counts = sorted(num_layers_per_pool)
        for layer in managed_layers:
            self.layer_to_pool_index[layer] = head_counts.index(num_kv_heads_per_layer[layer])
        self.pools: list[KVCacheBlockPool] = [
            self._create_pool(num_layers_per_pool[heads], heads) for heads in head_counts
        ]
        if settings.is_recurrent_state and len(self.pools) > 1:
            raise ConfigurationError(f"recurrent layers have head counts {head_counts}; give them all the same one")
        self._add_side_pools(indexer_k_cache)

    def _create_pool(self, num_layers: int, num_kv_heads: int) -> KVCacheBlockPool:
        settings = self._settings
        linear = settings.linear_attention_metadata
        if linear is not None:
            return create_recurrent_state_pool(
                num_layers,
                linear.all_recurrent_states_bytes,
                settings.tokens_per_block,
                self.dtype,
                settings.window_size,
                settings.blocks_per_tier,
            )
        return create_data_pool(
            num_layers,
            self.kv_factor,
            num_kv_heads,
            self.size_per_head,
            settings.tokens_per_block,
            self.dtype,
            settings.window_size,
            settings.blocks_per_tier,
        )

    def _add_side_pools(self, indexer_k_cache: IndexerKCacheSettings | None) -> None:
        data_pools = tuple(self.pools)
        if self.dtype is DataType.NVFP4:
            self.pools += [create_block_scale_pool(pool) for pool in data_pools]
        if indexer_k_cache is not None:
            self.pools += [
                create_indexer_k_cache_pool(
                    pool,
                    indexer_k_cache.index_head_dim,
                    indexer_k_cache.quant_block_size,
                    indexer_k_cache.use_fp4,
                    self._mask_of_pool(index, indexer_k_cache.layer_mask),
                )
                for index, pool in enumerate(data_pools)
            ]

    def _mask_of_pool(self, pool_index: int, layer_mask: Sequence[bool] | None) -> tuple[bool, ...] | None:
        """Which layers of a pool keep index keys, in the order of the pool."""
        if layer_mask is None:
            return None
        return tuple(layer_mask[layer] for layer, index in self.layer_to_pool_index.items() if index == pool_index)

    def get_num_pools(self, include_block_scale_pools: bool = True, include_indexer_k_cache_pools: bool = True) -> int:
        """Pools of the window, with or without those of scales and index keys."""
        return sum(
            1
            for pool in self.pools
            if (include_block_scale_pools or not pool.contains_block_scales)
            and (include_indexer_k_cache_pools or not pool.contains_indexer_k_cache)
        )
