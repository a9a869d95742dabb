"""FakeMemory: pools whose slots remember which token, behind which prefix, was written to each place."""

from __future__ import annotations

from collections.abc import Sequence

from trtkv import KVCacheManager, LlmRequest
from trtkv.common import RECURRENT_STATES, WindowSize
from trtkv.keys.block_key import BlockKey, PackedKey, build_block_keys
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool
from trtkv.transfers.copy_engine import BlockCopy, NullCopyEngine


def describe_block(key: PackedKey, parent_hash: int) -> list[int]:
    """What the places of a block hold when it was written for this key: each token with all before it."""
    block = BlockKey.unpack(key)
    constraints = (parent_hash, block.lora_task_id, block.cache_salt)
    extra_ids = block.extra_ids
    return [
        hash((constraints, block.tokens[: end + 1], None if extra_ids is None else extra_ids[: end + 1]))
        for end in range(block.num_tokens)
    ]


def describe_request(request: LlmRequest, tokens_per_block: int) -> list[int]:
    """What is written for each token of beam 0."""
    values: list[int] = []
    parent_hash = 0
    for key in build_block_keys(request, tokens_per_block, request.get_num_tokens(0), True):
        values += describe_block(key, parent_hash)
        parent_hash = BlockKey.unpack(key).hash(parent_hash)
    return values


class FakeMemory(NullCopyEngine):
    """Executes copies at once, in the order in which they are issued. One beam only."""

    def __init__(self, tokens_per_block: int) -> None:
        self.tokens_per_block = tokens_per_block
        self.slots: dict[tuple[WindowSize, int], dict[int, int]] = {}
        self.num_computed: dict[int, int] = {}

    def copy_block(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        source = self.slots.get((copy.window_size, copy.src_index), {})
        target = self.slots.setdefault((copy.window_size, copy.dst_index), {})
        if copy.num_tokens == 0:
            target.clear()
        target.update({place: v for place, v in source.items() if not copy.num_tokens or place < copy.num_tokens})
        return super().copy_block(copy, pools)

    def write(self, manager: KVCacheManager, request: LlmRequest, first: int, end: int) -> None:
        """Compute tokens [first, end) of a request in every window."""
        self.num_computed[request.request_id] = end
        values = describe_request(request, self.tokens_per_block)
        sequence = manager.get_sequence(request.request_id)
        for window in manager.window_sizes_metadata:
            held = sequence.get_window(window).held
            for position in range(first, end):
                block = held[position // self.tokens_per_block]
                if not block.is_placeholder:
                    slot = self.slots.setdefault((window, block.memory_pool_block_index), {})
                    slot[position % self.tokens_per_block] = values[position]

    def check_sequence(self, manager: KVCacheManager, request: LlmRequest, num_tokens: int) -> None:
        """The first tokens of a sequence are where its blocks are, as far as they are in a window."""
        values = describe_request(request, self.tokens_per_block)
        sequence = manager.get_sequence(request.request_id)
        for window in manager.window_sizes_metadata:
            if window == RECURRENT_STATES:
                continue
            held = sequence.get_window(window).held
            for position in range(max(0, num_tokens + 1 - window), num_tokens):
                block = held[position // self.tokens_per_block]
                where = f"request {request.request_id}, window {window}, token {position}, block {block.block_id}"
                assert not block.is_placeholder, where
                content = self.slots.get((window, block.memory_pool_block_index), {})
                assert content.get(position % self.tokens_per_block) == values[position], where

    def check_tree(self, manager: KVCacheManager) -> None:
        """Every cached block holds what its key, and the keys above it, say."""
        for window, window_manager in manager.block_manager.window_block_managers.items():
            if window == RECURRENT_STATES:
                continue
            for block in window_manager.matcher.list_blocks():
                keys: list[PackedKey] = []
                node = block.lookup_node
                while node is not None and node.parent is not None:
                    keys.append(node.key)
                    node = node.parent
                parent_hash = 0
                for key in reversed(keys[1:]):
                    parent_hash = BlockKey.unpack(key).hash(parent_hash)
                content = self.slots.get((window, block.memory_pool_block_index), {})
                expected = describe_block(keys[0], parent_hash)
                found = [content.get(place) for place in range(len(expected))]
                assert found == expected, f"block {block.block_id} of window {window} is filed under a foreign key"
