"""What a manager refuses to be built from, and what the shapes of its pools follow from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.builders import add, make_linear_attention, make_request
from trtkv import KVCacheManager
from trtkv.common import RECURRENT_STATES, CacheType, DataType
from trtkv.errors import ConfigurationError, InvalidInputError, UnknownIdError
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.records.linear_attention import LinearAttentionMetadata
from trtkv.records.window_size_metadata import PoolConfiguration

PLAIN: dict[str, Any] = {
    "num_kv_heads_per_layer": [1, 1],
    "size_per_head": 16,
    "tokens_per_block": 4,
    "blocks_per_window": {64: (8, 2)},
    "max_num_sequences": 2,
    "max_beam_width": 1,
    "max_attention_window_vec": [64],
    "max_sequence_length": 64,
}
HYBRID: dict[str, Any] = PLAIN | {
    "blocks_per_window": {64: (8, 0), RECURRENT_STATES: (4, 0)},
    "max_attention_window_vec": [64, RECURRENT_STATES],
    "enable_partial_reuse": False,
    "linear_attention_metadata": make_linear_attention(),
}


class TwoMoreTokens:
    """A connector."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return 2


def without_window(window: int) -> dict[int, tuple[int, int]]:
    return {size: counts for size, counts in HYBRID["blocks_per_window"].items() if size != window}


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        # Conditions of the reference.
        (PLAIN, {"pool_configurations": [PoolConfiguration(64, 16, DataType.HALF)] * 2}, "two pool configurations"),
        (HYBRID, {"enable_partial_reuse": True}, "set enable_partial_reuse=False"),
        (PLAIN, {"linear_attention_metadata": make_linear_attention()}, "set enable_partial_reuse=False"),
        (HYBRID, {"linear_attention_metadata": make_linear_attention(states_snapshot_interval=6)}, "not a multiple"),
        (
            PLAIN,
            {
                "linear_attention_metadata": make_linear_attention(states_snapshot_interval=6),
                "enable_partial_reuse": False,
            },
            "not a multiple",
        ),
        (PLAIN, {"blocks_per_window": {64: (0, 2)}}, "has 0 primary blocks"),
        (PLAIN, {"sink_token_length": 1}, "sink tokens are not supported"),
        (
            PLAIN,
            {
                "kv_cache_connector_manager": TwoMoreTokens(),
                "blocks_per_window": {64: (8, 0), 8: (8, 0)},
                "max_attention_window_vec": [64, 8],
            },
            "one window only",
        ),
        (HYBRID, {"num_kv_heads_per_layer": [1, 2, 1, 4]}, r"head counts \[2, 4\]"),
        (HYBRID, {"blocks_per_window": without_window(64), "max_attention_window_vec": [RECURRENT_STATES]}, "beside"),
        # Conditions of our own.
        (HYBRID, {"linear_attention_metadata": None}, "needs linear_attention_metadata"),
        (HYBRID, {"linear_attention_metadata": make_linear_attention(num_placeholder_blocks=-1)}, "negative"),
        (HYBRID, {"linear_attention_metadata": make_linear_attention(states_snapshot_interval=-4)}, "negative"),
        (HYBRID, {"linear_attention_metadata": make_linear_attention(all_recurrent_states_bytes=0)}, "bytes is 0"),
        (HYBRID, {"linear_attention_metadata": make_linear_attention(all_recurrent_states_bytes=7)}, "16 bits"),
        (PLAIN, {"blocks_per_window": {64: (8, -1)}}, "-1 secondary blocks"),
        (PLAIN, {"tokens_per_block": 0}, "tokens_per_block is 0"),
        (PLAIN, {"max_sequence_length": 0}, "max_sequence_length is 0"),
        (PLAIN, {"max_beam_width": 0}, "max_beam_width is 0"),
        (PLAIN, {"max_num_sequences": 0}, "max_num_sequences is 0"),
        (PLAIN, {"chunk_size": 0}, "chunk_size is 0"),
        (PLAIN, {"max_attention_window_vec": []}, "at least one window"),
        (PLAIN, {"max_attention_window_vec": [0]}, "window is 0 tokens"),
        (PLAIN, {"num_kv_heads_per_layer": []}, "is empty"),
        (PLAIN, {"num_kv_heads_per_layer": [1, 0]}, "layer 1 has 0 KV heads"),
        (PLAIN, {"size_per_head": 0}, "size_per_head is 0"),
        (PLAIN, {"pool_configurations": [PoolConfiguration(64, 0, DataType.HALF)]}, "size_per_head is 0"),
        (PLAIN, {"pool_configurations": [PoolConfiguration(32, 16, DataType.HALF)]}, r"name windows \[32\]"),
        (PLAIN, {"size_per_head": 15, "dtype": DataType.NVFP4}, "must be even"),
        (PLAIN, {"size_per_head": 24, "dtype": DataType.NVFP4}, "multiple of 16"),
        (PLAIN, {"enable_indexer_k_cache": True, "indexer_k_cache_quant_block_size": 0}, "index keys"),
        (PLAIN, {"secondary_offload_min_priority": 101}, "give a value from 0 to 100"),
    ],
)
def test_settings_that_cannot_work_are_refused(base, changes, message):
    KVCacheManager.from_arguments(**base)
    with pytest.raises(ConfigurationError, match=message):
        KVCacheManager.from_arguments(**(base | changes))


def test_a_window_without_blocks_is_named():
    with pytest.raises(UnknownIdError, match=r"no entry for window 8; it has \[64\]"):
        KVCacheManager.from_arguments(**(PLAIN | {"max_attention_window_vec": [64, 8]}))


def test_an_event_buffer_without_room_is_refused():
    with pytest.raises(ConfigurationError, match="event buffer size is 0"):
        KVCacheEventManager(0)


def test_settings_are_checked_in_compatibility_mode_as_well():
    with pytest.raises(ConfigurationError, match="sink tokens"):
        KVCacheManager.from_arguments(**PLAIN, sink_token_length=1, compatibility=True)


# -- windows and layers -----------------------------------------------------------------------------------


def test_windows_repeat_over_the_layers():
    manager = KVCacheManager.from_arguments(
        **(
            PLAIN
            | {
                "num_kv_heads_per_layer": [1] * 5,
                "blocks_per_window": {64: (8, 0), 8: (6, 0)},
                "max_attention_window_vec": [8, 8, 64],
            }
        )
    )
    blocks = manager.block_manager
    assert [blocks.get_layer_window_size(layer) for layer in range(5)] == [8, 8, 64, 8, 8]
    assert [pool.num_layers for pool in blocks.pools] == [4, 1]
    assert [pool.num_primary_blocks for pool in blocks.pools] == [6, 8]
    assert [blocks.get_layer_pool_idx(layer) for layer in range(5)] == [0, 0, 1, 0, 0]
    assert [blocks.get_pool_layer_idx(layer) for layer in range(5)] == [0, 1, 0, 2, 3]
    assert manager.is_variable_window
    assert not manager.is_variable_gqa


def test_one_pool_per_head_count_in_each_window_smallest_count_first():
    manager = KVCacheManager.from_arguments(
        **(
            PLAIN
            | {
                "num_kv_heads_per_layer": [4, 1, 4, 2],
                "blocks_per_window": {64: (8, 0), 8: (6, 0)},
                "max_attention_window_vec": [64, 64, 8, 8],
            }
        )
    )
    pools = manager.block_manager.pools
    assert [(pool.window_size, pool.num_kv_heads) for pool in pools] == [(8, 2), (8, 4), (64, 1), (64, 4)]
    assert [pool.primary_shape for pool in pools] == [
        (6, 1, 2, 2 * 16 * 4),
        (6, 1, 2, 4 * 16 * 4),
        (8, 1, 2, 1 * 16 * 4),
        (8, 1, 2, 4 * 16 * 4),
    ]
    assert [manager.block_manager.get_layer_pool_idx(layer) for layer in range(4)] == [3, 2, 1, 0]
    assert manager.is_variable_gqa


def test_different_heads_in_different_windows_are_variable_heads():
    """Even where each window has one count."""
    options = {"num_kv_heads_per_layer": [1, 2], "blocks_per_window": {64: (8, 0), 8: (6, 0)}}
    assert KVCacheManager.from_arguments(**(PLAIN | options | {"max_attention_window_vec": [64, 8]})).is_variable_gqa


def test_head_size_and_type_may_differ_by_window():
    manager = KVCacheManager.from_arguments(
        **(
            PLAIN
            | {
                "blocks_per_window": {64: (8, 0), 8: (6, 0)},
                "max_attention_window_vec": [64, 8],
                "pool_configurations": [PoolConfiguration(8, 32, DataType.FP8)],
            }
        )
    )
    assert manager.block_manager.pool_configurations == [
        PoolConfiguration(8, 32, DataType.FP8),
        PoolConfiguration(64, 16, DataType.HALF),
    ]
    assert [(pool.block_size, pool.dtype) for pool in manager.block_manager.pools] == [
        (32 * 4, DataType.FP8),
        (16 * 4, DataType.HALF),
    ]


def test_keys_only_pools_have_half_the_bytes():
    both = KVCacheManager.from_arguments(**PLAIN).block_manager
    keys = KVCacheManager.from_arguments(**PLAIN, cache_type=CacheType.SELFKONLY).block_manager
    assert keys.pools[0].primary_shape == (8, 2, 1, 64)
    assert both.pools[0].primary_bytes == 2 * keys.pools[0].primary_bytes


def test_scales_and_index_keys_have_pools_beside_the_others():
    manager = KVCacheManager.from_arguments(
        **(PLAIN | {"num_kv_heads_per_layer": [1, 4]}),
        dtype=DataType.NVFP4,
        enable_indexer_k_cache=True,
        indexer_k_cache_index_head_dim=256,
        indexer_k_cache_quant_block_size=128,
    )
    pools = manager.block_manager.pools
    assert [(p.contains_block_scales, p.contains_indexer_k_cache) for p in pools] == [
        (False, False),
        (False, False),
        (True, False),
        (True, False),
        (False, True),
        (False, True),
    ]
    assert [pool.block_size for pool in pools] == [1 * 8 * 4, 4 * 8 * 4, 1 * 1 * 4, 4 * 1 * 4, 264 * 4, 264 * 4]
    blocks = manager.block_manager
    assert [blocks.get_layer_pool_idx(layer) for layer in range(2)] == [0, 1]
    assert blocks.get_num_pools() == manager.num_pools == 6
    assert blocks.get_num_pools(include_block_scale_pools=False) == 4
    assert blocks.get_num_pools(include_indexer_k_cache_pools=False) == 4
    assert blocks.get_num_pools(False, False) == 2


def test_states_come_first_and_layer_by_layer():
    manager = KVCacheManager.from_arguments(**(HYBRID | {"num_kv_heads_per_layer": [1, 1, 1]}))
    states, attention = manager.block_manager.pools
    assert states.primary_shape == (1, 4, 1, 32)  # 64 bytes of half precision
    assert states.layer_first_layout
    assert attention.primary_shape == (8, 2, 2, 64)
    assert [manager.block_manager.get_layer_pool_idx(layer) for layer in range(3)] == [1, 0, 1]


def test_placeholders_are_as_many_as_full_attention_has_blocks():
    manager = KVCacheManager.from_arguments(**HYBRID)
    windows = manager.block_manager.window_block_managers
    assert windows[RECURRENT_STATES].settings.num_placeholder_blocks == 8
    assert windows[64].settings.num_placeholder_blocks == 0
    own = HYBRID | {"linear_attention_metadata": LinearAttentionMetadata(num_placeholder_blocks=3)}
    windows = KVCacheManager.from_arguments(**own).block_manager.window_block_managers
    assert windows[RECURRENT_STATES].settings.num_placeholder_blocks == 3


def test_tables_are_as_wide_as_the_longest_sequence():
    manager = KVCacheManager.from_arguments(
        **(PLAIN | {"blocks_per_window": {8: (8, 0), 64: (8, 0)}, "max_attention_window_vec": [8, 64]})
    )
    assert {window: data.max_blocks_per_seq for window, data in manager.window_sizes_metadata.items()} == {
        8: 16,
        64: 16,
    }
    assert {window: data.is_swa for window, data in manager.window_sizes_metadata.items()} == {8: True, 64: False}
    assert manager.offset_table_dimensions.num_pools == 2


def test_offsets_that_do_not_fit_32_bits_are_refused_when_they_are_asked_for():
    """A simulation may have such a pool; a table of it would be wrong."""
    manager = KVCacheManager.from_arguments(
        **(PLAIN | {"num_kv_heads_per_layer": [1] * 1024, "blocks_per_window": {64: (2**20 + 1, 0)}})
    )
    add(manager, make_request(0, 5))
    assert manager.get_cache_block_ids(0, 64) == [[0, 1]]
    with pytest.raises(InvalidInputError, match="32 bits"):
        manager.copy_block_offsets(np.zeros((1, 1, 2, 16), np.int32), 0, 0)
