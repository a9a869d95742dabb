"""Pools of one window: one per head count, beside them scales and index keys, and the maps from layers to rows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import make_linear_attention
from trtkv.common import RECURRENT_STATES, CacheType, DataType, KeyForm
from trtkv.errors import ConfigurationError
from trtkv.window_block_manager.pools import IndexerKCacheSettings, WindowPools
from trtkv.window_block_manager.settings import WindowSettings


def make_settings(**options: Any) -> WindowSettings:
    return WindowSettings(
        **(
            {
                "window_size": 64,
                "channel": 0,
                "num_channels": 1,
                "tokens_per_block": 4,
                "is_swa": False,
                "cache_type": CacheType.SELF,
                "blocks_per_tier": (10, 3),
                "num_placeholder_blocks": 0,
                "enable_partial_reuse": True,
                "copy_on_partial_reuse": True,
                "linear_attention_metadata": None,
                "key_form": KeyForm.TOKENS,
                "compatibility": False,
            }
            | options
        )
    )


def make_pools(
    heads: list[int],
    layers: list[int] | None = None,
    dtype: DataType = DataType.HALF,
    indexer: IndexerKCacheSettings | None = None,
    size_per_head: int = 8,
    **options: Any,
) -> WindowPools:
    managed = list(range(len(heads))) if layers is None else layers
    return WindowPools(make_settings(**options), managed, heads, size_per_head, dtype, indexer)


def test_one_pool_per_head_count_in_ascending_order() -> None:
    pools = make_pools([4, 1, 4, 2])
    assert [(pool.num_kv_heads, pool.num_layers) for pool in pools.pools] == [(1, 1), (2, 1), (4, 2)]
    assert pools.layer_to_pool_index == {0: 2, 1: 0, 2: 2, 3: 1}
    assert pools.layer_to_index_within_pool == {0: 0, 1: 0, 2: 1, 3: 0}
    assert [pool.block_size for pool in pools.pools] == [heads * 8 * 4 for heads in (1, 2, 4)]
    assert pools.pools[2].primary_shape == (10, 2, 2, 128)
    assert pools.pools[2].secondary_shape == (3, 2, 2, 128)


def test_layers_of_other_windows_are_left_out() -> None:
    pools = make_pools([4, 1, 4, 2], layers=[1, 2])
    assert pools.layer_to_pool_index == {1: 0, 2: 1}
    assert [pool.num_layers for pool in pools.pools] == [1, 1]


@pytest.mark.parametrize(
    ("cache_type", "factor"), [(CacheType.SELF, 2), (CacheType.CROSS, 2), (CacheType.SELFKONLY, 1)]
)
def test_caches_of_keys_alone_have_one_field(cache_type: CacheType, factor: int) -> None:
    pools = make_pools([1], cache_type=cache_type)
    assert pools.kv_factor == pools.pools[0].kv_factor == factor


def test_recurrent_states_lie_layer_by_layer() -> None:
    pools = make_pools(
        [1, 1],
        window_size=RECURRENT_STATES,
        linear_attention_metadata=make_linear_attention(all_recurrent_states_bytes=64),
    )
    (pool,) = pools.pools
    assert pools.kv_factor == 1
    assert pool.layer_first_layout
    assert pool.primary_shape == (2, 10, 1, 32)
    with pytest.raises(ConfigurationError, match=r"recurrent layers have head counts \[1, 2\]"):
        make_pools([1, 2], window_size=RECURRENT_STATES, linear_attention_metadata=make_linear_attention())


def test_four_bit_pools_have_pools_of_scales_behind_them() -> None:
    pools = make_pools([2, 1], dtype=DataType.NVFP4, size_per_head=32)
    assert [pool.contains_block_scales for pool in pools.pools] == [False, False, True, True]
    assert [pool.dtype for pool in pools.pools] == [DataType.INT8, DataType.INT8, DataType.FP8, DataType.FP8]
    assert pools.get_num_pools() == 4
    assert pools.get_num_pools(include_block_scale_pools=False) == 2
    assert set(pools.layer_to_pool_index.values()) == {0, 1}


@pytest.mark.parametrize(("use_fp4", "elements"), [(False, (256 + 8) * 4), (True, (128 + 8) * 4)])
def test_index_keys_have_a_pool_for_each_pool(use_fp4: bool, elements: int) -> None:
    pools = make_pools([2, 1], indexer=IndexerKCacheSettings(128, 256, use_fp4))
    assert [pool.contains_indexer_k_cache for pool in pools.pools] == [False, False, True, True]
    assert [pool.block_size for pool in pools.pools[2:]] == [elements] * 2
    assert pools.get_num_pools(include_indexer_k_cache_pools=False) == 2
