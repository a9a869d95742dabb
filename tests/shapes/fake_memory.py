"""Pools without bytes: a copy engine over dictionaries, and checks of what the slots hold.

A position of an attention window holds the digest of all tokens up to it; a recurrent state is the digest of all
tokens it has seen. So a block shows when it ends up behind the wrong prefix, or is overwritten while in use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtkv import KVCacheManager
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import RECURRENT_STATES, WindowSize
from trtkv.keys.block_key import BlockKey, PackedKey
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool
from trtkv.records.kv_cache_index import KVCacheIndex
from trtkv.transfers.copy_engine import BlockCopy

Slot = tuple[WindowSize, KVCacheIndex]


def digests(tokens: Sequence[int]) -> list[int]:
    """Entry n is the digest of the first n tokens."""
    result = [17]
    for token in tokens:
        result.append(hash((result[-1], token)))
    return result


class FakeMemory:
    """What every slot of every window holds; moves it when the manager asks."""

    def __init__(self) -> None:
        self.tokens: dict[Slot, dict[int, int]] = {}
        """Attention windows: offset inside the block -> digest."""
        self.states: dict[KVCacheIndex, int] = {}
        """Recurrent window: the digest."""
        self.copies: list[BlockCopy] = []

    def copy_block(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        self.copies.append(copy)
        if copy.window_size == RECURRENT_STATES:
            assert copy.num_tokens in (0, pools[0].tokens_per_block)
            self.states[copy.dst_index] = self.states.get(copy.src_index, 0)
            return 1
        source = self.tokens.get((copy.window_size, copy.src_index), {})
        limit = copy.num_tokens or pools[0].tokens_per_block
        target = self.tokens.setdefault((copy.window_size, copy.dst_index), {})
        for offset in range(limit):
            target[offset] = source.get(offset, 0)
        return limit

    def sync_with_buffer_manager(self) -> None:
        """Copies are done at once."""

    def sync_transfers(self) -> None:
        """Copies are done at once."""


def cached_blocks(manager: KVCacheManager, window: WindowSize) -> Iterator[tuple[list[int], PackedKey, KVCacheBlock]]:
    """(all tokens up to the end of the block, its key, the block) for all blocks in the tree of one window."""
    channel = manager.block_manager.window_block_managers[window].settings.channel
    stack = [([], node) for node in manager.block_manager.lookup_tree.root.ordered_children()]
    while stack:
        before, node = stack.pop()
        tokens = [*before, *BlockKey.unpack(node.key).tokens]
        stack.extend((tokens, child) for child in node.ordered_children())
        block = node.get_value(channel)
        if block is not None:
            yield tokens, node.key, block


def check_cached_blocks(manager: KVCacheManager, memory: FakeMemory) -> int:
    """Every cached block holds what its place in the tree promises; returns how many were looked at."""
    count = 0
    for window in manager.block_manager.window_block_managers:
        for tokens, key, block in cached_blocks(manager, window):
            if block.is_placeholder:
                continue
            count += 1
            expected = digests(tokens)
            where = f"window {window}, block {block.block_id}, cached for {tokens}"
            if window == RECURRENT_STATES:
                assert memory.states.get(block.memory_pool_block_index) == expected[-1], where
                continue
            content = memory.tokens.get((window, block.memory_pool_block_index), {})
            num_tokens = len(BlockKey.unpack(key).tokens)
            first = len(tokens) - num_tokens
            found = [content.get(offset) for offset in range(num_tokens)]
            assert found == expected[first + 1 :], where
    return count


def check_free_counts(manager: KVCacheManager) -> None:
    """Free + held = all in every window, and reference counts are those of the holders."""
    for window, blocks in manager.block_manager.window_block_managers.items():
        holders: dict[KVCacheBlock, int] = {}
        for sequence in manager.sequences.values():
            for block in sequence.get_window(window).held:
                holders[block] = holders.get(block, 0) + 1
        for block in blocks.block_objects():
            assert block.ref_count == holders.get(block, 0), f"window {window}, block {block.block_id}"
        held = [block for block in holders if not block.is_placeholder]
        assert all(block.is_primary for block in held)
        assert blocks.num_free_blocks == blocks.num_primary_blocks - len(held)
        assert blocks.num_free_secondary_blocks == blocks.num_secondary_blocks
        assert manager.verify_queue_integrity(window)
