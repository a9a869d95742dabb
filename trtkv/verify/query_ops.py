"""Ops that only ask the manager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from trtkv.errors import UnknownIdError
from trtkv.verify.debug_state import describe_internals
from trtkv.verify.json_kinds import INT, INTS, Args, JsonValue, Kind, list_of
from trtkv.verify.machine_state import MachineState
from trtkv.verify.observation import observe
from trtkv.verify.op_spec import OpSpec
from trtkv.verify.trace_values import (
    KEY_KIND,
    read_key,
    to_float32,
    write_event_key,
    write_hash,
    write_packed_key,
)

if TYPE_CHECKING:
    from trtkv.blocks.kv_cache_block import KVCacheBlock
    from trtkv.common import RequestId
    from trtkv.events.kv_cache_events import KVCacheEvent, KVCacheStoredBlockData
    from trtkv.manager.kv_cache_manager import KVCacheManager


def scheduling_has_free_blocks(state: MachineState, args: Args) -> bool:
    """Whether the simulation has room."""
    return state.manager.scheduling_has_free_blocks(args["num_required"], args["window"])


def analyze_prefix_reuse(state: MachineState, args: Args) -> JsonValue:
    """Cached blocks of a prompt and the first key not found."""
    summary = state.manager.analyze_prefix_reuse(state.get_request(args["id"]))
    first_new: Any = summary.first_new_block
    return {
        "allocated": summary.reusable_blocks_allocated,
        "all": summary.reusable_blocks_all,
        "first_new": None if first_new is None else write_packed_key(first_new),
    }


def get_max_capacity_batch_size(state: MachineState, args: Args) -> int:
    """Requests of these lengths that fit together."""
    return state.manager.get_max_capacity_batch_size(args["input_length"], args["output_length"])


def get_token_count(state: MachineState, args: Args) -> int:
    """Tokens of a sequence."""
    return state.manager.get_token_count(args["id"])


def get_cache_block_ids(state: MachineState, args: Args) -> JsonValue:
    """Block ids of a sequence, per beam."""
    return _copy_ids(state.manager.get_cache_block_ids(args["id"], args["window"]))


def get_batch_cache_block_ids(state: MachineState, args: Args) -> JsonValue:
    """Block ids of several sequences."""
    batch = state.manager.get_batch_cache_block_ids(args["ids"], args["window"])
    return [_copy_ids(ids_per_beam) for ids_per_beam in batch]


def _copy_ids(ids_per_beam: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(ids) for ids in ids_per_beam]


def get_last_block_id(state: MachineState, args: Args) -> int | None:
    """Last block of a sequence in the first window."""
    return state.manager.get_last_block_id(args["id"])


def get_priority_by_block_id(state: MachineState, args: Args) -> int:
    """Priority of a block."""
    return state.manager.get_priority_by_block_id(args["block_id"], args["window"])


def verify_queue_integrity(state: MachineState, args: Args) -> JsonValue:
    """Whether each window's queues hold what they should."""
    manager = state.manager
    return {str(window): manager.verify_queue_integrity(window) for window in manager.window_sizes_metadata}


def find_block_by_key(state: MachineState, args: Args) -> JsonValue:
    """The cached block at the end of one key's path."""
    block = state.manager.find_blocks_in_reuse_tree_by_block_key(read_key(args["key"]), args["window"])
    return _describe_found_block(block)


def find_block_by_keys(state: MachineState, args: Args) -> JsonValue:
    """The cached block at the end of a path of keys."""
    keys = [read_key(key) for key in args["keys"]]
    return _describe_found_block(state.manager.find_blocks_in_reuse_tree_by_block_keys(keys, args["window"]))


def _describe_found_block(block: KVCacheBlock | None) -> JsonValue:
    if block is None:
        return None
    return {
        "id": block.block_id,
        "hash": write_hash(block.hash),
        "full": block.is_full,
        "priority": block.priority,
        "refs": block.ref_count,
    }


def copy_block_offsets(state: MachineState, args: Args) -> JsonValue:
    """Offset rows of one sequence, as long as each beam's block list."""
    manager = state.manager
    request_id = args["id"]
    first_slot = args.get("slot_offset", 0)
    if request_id not in manager.sequences:
        raise UnknownIdError(f"there is no sequence {request_id}")
    beam_width = manager.sequences[request_id].beam_width
    table = _make_offset_table(manager, first_slot + beam_width)
    max_block_count = manager.copy_block_offsets(table, first_slot, request_id)
    return {
        "max_block_count": int(max_block_count),
        "offsets": _read_offset_rows(manager, table, first_slot, [request_id]),
    }


def get_block_offsets_of_batch(state: MachineState, args: Args) -> JsonValue:
    """Offset rows of requests with consecutive ids."""
    manager = state.manager
    first_slot, batch_size, beam_width = args["first_slot"], args["batch_size"], args["beam_width"]
    table = _make_offset_table(manager, batch_size * beam_width)
    manager.get_block_offsets_of_batch(table, first_slot, batch_size, beam_width)
    return _read_offset_rows(manager, table, 0, range(first_slot, first_slot + batch_size))


def _make_offset_table(manager: KVCacheManager, num_slots: int) -> Any:
    import numpy as np

    dimensions = manager.offset_table_dimensions
    return np.zeros((dimensions.num_pools, num_slots, 2, dimensions.max_blocks_per_seq), dtype=np.int32)


def _read_offset_rows(
    manager: KVCacheManager, table: Any, first_slot: int, request_ids: Sequence[RequestId]
) -> list[JsonValue]:
    result: list[JsonValue] = []
    for pool_idx in range(manager.offset_table_dimensions.num_pools):
        window = manager.block_manager.get_pool(pool_idx).window_size
        rows: list[JsonValue] = []
        for request_id in request_ids:
            for ids in manager.get_cache_block_ids(request_id, window):
                row = table[pool_idx, first_slot + len(rows), :, : len(ids)]
                rows.append(row.tolist())
        result.append(rows)
    return result


def get_latest_events(state: MachineState, args: Args) -> JsonValue:
    """Events handed over since the last call."""
    return [_describe_event(event) for event in state.manager.get_latest_events(0)]


def _describe_event(event: KVCacheEvent) -> dict[str, JsonValue]:
    from trtkv.events.kv_cache_events import KVCacheCreatedData, KVCacheRemovedData, KVCacheStoredData

    data = event.data
    result: dict[str, JsonValue] = {"id": event.event_id, "window": event.window_size}
    if isinstance(data, KVCacheCreatedData):
        return {**result, "type": "created", "num_blocks": list(data.num_blocks_per_cache_level)}
    if isinstance(data, KVCacheStoredData):
        parent = None if data.parent_hash is None else write_hash(data.parent_hash)
        blocks = [_describe_stored_block(block) for block in data.blocks]
        return {**result, "type": "stored", "parent": parent, "blocks": blocks}
    if isinstance(data, KVCacheRemovedData):
        return {**result, "type": "removed", "hashes": [write_hash(value) for value in data.block_hashes]}
    result.update({"type": "updated", "hash": write_hash(data.block_hash)})
    for name, change in (("cache_level", data.cache_level), ("priority", data.priority)):
        if change is not None:
            result[name] = list(change)
    return result


def _describe_stored_block(block: KVCacheStoredBlockData) -> dict[str, JsonValue]:
    from trtkv.keys.block_key import BlockKey

    return {
        "hash": write_hash(block.block_hash),
        **write_event_key(BlockKey.unpack(block.block_key)),
        "level": block.cache_level,
        "priority": block.priority,
    }


def get_kv_cache_stats(state: MachineState, args: Args) -> JsonValue:
    """Totals since construction."""
    stats = state.manager.get_kv_cache_stats()
    free_blocks = stats.num_free_blocks_per_window_size
    return {
        "max_num_blocks": stats.max_num_blocks,
        "free_num_blocks": stats.free_num_blocks,
        "used_num_blocks": stats.used_num_blocks,
        "tokens_per_block": stats.tokens_per_block,
        "alloc_total_blocks": stats.alloc_total_blocks,
        "alloc_new_blocks": stats.alloc_new_blocks,
        "reused_blocks": stats.reused_blocks,
        "missed_blocks": stats.missed_blocks,
        "cache_hit_rate": to_float32(stats.cache_hit_rate),
        "num_free_blocks_per_window_size": {str(window): count for window, count in free_blocks.items()},
        "allocated_bytes": stats.allocated_bytes,
    }


def get_iteration_stats(state: MachineState, args: Args) -> JsonValue:
    """Gauges, and counters since the last call."""
    return {
        str(window): {
            "primary": [s.primary_max_num_blocks, s.primary_free_num_blocks, s.primary_used_num_blocks],
            "secondary": [s.secondary_max_num_blocks, s.secondary_free_num_blocks, s.secondary_used_num_blocks],
            "alloc": [s.iter_alloc_total_blocks, s.iter_alloc_new_blocks],
            "reused": [s.iter_reused_blocks, s.iter_full_reused_blocks, s.iter_partial_reused_blocks],
            "missed": s.iter_missed_blocks,
            "hit_rate": to_float32(s.iter_cache_hit_rate),
            "gen_alloc": s.iter_gen_alloc_blocks,
            "transfer": [s.iter_onboard_blocks, s.iter_offload_blocks, s.iter_intra_device_copy_blocks],
        }
        for window, s in state.manager.get_iteration_stats().items()
    }


def observe_requests(state: MachineState, args: Args) -> JsonValue:
    """An observation of some requests."""
    return observe(state, args["ids"])


def debug_state(state: MachineState, args: Args) -> JsonValue:
    """Internals of the manager."""
    return describe_internals(state.manager)


_ID: Final[dict[str, Kind]] = {"id": INT}

QUERY_OPS: Final[dict[str, OpSpec]] = {
    "scheduling_has_free_blocks": OpSpec(scheduling_has_free_blocks, {"num_required": INT, "window": INT}),
    "analyze_prefix_reuse": OpSpec(analyze_prefix_reuse, _ID),
    "get_max_capacity_batch_size": OpSpec(get_max_capacity_batch_size, {"input_length": INT, "output_length": INT}),
    "get_token_count": OpSpec(get_token_count, _ID),
    "get_cache_block_ids": OpSpec(get_cache_block_ids, {"id": INT, "window": INT}),
    "get_batch_cache_block_ids": OpSpec(get_batch_cache_block_ids, {"ids": INTS, "window": INT}),
    "get_last_block_id": OpSpec(get_last_block_id, _ID),
    "get_priority_by_block_id": OpSpec(get_priority_by_block_id, {"block_id": INT, "window": INT}),
    "verify_queue_integrity": OpSpec(verify_queue_integrity),
    "find_blocks_in_reuse_tree_by_block_key": OpSpec(find_block_by_key, {"key": KEY_KIND, "window": INT}),
    "find_blocks_in_reuse_tree_by_block_keys": OpSpec(find_block_by_keys, {"keys": list_of(KEY_KIND), "window": INT}),
    "copy_block_offsets": OpSpec(copy_block_offsets, _ID, {"slot_offset": INT}),
    "get_block_offsets_of_batch": OpSpec(
        get_block_offsets_of_batch, {"first_slot": INT, "batch_size": INT, "beam_width": INT}
    ),
    "get_latest_events": OpSpec(get_latest_events),
    "get_kv_cache_stats": OpSpec(get_kv_cache_stats),
    "get_iteration_stats": OpSpec(get_iteration_stats),
    "observe": OpSpec(observe_requests, {"ids": INTS}),
    "debug_state": OpSpec(debug_state),
}
