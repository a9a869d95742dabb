"""The config of a recorded manager: its fields, the manager built from it and the description of that manager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trtkv.common import CacheType, DataType
from trtkv.verify.connector import FixedMatchConnector
from trtkv.verify.json_kinds import BOOL, INT, INTS, Args, JsonValue, Kind, choice, list_of, nullable, record, tuple_of
from trtkv.verify.machine_state import MachineState
from trtkv.verify.trace_values import (
    DTYPE_KIND,
    LINEAR_ATTENTION_KIND,
    POOL_CONFIGURATION_KIND,
    read_linear_attention,
    read_pool_configurations,
)

if TYPE_CHECKING:
    from trtkv.manager.kv_cache_manager import KVCacheManager

CONFIG_REQUIRED: Final[dict[str, Kind]] = {
    "tokens_per_block": INT,
    "num_kv_heads_per_layer": INTS,
    "blocks_per_window": list_of(tuple_of(INT, INT, INT)),
    "max_attention_window_vec": INTS,
    "max_sequence_length": INT,
}
CONFIG_OPTIONAL: Final[dict[str, Kind]] = {
    "size_per_head": INT,
    "max_num_sequences": INT,
    "max_beam_width": INT,
    "sink_token_length": INT,
    "chunk_size": nullable(INT),
    "dtype": DTYPE_KIND,
    "enable_block_reuse": BOOL,
    "enable_partial_reuse": BOOL,
    "copy_on_partial_reuse": BOOL,
    "cache_type": choice([cache_type.value for cache_type in CacheType]),
    "secondary_offload_min_priority": nullable(INT),
    "event_buffer_max_size": nullable(INT),
    "enable_indexer_k_cache": BOOL,
    "indexer_k_cache_quant_block_size": INT,
    "indexer_k_cache_index_head_dim": INT,
    "indexer_k_cache_use_fp4": BOOL,
    "linear_attention": nullable(LINEAR_ATTENTION_KIND),
    "pool_configurations": list_of(POOL_CONFIGURATION_KIND),
    "connector_matched_tokens": nullable(INT),
    "spec_decoding_budget": nullable(tuple_of(INT, INT)),
    "clock_start_ms": INT,
    "compatibility": BOOL,
}
CONFIG_KIND: Final = record(CONFIG_REQUIRED, CONFIG_OPTIONAL)


def build_manager(state: MachineState, config: Args) -> KVCacheManager:
    """A manager on the state's clock and copy engine, in the state's mode unless the config names one.

    Raises what the constructor raises.
    """
    from trtkv.events.kv_cache_event_manager import KVCacheEventManager
    from trtkv.manager.kv_cache_manager import KVCacheManager

    event_buffer_max_size = config.get("event_buffer_max_size")
    connector_matched_tokens = config.get("connector_matched_tokens")
    manager = KVCacheManager.from_arguments(
        config["num_kv_heads_per_layer"],
        config.get("size_per_head", 1),
        config["tokens_per_block"],
        {window: (primary, secondary) for window, primary, secondary in config["blocks_per_window"]},
        config.get("max_num_sequences", 64),
        config.get("max_beam_width", 1),
        config["max_attention_window_vec"],
        DataType(config.get("dtype", DataType.HALF)),
        config.get("sink_token_length", 0),
        max_sequence_length=config["max_sequence_length"],
        chunk_size=config.get("chunk_size"),
        enable_block_reuse=config.get("enable_block_reuse", True),
        cache_type=CacheType(config.get("cache_type", CacheType.SELF)),
        secondary_offload_min_priority=config.get("secondary_offload_min_priority"),
        event_manager=None if event_buffer_max_size is None else KVCacheEventManager(event_buffer_max_size),
        enable_partial_reuse=config.get("enable_partial_reuse", True),
        copy_on_partial_reuse=config.get("copy_on_partial_reuse", True),
        kv_cache_connector_manager=(
            None if connector_matched_tokens is None else FixedMatchConnector(connector_matched_tokens)
        ),
        enable_indexer_k_cache=config.get("enable_indexer_k_cache", False),
        indexer_k_cache_quant_block_size=config.get("indexer_k_cache_quant_block_size", 128),
        indexer_k_cache_index_head_dim=config.get("indexer_k_cache_index_head_dim", 0),
        indexer_k_cache_use_fp4=config.get("indexer_k_cache_use_fp4", False),
        linear_attention_metadata=read_linear_attention(config.get("linear_attention")),
        pool_configurations=read_pool_configurations(config.get("pool_configurations", ())),
        copy_engine=state.copy_engine,
        clock=state.clock,
        compatibility=config.get("compatibility", state.compatibility),
        hash_map_order="compatibility" in config or state.compatibility,
    )
    budget = config.get("spec_decoding_budget")
    if budget is not None:
        manager.set_spec_decoding_budget(*budget)
    return manager


def describe_manager(manager: KVCacheManager) -> dict[str, JsonValue]:
    """Windows, pools and layers of a manager, as ``create`` answers."""
    block_manager = manager.block_manager
    pools = [block_manager.get_pool(index) for index in range(manager.num_pools)]
    layer_pools = [block_manager.get_layer_pool_idx(layer) for layer in range(block_manager.num_layers)]
    dimensions = manager.offset_table_dimensions
    return {
        "windows": {
            str(window): {
                "allotted_primary": metadata.allotted_primary_blocks,
                "allotted_secondary": metadata.allotted_secondary_blocks,
                "absolute_pools_offset": metadata.absolute_pools_offset,
                "num_pools": metadata.num_pools,
                "max_token_num": metadata.max_token_num,
                "max_blocks_per_seq": metadata.max_blocks_per_seq,
                "max_num_blocks": metadata.max_num_blocks,
                "is_swa": metadata.is_swa,
            }
            for window, metadata in manager.window_sizes_metadata.items()
        },
        "num_pools": manager.num_pools,
        "block_size": [pool.block_size for pool in pools],
        "pool_shapes": [[list(pool.primary_shape), pool.dtype.value, pool.window_size] for pool in pools],
        "layer_to_pool_mapping": [
            [pool, block_manager.get_pool_layer_idx(layer)] for layer, pool in enumerate(layer_pools)
        ],
        "layer_first": [pools[pool].layer_first_layout for pool in layer_pools],
        "offset_table": [dimensions.max_blocks_per_seq, dimensions.num_pools],
        "is_variable_window": manager.is_variable_window,
        "is_variable_gqa": manager.is_variable_gqa,
        "enable_block_reuse": manager.enable_block_reuse,
        "allocated_bytes": manager.get_kv_cache_stats().allocated_bytes,
        "pool_configurations": [
            [entry.window_size, entry.size_per_head, entry.dtype.value] for entry in block_manager.pool_configurations
        ],
    }
