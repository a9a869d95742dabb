"""Putting a sequence's blocks into the tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trtkv.block_key import HashLink, PackedKey, build_block_keys, num_key_tokens
from trtkv.common import PLACEHOLDER_BLOCK_ID, BlockId
from trtkv.eviction_policy import LRUEvictionPolicy
from trtkv.generation_request import GenerationRequest, SequenceWindow
from trtkv.kv_cache_block import KVCacheBlock
from trtkv.kv_cache_event_manager import KVCacheEventManager
from trtkv.llm_request import LlmRequest
from trtkv.radix_block_tree import LookupNodePtr
from trtkv.window_block_manager.reuse_matching import ReuseMatcher
from trtkv.window_block_manager.sequences import SequenceBlocks
from trtkv.window_block_manager.settings import WindowSettings


def usable_tokens(request: LlmRequest) -> int:
    """Tokens of beam 0 whose state is in the cache: all but the newest, or as far as the prompt is computed.

    At position 0 the prompt counts as computed. C++: getUsableUniqueTokenCountForReuse.
    """
    num_tokens = request.get_num_tokens(0)
    position = request.context_current_position
    if position and request.context_remaining_length > 0:
        num_tokens = min(num_tokens, position)
    return max(num_tokens - 1, 0)


class BlockStorer:
    """Stores blocks of one window for reuse. C++: storeBlocks and its callers."""

    def __init__(
        self,
        settings: WindowSettings,
        matcher: ReuseMatcher,
        policy: LRUEvictionPolicy,
        sequences: SequenceBlocks,
        event_manager: KVCacheEventManager | None,
        get_block_by_id: Callable[[BlockId], KVCacheBlock],
    ) -> None:
        self._settings = settings
        self._matcher = matcher
        self._policy = policy
        self._sequences = sequences
        self._event_manager = event_manager
        self._get_block_by_id = get_block_by_id

    def store_blocks(
        self, keys: Sequence[PackedKey], blocks: Sequence[KVCacheBlock], pin_blocks: bool = False
    ) -> list[BlockId]:
        """Store a chain of blocks under a chain of keys, from the root; the shorter list decides.

        A taken slot is left alone and its block becomes the parent of the rest. A free slot takes the
        sequence's block, from wherever it was. Out-of-window positions are passed. Returns the ids pinned.
        C++: WindowBlockManager::storeBlocks.
        """
        if not keys or not blocks:
            return []
        channel, tokens_per_block = self._settings.channel, self._settings.tokens_per_block
        count = min(len(keys), len(blocks))
        nodes = self._matcher.tree.insert_nodes(keys[:count] if count < len(keys) else keys)
        prev: KVCacheBlock = self._matcher.root_block
        stored: list[KVCacheBlock] = []
        pinned: list[BlockId] = []
        for node, block, key in zip(nodes, blocks, keys, strict=False):
            existing = node.value if channel == 0 else node.get_value(channel)
            if existing is not None:
                prev = existing
            elif block._block_id == PLACEHOLDER_BLOCK_ID:
                prev = self._nearest_ancestor(node)
            else:
                block.attach_to_lookup_node(node)
                block._block_key = key
                block._is_full = num_key_tokens(key) == tokens_per_block
                block._prev_block_in_seq = prev
                link = block._hash
                parent_hash = prev._hash
                if link.__class__ is not HashLink or link.key is not key or link.parent is not parent_hash:  # type: ignore[union-attr]
                    block._hash = HashLink(key, parent_hash)
                stored.append(block)
                prev = block
            if pin_blocks and not block.is_placeholder:
                pinned.append(self._pin(prev))
        if self._event_manager is not None:
            real = [block for block in stored if not block.is_placeholder]
            if real:
                self._event_manager.enqueue_stored_event(real, self._settings.window_size)
        return pinned

    def _nearest_ancestor(self, node: LookupNodePtr) -> KVCacheBlock:
        ancestor = node.parent
        while ancestor is not None:
            block = ancestor.get_value(self._settings.channel)
            if block is not None:
                return block
            ancestor = ancestor.parent
        return self._matcher.root_block

    def _pin(self, block: KVCacheBlock) -> BlockId:
        """Add a reference; a free block leaves its queue and keeps its retention."""
        if not block._ref_count:
            self._policy.claim_block(block, block._priority, block._duration_ms)
        block._ref_count += 1
        return block._block_id

    def store_context_blocks(self, sequence: GenerationRequest, request: LlmRequest) -> None:
        """Store the full blocks computed so far. C++: storeContextBlocks."""
        window = sequence.get_window(self._settings.window_size)
        keys = build_block_keys(request, self._settings.tokens_per_block, usable_tokens(request), False)
        blocks = window.held[:: sequence.beam_width]
        if self._settings.compatibility and self._settings.is_swa:
            blocks = self._visible_blocks(window, len(keys))
        self.store_blocks(keys, blocks)

    def _visible_blocks(self, window: SequenceWindow, limit: int) -> list[KVCacheBlock]:
        """Blocks by the visible ids up to the first placeholder, detached and recycled ones included (a recorded fault)."""
        result = []
        for position, block_id in enumerate(window.block_ids[0][:limit]):
            if block_id == PLACEHOLDER_BLOCK_ID:
                break
            held = window.held[position]
            result.append(held if held._block_id == block_id else self._get_block_by_id(block_id))
        return result

    def store_new_block(self, sequence: GenerationRequest, request: LlmRequest) -> None:
        """Store the newest block if the newest token has just opened the next. C++: storeNewBlock."""
        usable = request.get_num_tokens(0) - 1
        if usable < 0 or usable % self._settings.tokens_per_block:
            return
        keys = build_block_keys(request, self._settings.tokens_per_block, usable, True)
        blocks = self._sequences.get_window(sequence.request_id).held[:: sequence.beam_width]
        if 2 <= len(keys) <= len(blocks):
            last, before = blocks[len(keys) - 1], blocks[len(keys) - 2]
            if (
                not before.is_placeholder
                and before.prev_block is not None
                and not last.is_placeholder
                and last.prev_block is not None
            ):
                return
        self.store_blocks(keys, blocks)

    def store_blocks_for_reuse(
        self, sequence: GenerationRequest, request: LlmRequest, pin_blocks: bool = False
    ) -> list[BlockId]:
        """Store everything computed so far, a partly filled last block included; returns the ids pinned.

        A recurrent window stores snapshots of the prompt only. C++: storeBlocksForReuse.
        """
        usable, allow_partial = usable_tokens(request), True
        if self._settings.is_recurrent_state:
            usable = min(usable, request.prompt_len - 1)
            allow_partial = self._settings.compatibility
        keys = build_block_keys(request, self._settings.tokens_per_block, usable, allow_partial)
        held = self._sequences.get_window(sequence.request_id).held
        return self.store_blocks(keys, held[:: sequence.beam_width], pin_blocks)
