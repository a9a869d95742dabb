"""Putting a sequence's blocks into the tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from trtkv.blocks.block_listener import RemovalReason
from trtkv.blocks.generation_request import GenerationRequest, SequenceWindow
from trtkv.blocks.kv_cache_block import KVCacheBlock, LookupNodePtr
from trtkv.common import PLACEHOLDER_BLOCK_ID, BlockId, CacheType
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.keys.key_builder import build_block_keys, build_encoder_keys
from trtkv.keys.key_hash import HashLink, link_hash, resolve_hash
from trtkv.keys.packed_key import PackedKey, num_key_tokens
from trtkv.records.llm_request import LlmRequest, LlmRequestState
from trtkv.window_block_manager.claiming import BlockClaimer
from trtkv.window_block_manager.context import WindowContext, WindowPart
from trtkv.window_block_manager.reuse_matching import ReuseMatcher
from trtkv.window_block_manager.sequences import SequenceBlocks


def usable_tokens(request: LlmRequest) -> int:
    """``num_usable_tokens``; none at position 0 of a context stage, nor before a remote prompt has arrived."""
    if not request.context_current_position and request.state in _NOTHING_COMPUTED:
        return 0
    return num_usable_tokens(request)


def num_usable_tokens(request: LlmRequest) -> int:
    """Tokens of beam 0 whose state is in the cache: all but the newest, or as far as the prompt is computed.

    C++: getUsableUniqueTokenCountForReuse.
    """
    num_tokens = request.get_num_tokens(0)
    position = request.context_current_position
    if position and request.context_remaining_length > 0:
        num_tokens = min(num_tokens, position)
    return max(num_tokens - 1, 0)


def has_started(request: LlmRequest) -> bool:
    """Whether a step of the request has run, so that its encoder states are in the cross cache."""
    return not request.is_first_context_chunk or request.state not in _NOTHING_COMPUTED


_NOTHING_COMPUTED: Final = frozenset(
    {
        LlmRequestState.ENCODER_INIT,
        LlmRequestState.CONTEXT_INIT,
        LlmRequestState.DISAGG_CONTEXT_INIT_AND_TRANS,
        LlmRequestState.DISAGG_GENERATION_INIT,
        LlmRequestState.DISAGG_GENERATION_TRANS_IN_PROGRESS,
    }
)


class StoredBlock(NamedTuple):
    """A block just put into the tree, its node, and the hash that its own is chained to."""

    block: KVCacheBlock
    node: LookupNodePtr
    parent_hash: HashLink | int


class BlockStorer(WindowPart):
    """Stores blocks of one window for reuse. C++: storeBlocks and its callers."""

    def __init__(
        self,
        context: WindowContext,
        matcher: ReuseMatcher,
        claimer: BlockClaimer,
        sequences: SequenceBlocks,
    ) -> None:
        super().__init__(context)
        self._matcher = matcher
        self._claimer = claimer
        self._sequences = sequences

    def store_blocks(
        self,
        keys: Sequence[PackedKey],
        blocks: Sequence[KVCacheBlock],
        pin_blocks: bool = False,
        window: SequenceWindow | None = None,
    ) -> list[BlockId]:
        """Store a chain of blocks under a chain of keys, from the root; the shorter list decides.

        A taken slot is left alone and its block becomes the parent of the rest. A free slot takes the
        sequence's block, from wherever it was. Out-of-window positions are passed. Returns the ids pinned.

        The hash of a block chains the keys of all nodes above it, whether this window has blocks there or not.
        C++: WindowBlockManager::storeBlocks.
        """
        keys = keys[: len(blocks)]
        nodes = self._matcher.tree.insert_nodes(keys)
        prev: KVCacheBlock = self._matcher.root_block
        parent_hash = prev.hash_link
        stored: list[StoredBlock] = []
        pinned: list[BlockId] = []
        for node, block, key in zip(nodes, blocks, keys, strict=False):
            existing = node.get_value(self._settings.channel)
            if existing is not None and not (existing.is_placeholder and self._improves(block)):
                prev = existing
                parent_hash = prev.hash_link
            elif block.block_id == PLACEHOLDER_BLOCK_ID:
                prev = self._nearest_ancestor(node)
                parent_hash = self._hash_past_hole(prev, key, parent_hash)
            else:
                self._move_to_node(block, node, key, prev, parent_hash, existing)
                stored.append(StoredBlock(block, node, parent_hash))
                prev = block
                parent_hash = prev.hash_link
            if pin_blocks and not block.is_placeholder:
                pinned.append(self._pin(prev))
        if self._policy.follows_tree:
            self._policy.stored([entry.block for entry in stored])
        self._prune(nodes)
        if self._event_manager is not None:
            self._report_stored([entry for entry in stored if not entry.block.is_placeholder], self._event_manager)
        return pinned

    def _improves(self, block: KVCacheBlock) -> bool:
        """Whether a block takes the place of a placeholder: a recurrent state does."""
        return not block.is_placeholder

    def _hash_past_hole(self, ancestor: KVCacheBlock, key: PackedKey, parent_hash: HashLink | int) -> HashLink | int:
        """The hash that goes on below a position without a block of this window."""
        return link_hash(key, parent_hash)

    def _prune(self, nodes: Sequence[LookupNodePtr]) -> None:
        """Drop nodes without blocks: every position may have left the window."""
        if nodes:
            nodes[-1].prune()

    def _move_to_node(
        self,
        block: KVCacheBlock,
        node: LookupNodePtr,
        key: PackedKey,
        prev: KVCacheBlock,
        parent_hash: HashLink | int,
        existing: KVCacheBlock | None,
    ) -> None:
        """Make a block the value of a node that is free or has a placeholder, and say so where it stood before."""
        if block.lookup_node is not None:
            self._sequences.num_shared_moves += block.ref_count > 1
            self._claimer.remove_held(block, RemovalReason.MOVED)
        if existing is None:
            block.attach_to_lookup_node(node)
        else:
            block.replace_at_lookup_node(existing)
            self._policy.requeue(existing)
            if self._policy.follows_tree:
                self._policy.removed((existing,))
        block.set_block_key(key, num_key_tokens(key) == self._settings.tokens_per_block)
        block.prev_block_in_seq = prev
        link = link_hash(key, parent_hash)
        block.hash_link = link if self._event_manager is None else resolve_hash(link)

    def _report_stored(self, stored: Sequence[StoredBlock], event_manager: KVCacheEventManager) -> None:
        """One event for each run of blocks that hang below one another, with the hash above the first."""
        window_size = self._settings.window_size
        start = 0
        for end in range(1, len(stored) + 1):
            if end < len(stored) and stored[end].node.parent is stored[end - 1].node:
                continue
            run = stored[start:end]
            is_first = run[0].node.parent is self._matcher.tree.root
            parent_hash = None if is_first else resolve_hash(run[0].parent_hash)
            event_manager.enqueue_stored_event([entry.block for entry in run], window_size, parent_hash)
            start = end

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
        if not block.ref_count:
            self._policy.claim_block(block, block.priority, self._policy.get_duration_ms(block))
        self._sequences.add_pin(block)
        return block.block_id

    def _keys(self, sequence: GenerationRequest, request: LlmRequest, allow_partial: bool) -> list[PackedKey]:
        """Keys under which what is computed of a sequence may be stored.

        A cross cache holds encoder states, so its keys are those of the encoder input; of several beams only the
        prompt is common.
        """
        settings = self._settings
        if settings.cache_type is CacheType.CROSS:
            tokens = request.encoder_tokens
            if tokens is None or not has_started(request):
                return []
            usable = min(len(tokens), sequence.num_tokens)
            return build_encoder_keys(request, tokens, settings.tokens_per_block, usable, allow_partial)
        usable = min(usable_tokens(request), sequence.num_tokens)
        if sequence.beam_width > 1:
            usable = min(usable, request.prompt_len)
        if settings.is_recurrent_state and allow_partial:
            usable = min(usable, request.prompt_len - 1)
            allow_partial = False
        return self._build_keys(request, usable, allow_partial)

    def _build_keys(self, request: LlmRequest, usable: int, allow_partial: bool) -> list[PackedKey]:
        return build_block_keys(
            request, self._settings.tokens_per_block, usable, allow_partial, self._settings.key_form
        )

    def store_context_blocks(self, sequence: GenerationRequest, request: LlmRequest) -> None:
        """Store the full blocks computed so far. C++: storeContextBlocks."""
        window = sequence.get_window(self._settings.window_size)
        keys = self._keys(sequence, request, False)
        if self._settings.is_swa:
            self.store_blocks(keys, self._visible_blocks(window, len(keys)))
        else:
            self.store_blocks(keys, self._sequences.storable_blocks(sequence, request), window=window)

    def _visible_blocks(self, window: SequenceWindow, limit: int) -> list[KVCacheBlock]:
        """Blocks of beam 0 up to the first position that was passed without a block at admission.

        What lies behind it is stored when the sequence is removed.
        """
        result = []
        beam_width = len(window.block_ids)
        for position, block_id in enumerate(window.block_ids[0][:limit]):
            if block_id == PLACEHOLDER_BLOCK_ID:
                break
            result.append(self._block_at(window.held[position * beam_width], block_id))
        return result

    def _block_at(self, held: KVCacheBlock, block_id: BlockId) -> KVCacheBlock:
        """The block of a position: what the sequence holds there."""
        return held

    def _may_store_new_block(self, sequence: GenerationRequest, request: LlmRequest, usable: int) -> bool:
        """Whether this many tokens are computed, and are what the cache holds."""
        is_computed = usable <= min(usable_tokens(request), sequence.num_tokens)
        return is_computed and self._settings.cache_type is not CacheType.CROSS

    def store_new_block(self, sequence: GenerationRequest, request: LlmRequest) -> None:
        """Store the newest block if the newest token has just opened the next. C++: storeNewBlock.

        Nothing while the prompt is not computed.
        """
        usable = request.get_num_tokens(0) - 1
        if usable < 0 or usable % self._settings.tokens_per_block:
            return
        if not self._may_store_new_block(sequence, request, usable):
            return
        keys = self._build_keys(request, usable, True)
        blocks = self._sequences.storable_blocks(sequence, request)
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
        keys = self._keys(sequence, request, True)
        window = self._sequences.get_window(sequence.request_id)
        blocks = self._sequences.storable_blocks(sequence, request)
        return self.store_blocks(keys, blocks, pin_blocks, window)
