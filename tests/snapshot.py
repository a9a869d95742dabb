"""Everything a failed call must not have changed, as plain values that can be compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trtkv.blocks.kv_cache_block import LookupNodePtr
from trtkv.common import PLACEHOLDER_LEVEL, PRIMARY_LEVEL, SECONDARY_LEVEL, KeyForm
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest
from trtkv.window_block_manager import WindowBlockManager

Snapshot = dict[str, Any]

_REQUEST_FIELDS = (
    "state",
    "_context_current_position",
    "_context_chunk_size",
    "_prepopulated_prompt_len",
    "_estimated_reusable_tokens",
    "_num_draft_tokens",
    "_prompt_len",
    "max_new_tokens",
    "alloc_total_blocks_per_request",
    "alloc_new_blocks_per_request",
    "reused_blocks_per_request",
    "missed_blocks_per_request",
)


def take_snapshot(
    manager: KVCacheManager, requests: Iterable[LlmRequest] = (), events: KVCacheEventManager | None = None
) -> Snapshot:
    """Queues, references, keys, tree, sequences, counters, events and request fields."""
    windows = manager.block_manager.window_block_managers
    return {
        "windows": {size: describe_window(window) for size, window in windows.items()},
        "tree": describe_node(manager.block_manager.lookup_tree.root),
        "sequences": {
            request_id: (sequence.num_tokens, sequence.beam_width, sequence.current_prepopulated_prompt_len)
            for request_id, sequence in manager.sequences.items()
        },
        "requests": {
            request.request_id: [getattr(request, name) for name in _REQUEST_FIELDS]
            + [tokens.tolist() for tokens in request._tokens]
            for request in requests
        },
        "events": None if events is None else describe_events(events),
    }


def describe_window(window: WindowBlockManager) -> Snapshot:
    """One window of a snapshot. Blocks never used are left out, as they may be made by looking at them."""
    policy = window.eviction_policy
    records = window.sequences.allocated_blocks_per_seq
    has_hashes = window.settings.key_form is not KeyForm.DIGESTS
    return {
        "queues": policy.free_queues(),
        "free": [policy.get_num_free_blocks(level) for level in (PRIMARY_LEVEL, SECONDARY_LEVEL, PLACEHOLDER_LEVEL)],
        "expiring": policy.expiring(),
        "blocks": {
            block.block_id: (
                block.ref_count,
                block.memory_pool_block_index,
                block.priority,
                policy.get_duration_ms(block),
                block.block_key,
                block.is_full,
                block.hash if has_hashes else None,
                None if block.lookup_node is None else block.lookup_node.key,
                None if block.prev_block_in_seq is None else block.prev_block_in_seq.block_id,
            )
            for block in window.block_objects()
            if not any(block.block_id in level.fresh.remaining_ids() for level in policy.levels())
        },
        "pins": {block.block_id: count for block, count in window.sequences.pin_counts.items()},
        "records": {
            request_id: (
                [block.block_id for block in record.held],
                [list(ids) for ids in record.block_ids],
                [slots.tolist() for slots in record.slots],
                record.num_front_blocks_removed,
            )
            for request_id, record in records.items()
        },
        "counters": window.counters.snapshot(),
        "simulated": window.releaser.scheduling_num_free_blocks,
    }


def describe_node(node: LookupNodePtr) -> Any:
    """A subtree: keys, values by channel, children in order."""
    values = {channel: block.block_id for channel, block in node.values().items()}
    return (node.key, values, [describe_node(child) for child in node.ordered_children()])


def describe_events(events: KVCacheEventManager) -> Any:
    """Events not read yet, handed over or not."""
    removed = {window: list(hashes) for window, hashes in events._latest_removed_events.items()}
    return (list(events._event_queue), list(events._events), removed, events.num_dropped_events)


def find_changes(before: Any, after: Any, path: str = "") -> list[str]:
    """Places where two snapshots differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            change
            for key in {**before, **after}
            for change in find_changes(before.get(key), after.get(key), f"{path}/{key}")
        ]
    return [] if before == after else [f"{path}: {before} -> {after}"]
