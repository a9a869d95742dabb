"""Debug state: queues, blocks and tree of a manager, the surest way to find a first difference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trtkv.common import PLACEHOLDER_LEVEL
from trtkv.verify.clock import NS_PER_MS
from trtkv.verify.json_kinds import JsonValue
from trtkv.verify.trace_values import write_hash, write_packed_key, write_slot

if TYPE_CHECKING:
    from trtkv.blocks.kv_cache_block import KVCacheBlock, LookupNodePtr
    from trtkv.manager.kv_cache_manager import KVCacheManager
    from trtkv.window_block_manager import WindowBlockManager

NO_BLOCK_ID: Final = -2
_RECORDED_PLACEHOLDER_LEVEL: Final = 2


def describe_internals(manager: KVCacheManager) -> dict[str, JsonValue]:
    """Queues, pending expiries and blocks of each window, and the tree. Changes nothing."""
    result: dict[str, JsonValue] = {}
    for window, window_manager in manager.block_manager.window_block_managers.items():
        num_blocks = window_manager.settings.max_num_blocks
        result[str(window)] = {
            "queues": describe_queues(window_manager),
            "expiring": [
                [block_id, expiry_ns // NS_PER_MS] for block_id, expiry_ns in window_manager.eviction_policy.expiring()
            ],
            "blocks": [_describe_block(window_manager.get_block_by_id(block_id)) for block_id in range(num_blocks)],
        }
    root = manager.block_manager.lookup_tree.root
    channels = {
        window: window_manager.settings.channel
        for window, window_manager in manager.block_manager.window_block_managers.items()
    }
    result["tree"] = [_describe_node(node, channels) for node in root.ordered_children()]
    return result


def describe_queues(window_manager: WindowBlockManager) -> list[JsonValue]:
    """The free queues that are not empty: level, priority and block ids from front to back."""
    queues = window_manager.eviction_policy.free_queues()
    return [
        [_RECORDED_PLACEHOLDER_LEVEL if level == PLACEHOLDER_LEVEL else level, priority, list(ids)]
        for level, priority, ids in queues
    ]


def _describe_block(block: KVCacheBlock) -> list[JsonValue]:
    from trtkv.keys.packed_key import num_key_tokens

    return [
        block.ref_count,
        write_slot(block.memory_pool_block_index),
        block.priority,
        int(block.is_full),
        int(block.lookup_node is not None),
        _get_id(block.prev_block),
        num_key_tokens(block.block_key),
        write_hash(block.hash),
        _get_id(block.prev_block_in_seq),
    ]


def _get_id(block: KVCacheBlock | None) -> int:
    return NO_BLOCK_ID if block is None else block.block_id


def _describe_node(node: LookupNodePtr, channels: dict[int, int]) -> dict[str, JsonValue]:
    result = write_packed_key(node.key)
    values = {window: node.get_value(channel) for window, channel in channels.items()}
    result["v"] = {str(window): block.block_id for window, block in values.items() if block is not None}
    children = [_describe_node(child, channels) for child in node.ordered_children()]
    if children:
        result["ch"] = children
    return result
