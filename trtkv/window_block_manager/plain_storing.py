"""PlainBlockStorer: storing in the only window of a cache, with full attention; the hot loops of a replay."""

from __future__ import annotations

from collections.abc import Sequence

from trtkv.blocks.block_listener import RemovalReason
from trtkv.blocks.generation_request import SequenceWindow
from trtkv.blocks.kv_cache_block import KVCacheBlock, LookupNodePtr
from trtkv.blocks.templated_trie import ChildMap
from trtkv.common import BlockId
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.keys.key_hash import hash_key_chain, link_hash
from trtkv.keys.packed_key import PackedKey, num_key_tokens
from trtkv.window_block_manager.storing import BlockStorer


class PlainBlockStorer(BlockStorer):
    """A ``BlockStorer`` for managers without a listener of single blocks, where the order of children does not count.

    No position lacks a block, and once a node is missing all later ones are new, so they are chained without looking.
    """

    def store_blocks(
        self,
        keys: Sequence[PackedKey],
        blocks: Sequence[KVCacheBlock],
        pin_blocks: bool = False,
        window: SequenceWindow | None = None,
    ) -> list[BlockId]:
        """As in ``BlockStorer``; pins are left to it, and so are free nodes of the tree where events are reported."""
        if pin_blocks:
            return super().store_blocks(keys, blocks, pin_blocks, window)
        if len(keys) > len(blocks):
            keys = keys[: len(blocks)]
        node: LookupNodePtr = self._matcher.tree.root
        prev = self._matcher.root_block
        index = 0 if window is None else self._num_in_place(keys, blocks, window)
        if index:
            prev = blocks[index - 1]
            node = prev.lookup_node  # type: ignore[assignment]  # in place, so in the tree
        filled: list[KVCacheBlock] = []  # blocks that became the values of nodes without one
        owns_all = True
        for key, block in zip(keys[index:], blocks[index:], strict=False):
            children = node.children
            if children.__class__ is ChildMap:
                child = children.get(key)
            else:
                child = children if children is not None and children.key == key else None
            if child is None:
                break
            node = child
            index += 1
            existing = node if isinstance(node, KVCacheBlock) else node.get_value(0)
            if existing is None:
                if self._event_manager is not None:
                    return super().store_blocks(keys, blocks, pin_blocks, window)
                self._attach(block, node, key, prev)
                filled.append(block)
                existing = block
            elif existing is not block:
                owns_all = False
            prev = existing
        if filled and self._policy.follows_tree:
            self._policy.stored(filled)
        if index < len(keys):
            self._append(node, prev, keys[index:], blocks[index : len(keys)])
        if window is not None and owns_all and keys:
            self._remember(keys, blocks, window)
        return []

    def _num_in_place(self, keys: Sequence[PackedKey], blocks: Sequence[KVCacheBlock], window: SequenceWindow) -> int:
        """Leading blocks that are still where the sequence stored them.

        All are if the last of them is and no sequence that shares one of them has stored it elsewhere since.
        """
        num_stored = window.num_stored
        if not 0 < num_stored <= len(keys) or window.num_shared_moves != self._sequences.num_shared_moves:
            return 0
        node = blocks[num_stored - 1].lookup_node
        is_same_key = keys[num_stored - 1] is window.last_stored_key
        return num_stored if node is not None and is_same_key and node.key is window.last_node_key else 0

    def _append(
        self, node: LookupNodePtr, above: KVCacheBlock, keys: Sequence[PackedKey], blocks: Sequence[KVCacheBlock]
    ) -> None:
        """Chain new nodes below a node, that of the block ``above``."""
        prev = above
        for key, block in zip(keys, blocks, strict=True):
            if block.lookup_node is not None:
                self._sequences.num_shared_moves += block.ref_count > 1
                self._claimer.remove_from_tree(block, RemovalReason.MOVED)
            self._set_key_and_hash(block, key, prev)
            block.become_node()
            if node.children is None:
                block.parent = node
                node.children = block
            else:
                node.link_node(block)
            node = prev = block
        if self._policy.follows_tree:
            self._policy.stored(blocks)
        if self._event_manager is not None:
            self._report_chain(blocks, keys, above, self._event_manager)

    def _remember(self, keys: Sequence[PackedKey], blocks: Sequence[KVCacheBlock], window: SequenceWindow) -> None:
        """Note that the full blocks of a sequence are where its keys lead to."""
        num_full = len(keys) - (num_key_tokens(keys[-1]) != self._settings.tokens_per_block)
        window.num_stored = num_full
        window.num_shared_moves = self._sequences.num_shared_moves
        if num_full:
            window.last_stored_key = keys[num_full - 1]
            # Stored just now, so it is in the tree.
            window.last_node_key = blocks[num_full - 1].lookup_node.key  # type: ignore[union-attr]

    def _report_chain(
        self,
        blocks: Sequence[KVCacheBlock],
        keys: Sequence[PackedKey],
        above: KVCacheBlock,
        event_manager: KVCacheEventManager,
    ) -> None:
        """Hash and report blocks that hang below one another, the first below ``above``."""
        parent_hash = above.hash
        for block, value in zip(blocks, hash_key_chain(keys, parent_hash), strict=True):
            block.hash_link = value
        is_first = above is self._matcher.root_block
        event_manager.enqueue_stored_event(blocks, self._settings.window_size, None if is_first else parent_hash)

    def _attach(self, block: KVCacheBlock, node: LookupNodePtr, key: PackedKey, prev: KVCacheBlock) -> None:
        """Make a block the value of a free node; what admission has already set stays."""
        self._sequences.num_shared_moves += block.ref_count > 1 and block.lookup_node is not None
        block.attach_to_lookup_node(node)
        self._set_key_and_hash(block, key, prev)

    def _set_key_and_hash(self, block: KVCacheBlock, key: PackedKey, prev: KVCacheBlock) -> None:
        if block.key is not key:
            block.key = key
            block.is_full = num_key_tokens(key) == self._settings.tokens_per_block
        block.prev_block_in_seq = prev
        link = block.hash_link
        parent = prev.hash_link
        if isinstance(link, int) or link[0] is not key or link[1] is not parent:
            block.hash_link = link_hash(key, parent)
