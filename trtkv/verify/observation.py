"""Observation: what a program shows of manager and requests after each op."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from trtkv.common import PLACEHOLDER_LEVEL, PRIMARY_LEVEL, SECONDARY_LEVEL, BlockId, RequestId
from trtkv.records.linear_attention import has_recurrent_states_cache
from trtkv.records.llm_request import LlmRequestState
from trtkv.verify.json_kinds import JsonValue
from trtkv.verify.machine_state import MachineState
from trtkv.verify.trace_values import to_float32, write_slot

if TYPE_CHECKING:
    from trtkv.blocks.generation_request import GenerationRequest
    from trtkv.manager.kv_cache_manager import KVCacheManager
    from trtkv.records.llm_request import LlmRequest
    from trtkv.transfers.copy_engine import BlockCopy
    from trtkv.window_block_manager import WindowBlockManager

LARGE_LOOKUPS: Final = "ties_big"
"""Partial look-ups since the last observation with more candidates than the original sorts stably."""

_STATES_WITH_CHUNK: Final = frozenset(
    {
        LlmRequestState.CONTEXT_INIT,
        LlmRequestState.DISAGG_CONTEXT_INIT_AND_TRANS,
        LlmRequestState.DISAGG_GENERATION_INIT,
        LlmRequestState.DISAGG_GENERATION_TRANS_COMPLETE,
    }
)


def observe(
    state: MachineState, request_ids: Iterable[RequestId] = (), has_short_entries: bool = False
) -> dict[str, JsonValue]:
    """Free blocks, counters, the named requests, and the transfers and ties since the last observation.

    Takes transfers and ties out of the state; changes nothing else.
    """
    result: dict[str, JsonValue] = {}
    manager = state.selected_manager
    if manager is not None:
        result["free"] = observe_free_blocks(manager)
        result["stats"] = observe_stats(manager)
    observe_entry = observe_short if has_short_entries else _observe_request
    entries = [observe_entry(state, request_id) for request_id in sorted(set(request_ids))]
    if entries:
        result["req"] = entries
    copies = state.take_copies()
    if copies:
        result["xfer"] = [_observe_copy(copy) for copy in copies]
    num_ties, num_large_lookups = state.take_ties()
    if num_ties:
        result["ties"] = num_ties
    if num_large_lookups:
        result[LARGE_LOOKUPS] = num_large_lookups
    return result


def observe_free_blocks(manager: KVCacheManager) -> dict[str, JsonValue]:
    """Free primary and secondary blocks of each window, and free placeholders of the recurrent one."""
    result: dict[str, JsonValue] = {}
    for window, window_manager in manager.block_manager.window_block_managers.items():
        get_num_free_blocks = window_manager.eviction_policy.get_num_free_blocks
        counts = [get_num_free_blocks(PRIMARY_LEVEL), get_num_free_blocks(SECONDARY_LEVEL)]
        if has_recurrent_states_cache(window):
            counts.append(get_num_free_blocks(PLACEHOLDER_LEVEL))
        result[str(window)] = counts
    return result


def observe_stats(manager: KVCacheManager) -> list[JsonValue]:
    """The manager's totals in the order of the format."""
    stats = manager.get_kv_cache_stats()
    return [
        stats.max_num_blocks,
        stats.free_num_blocks,
        stats.used_num_blocks,
        stats.alloc_total_blocks,
        stats.alloc_new_blocks,
        stats.reused_blocks,
        stats.missed_blocks,
        to_float32(stats.cache_hit_rate),
    ]


def _observe_request(state: MachineState, request_id: RequestId) -> dict[str, JsonValue]:
    entry: dict[str, JsonValue] = {"id": request_id}
    request = state.requests.get(request_id)
    if request is not None:
        _add_progress(entry, request)
        entry["stats"] = [
            request.alloc_total_blocks_per_request,
            request.alloc_new_blocks_per_request,
            request.reused_blocks_per_request,
            request.missed_blocks_per_request,
        ]
    manager = state.selected_manager
    sequence = None if manager is None else manager.sequences.get(request_id)
    if manager is not None and sequence is not None:
        _add_sequence(entry, manager, sequence)
    return entry


def observe_short(state: MachineState, request_id: RequestId) -> dict[str, JsonValue]:
    """The progress of a request. Changes nothing."""
    entry: dict[str, JsonValue] = {"id": request_id}
    request = state.requests.get(request_id)
    if request is not None:
        _add_progress(entry, request)
        entry["draft"] = request.num_draft_tokens
    return entry


def _add_progress(entry: dict[str, JsonValue], request: LlmRequest) -> None:
    entry["n"] = request.get_num_tokens()
    entry["prepop"] = request.prepopulated_prompt_len
    entry["est"] = request.estimated_reusable_tokens
    entry["pos"] = request.context_current_position
    if request.state in _STATES_WITH_CHUNK:
        entry["chunk"] = request.context_chunk_size


def _add_sequence(entry: dict[str, JsonValue], manager: KVCacheManager, sequence: GenerationRequest) -> None:
    blocks: dict[str, JsonValue] = {}
    slots: dict[str, JsonValue] = {}
    front: dict[str, JsonValue] = {}
    for window, window_manager in manager.block_manager.window_block_managers.items():
        name = str(window)
        ids_per_beam = sequence.get_cache_block_ids(window)
        blocks[name] = [list(ids) for ids in ids_per_beam]
        slots[name] = [[_get_slot(window_manager, block_id) for block_id in ids] for ids in ids_per_beam]
        front[name] = sequence.get_num_front_blocks_removed(window)
    entry["tokens"] = sequence.num_tokens
    entry["blocks"] = blocks
    entry["slots"] = slots
    entry["front"] = front


def _get_slot(window_manager: WindowBlockManager, block_id: BlockId) -> int | None:
    if block_id < 0:  # placeholders have no memory
        return None
    return write_slot(window_manager.get_block_by_id(block_id).memory_pool_block_index)


def _observe_copy(copy: BlockCopy) -> list[JsonValue]:
    return [
        copy.kind,
        copy.window_size,
        write_slot(copy.src_index),
        write_slot(copy.dst_index),
        copy.src_block_id,
        copy.dst_block_id,
        copy.num_tokens,
        copy.mode.value,
    ]
