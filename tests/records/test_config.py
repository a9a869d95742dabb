"""Settings: names, defaults and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from trtkv.common import CacheType
from trtkv.errors import ConfigurationError
from trtkv.records.config import KvCacheConfig, ModelConfig, SchedulerConfig
from trtkv.records.linear_attention import LinearAttentionMetadata
from trtkv.scheduler.build import build_capacity_scheduler, build_micro_batch_scheduler
from trtkv.scheduler.scheduler_config import CapacitySchedulerPolicy

# Option names and defaults of TensorRT-LLM's KvCacheConfig.
PUBLIC_DEFAULTS: dict[str, Any] = {
    "enable_block_reuse": True,
    "max_tokens": None,
    "max_attention_window": None,
    "sink_token_length": None,
    "free_gpu_memory_fraction": 0.9,
    "host_cache_size": None,
    "cross_kv_cache_fraction": None,
    "secondary_offload_min_priority": 30,
    "event_buffer_max_size": 0,
    "attention_dp_events_gather_period_ms": 5,
    "kv_events_config": None,
    "enable_partial_reuse": True,
    "copy_on_partial_reuse": True,
    "use_uvm": False,
    "max_gpu_total_bytes": 0,
    "iteration_stats_interval": 1,
    "dtype": "auto",
    "tokens_per_block": 32,
    "use_kv_cache_manager_v2": "auto",
}


def test_public_option_names_and_defaults() -> None:
    assert KvCacheConfig().model_dump() == PUBLIC_DEFAULTS


def test_every_field_is_described() -> None:
    for config in (KvCacheConfig, ModelConfig, SchedulerConfig):
        for name, field in config.model_fields.items():
            assert field.description, f"{config.__name__}.{name}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"free_gpu_memory_fraction": 1.0}, r"free_gpu_memory_fraction=1\.0: .*less than 1"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"max_attention_window": []}, "max_attention_window=.*full attention"),
        ({"max_attention_window": [64, 0]}, "max_attention_window=.*positive window"),
        ({"sink_token_length": 4}, "sink tokens are not supported"),
        ({"secondary_offload_min_priority": 101}, "secondary_offload_min_priority=101"),
        ({"use_uvm": True}, "managed memory is not supported"),
        ({"dtype": "fp7"}, "dtype='fp7': give auto or one of float"),
        ({"tokens_per_block": 0}, "tokens_per_block=0"),
        ({"use_kv_cache_manager_v2": True}, "use_kv_cache_manager_v2"),
        ({"free_gpu_mem_fraction": 0.5}, "free_gpu_mem_fraction=0.5: Extra inputs"),
    ],
)
def test_a_wrong_cache_setting_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        KvCacheConfig(**settings)


def test_all_wrong_settings_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"max_tokens=-1.*host_cache_size=-5"):
        KvCacheConfig(max_tokens=-1, host_cache_size=-5)


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        KvCacheConfig().max_tokens = 5  # type: ignore[misc]


def test_the_fraction_counts_as_written_down_only_when_it_was() -> None:
    assert not KvCacheConfig(max_tokens=5).limits_memory_twice
    assert not KvCacheConfig(free_gpu_memory_fraction=0.9).limits_memory_twice
    assert KvCacheConfig(max_tokens=5, free_gpu_memory_fraction=0.9).limits_memory_twice


def test_heads_are_shared_by_ranks_rounded_up() -> None:
    model = ModelConfig(
        num_layers=3, num_kv_heads_per_layer=[8, 1, 3], size_per_head=64, max_sequence_length=9, tp_size=2
    )
    assert model.heads_per_layer == [4, 1, 2]
    assert model.kv_factor == 2
    keys_only = ModelConfig(
        num_layers=2, num_kv_heads_per_layer=1, size_per_head=576, max_sequence_length=9, cache_type=CacheType.SELFKONLY
    )
    assert keys_only.heads_per_layer == [1, 1]
    assert keys_only.kv_factor == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_kv_heads_per_layer": [1]}, "has 1 entries for 2 layers"),
        ({"num_kv_heads_per_layer": 0}, "positive head counts"),
        ({"linear_layer_indices": [1]}, "need linear_attention_metadata"),
        ({"linear_layer_indices": [2], "linear_attention_metadata": LinearAttentionMetadata()}, r"\[2\] are not among"),
        ({"dtype": "fp7"}, "dtype"),
    ],
)
def test_a_wrong_model_is_refused(settings: dict[str, Any], message: str) -> None:
    arguments = {"num_layers": 2, "num_kv_heads_per_layer": 1, "size_per_head": 4, "max_sequence_length": 8}
    with pytest.raises(ConfigurationError, match=message):
        ModelConfig(**(arguments | settings))


def test_schedulers_are_built_from_settings() -> None:
    config = SchedulerConfig(capacity_scheduler_policy="max_utilization", max_batch_size=7, enable_chunked_prefill=True)
    capacity = build_capacity_scheduler(config)
    assert capacity.policy is CapacitySchedulerPolicy.MAX_UTILIZATION
    assert capacity.max_num_requests == 7
    build_micro_batch_scheduler(config, 32)
    with pytest.raises(ConfigurationError, match="chunk_unit_size 48 is not a multiple of tokens_per_block 32"):
        build_micro_batch_scheduler(SchedulerConfig(enable_chunked_prefill=True, chunk_unit_size=48), 32)
