"""The tree of a manager as its nodes say it, in the words of a listener: the truth that consumers are compared with."""

from __future__ import annotations

from trtkv import KVCacheManager
from trtkv.blocks.kv_cache_block import LookupNodePtr
from trtkv.events.kv_cache_event_consumer import CachedBlock
from trtkv.keys.block_key import BlockKey


def read_trees(manager: KVCacheManager) -> dict[int, dict[int, CachedBlock]]:
    """Cached blocks by window and hash of the path of keys; checks on the way what the tree promises."""
    channels = {w: m.settings.channel for w, m in manager.block_manager.window_block_managers.items()}
    found: dict[int, dict[int, CachedBlock]] = {window: {} for window in channels}
    root = manager.block_manager.lookup_tree.root
    pending: list[tuple[LookupNodePtr, int]] = [(node, 0) for node in root.ordered_children()]
    while pending:
        node, parent_hash = pending.pop()
        assert node.has_values or node.has_children, "a node without values and children"
        node_hash = BlockKey.unpack(node.key).hash(parent_hash)
        for window, channel in channels.items():
            block = node.get_value(channel)
            if block is None:
                continue
            assert block.lookup_node is node
            assert block.block_key == node.key
            assert block.hash == node_hash, f"block {block.block_id} of window {window} has a stale hash"
            if block.is_placeholder:
                continue
            assert node_hash not in found[window], "two blocks of one window with one hash"
            level = 0 if block.is_primary else 1
            found[window][node_hash] = CachedBlock(parent_hash or None, node.key, level, block.priority)
        pending.extend((child, node_hash) for child in node.ordered_children())
    return found
