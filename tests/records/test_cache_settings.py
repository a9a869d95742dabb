"""The settings record of a manager: every way to it leads to the same record, and nothing changes it afterwards."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from trtkv import DataType, KVCacheManager
from trtkv.errors import ConfigurationError
from trtkv.records.cache_settings import (
    CacheSettings,
    EvictionSettings,
    IndexerKCacheSettings,
    LayerSettings,
    ReuseSettings,
    SequenceLimits,
    WindowsSettings,
)
from trtkv.records.config import KvCacheConfig, ModelConfig
from trtkv.records.window_size_metadata import PoolConfiguration
from trtkv.replay.config import ReplayConfig

ARGUMENTS: dict[str, Any] = {
    "num_kv_heads_per_layer": [2, 2],
    "size_per_head": 16,
    "tokens_per_block": 4,
    "blocks_per_window": {16: (8, 2), 64: (6, 0)},
    "max_num_sequences": 3,
    "max_beam_width": 2,
    "max_attention_window_vec": [64, 16],
    "max_sequence_length": 64,
}


def make_settings(**changes: Any) -> CacheSettings:
    settings = CacheSettings(
        tokens_per_block=4,
        layers=LayerSettings([2, 2], 16),
        windows=WindowsSettings([64, 16], {16: (8, 2), 64: (6, 0)}),
        limits=SequenceLimits(64, 3, 2),
    )
    return dataclasses.replace(settings, **changes)


def test_arguments_of_the_original_make_the_same_record() -> None:
    assert KVCacheManager.from_arguments(**ARGUMENTS).settings == make_settings()
    assert KVCacheManager(make_settings()).settings == make_settings()


def test_every_argument_of_the_original_reaches_the_record() -> None:
    pools = [PoolConfiguration(16, 32, DataType.FP8)]
    manager = KVCacheManager.from_arguments(
        **ARGUMENTS,
        dtype=DataType.BF16,
        chunk_size=32,
        enable_block_reuse=False,
        cache_type="selfkonly",
        secondary_offload_min_priority=7,
        enable_partial_reuse=False,
        copy_on_partial_reuse=False,
        enable_indexer_k_cache=True,
        indexer_k_cache_quant_block_size=64,
        indexer_k_cache_index_head_dim=128,
        indexer_k_cache_use_fp4=True,
        pool_configurations=pools,
        hash_map_order=True,
        key_form="runs",
        preallocate_blocks=True,
        compatibility=True,
    )
    assert manager.settings == make_settings(
        layers=LayerSettings([2, 2], 16, DataType.BF16, "selfkonly", IndexerKCacheSettings(64, 128, True)),
        windows=WindowsSettings([64, 16], {16: (8, 2), 64: (6, 0)}, pools),
        limits=SequenceLimits(64, 3, 2, 32),
        reuse=ReuseSettings(False, False, False, True, "runs"),
        eviction=EvictionSettings(secondary_offload_min_priority=7),
        preallocate_blocks=True,
        compatibility=True,
    )


def test_configs_of_users_lead_to_the_record() -> None:
    model = ModelConfig(
        num_layers=2, num_kv_heads_per_layer=4, tp_size=2, size_per_head=16, max_sequence_length=64, dtype="bf16"
    )
    config = KvCacheConfig(tokens_per_block=4, max_attention_window=(64, 16))
    blocks = {16: (8, 2), 64: (6, 0)}
    settings = config.to_settings(model, blocks, max_num_sequences=3, max_beam_width=2)
    assert settings == make_settings(layers=LayerSettings([2, 2], 16, DataType.BF16))
    explicit = KvCacheConfig(
        tokens_per_block=4,
        max_attention_window=(64, 16),
        dtype="half",
        enable_block_reuse=False,
        enable_partial_reuse=False,
        copy_on_partial_reuse=False,
        secondary_offload_min_priority=7,
    ).to_settings(model, blocks, max_num_sequences=3, max_beam_width=2, chunk_size=8)
    assert explicit == make_settings(
        limits=SequenceLimits(64, 3, 2, 8),
        reuse=ReuseSettings(False, False, False),
        eviction=EvictionSettings(secondary_offload_min_priority=7),
    )


def test_defaults_agree() -> None:
    config = KvCacheConfig()
    settings = KVCacheManager.from_arguments(**(ARGUMENTS | {"tokens_per_block": 32})).settings
    replay = ReplayConfig(capacity_tokens=64).build_manager([]).settings
    for found in (settings, make_settings(tokens_per_block=32), replay):
        assert found.tokens_per_block == config.tokens_per_block
        assert found.reuse.enable_block_reuse == config.enable_block_reuse
        assert found.reuse.enable_partial_reuse == config.enable_partial_reuse
        assert found.reuse.copy_on_partial_reuse == config.copy_on_partial_reuse
        assert found.eviction.secondary_offload_min_priority == config.secondary_offload_min_priority == 30


def test_a_record_does_not_follow_what_it_was_made_from() -> None:
    heads, blocks = [2, 2], {64: [8, 0]}
    settings = make_settings(layers=LayerSettings(heads, 16), windows=WindowsSettings([64], blocks))
    heads[0], blocks[64][0] = 9, 9
    assert settings.layers.num_kv_heads_per_layer == (2, 2)
    assert settings.windows.blocks_per_window == {64: (8, 0)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.compatibility = True  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_order_of_equal_matches_follows_the_mode_unless_it_is_given() -> None:
    assert not make_settings().hash_map_order
    assert make_settings(compatibility=True).hash_map_order
    assert make_settings(reuse=ReuseSettings(hash_map_order=True)).hash_map_order
    assert not make_settings(reuse=ReuseSettings(hash_map_order=False), compatibility=True).hash_map_order


def test_a_wrong_part_is_refused_before_there_is_a_manager() -> None:
    with pytest.raises(ConfigurationError, match="window 16 has 0 primary blocks"):
        make_settings(windows=WindowsSettings([64, 16], {16: (0, 2), 64: (6, 0)}))
    with pytest.raises(ConfigurationError, match="no layer has them"):
        make_settings(windows=WindowsSettings([64], {64: (6, 0)}, [PoolConfiguration(16, 32, DataType.FP8)]))


@pytest.mark.parametrize(
    "call",
    [
        lambda: KVCacheManager(**ARGUMENTS),  # type: ignore[arg-type]
        lambda: KVCacheManager([2], 16, 4, {64: (8, 0)}, 2, 1, [64], max_sequence_length=64),  # type: ignore[arg-type]
        lambda: KVCacheManager(),
        lambda: KVCacheManager(make_settings(), tokens_per_block=4),  # type: ignore[arg-type]
    ],
)
def test_arguments_of_the_original_are_sent_to_their_own_call(call: Any) -> None:
    with pytest.raises(TypeError, match=r"KVCacheManager\.from_arguments"):
        call()
