"""Putting a sequence's blocks into the tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from trtkv.blocks.block_listener import BlockListener, RemovalReason
from trtkv.blocks.generation_request import GenerationRequest, SequenceWindow
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.blocks.radix_block_tree import HashMapOrderedNode, LookupNodePtr
from trtkv.blocks.templated_trie import ChildMap
from trtkv.common import PLACEHOLDER_BLOCK_ID, BlockId, CacheType
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.eviction.eviction_policy import WindowEvictionPolicy
from trtkv.keys.key_builder import build_block_keys, build_encoder_keys
from trtkv.keys.key_hash import HashLink, hash_key_chain, link_hash, resolve_hash
from trtkv.keys.packed_key import PackedKey, num_key_tokens
from trtkv.records.llm_request import LlmRequest, LlmRequestState
from trtkv.window_block_manager.claiming import BlockClaimer
from trtkv.window_block_manager.recurrent import RecurrentStates
from trtkv.window_block_manager.reuse_matching import ReuseMatcher
from trtkv.window_block_manager.sequences import SequenceBlocks
from trtkv.window_block_manager.settings import WindowSettings


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


class BlockStorer:
    """Stores blocks of one window for reuse. C++: storeBlocks and its callers."""

    improves_placeholders = True
    """Whether a recurrent state takes the place of a placeholder in the tree."""
    reports_chains = True
    """Whether a stored chain is one event of its own, so that it can be stored in one go."""

    def __init__(
        self,
        settings: WindowSettings,
        matcher: ReuseMatcher,
        claimer: BlockClaimer,
        policy: WindowEvictionPolicy,
        sequences: SequenceBlocks,
        event_manager: KVCacheEventManager | None,
        get_block_by_id: Callable[[BlockId], KVCacheBlock],
        has_one_channel: bool,
        recurrent: RecurrentStates | None = None,
        listener: BlockListener | None = None,
    ) -> None:
        self._settings = settings
        self._matcher = matcher
        self._claimer = claimer
        self._policy = policy
        self._sequences = sequences
        self._event_manager = event_manager
        self._get_block_by_id = get_block_by_id
        self._recurrent = recurrent
        self._improves_placeholders = recurrent is not None and self.improves_placeholders
        self._is_plain = (
            (event_manager is None or self.reports_chains)
            and listener is None
            and settings.channel == 0
            and not (settings.is_swa or settings.is_recurrent_state)
            and has_one_channel
        )
        self._hash_map_order = matcher.tree.hash_map_order

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
        count = min(len(keys), len(blocks))
        if len(keys) > count:
            keys = keys[:count]
        if not pin_blocks and self._is_plain and self._store_plain(keys, blocks, window):
            return []
        nodes = self._matcher.tree.insert_nodes(keys)
        prev: KVCacheBlock = self._matcher.root_block
        parent_hash = prev._hash
        stored: list[StoredBlock] = []
        pinned: list[BlockId] = []
        for node, block, key in zip(nodes, blocks, keys, strict=False):
            existing = node.get_value(self._settings.channel)
            if existing is not None and not (self._improves_placeholders and _is_better(block, existing)):
                prev = existing
                parent_hash = prev._hash
            elif block._block_id == PLACEHOLDER_BLOCK_ID:
                prev = self._nearest_ancestor(node)
                parent_hash = self._hash_past_hole(prev, key, parent_hash)
            else:
                self._move_to_node(block, node, key, prev, parent_hash, existing)
                stored.append(StoredBlock(block, node, parent_hash))
                prev = block
                parent_hash = prev._hash
            if pin_blocks and not block.is_placeholder:
                pinned.append(self._pin(prev))
        if self._policy.follows_tree:
            self._policy.stored([entry.block for entry in stored])
        self._prune(nodes)
        if self._event_manager is not None:
            self._report_stored([entry for entry in stored if not entry.block.is_placeholder], self._event_manager)
        return pinned

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
        if block._lookup_node is not None:
            self._sequences.num_shared_moves += block._ref_count > 1
            self._claimer.remove_held(block, RemovalReason.MOVED)
        if existing is None:
            block.attach_to_lookup_node(node)
        else:
            block.replace_at_lookup_node(existing)
            if self._policy.follows_tree:
                self._policy.removed((existing,))
        block.set_block_key(key, num_key_tokens(key) == self._settings.tokens_per_block)
        block._prev_block_in_seq = prev
        link = link_hash(key, parent_hash)
        block._hash = link if self._event_manager is None else resolve_hash(link)

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

    def _store_plain(
        self, keys: Sequence[PackedKey], blocks: Sequence[KVCacheBlock], window: SequenceWindow | None
    ) -> bool:
        """``store_blocks`` without pins and placeholders: the hot loop of a replay.

        Once a node is missing all later ones are new, so they are chained without looking. Leading blocks that
        the sequence stored before are still where they were if the last of them is and no sequence that shares
        one of them has stored it elsewhere since. Where hash-map order counts, blocks that would move are left to the
        plain code, which makes all nodes first, and so are free nodes there and where events are reported: then the
        answer is False and nothing was changed.
        """
        node: LookupNodePtr = self._matcher.tree.root
        prev = self._matcher.root_block
        index = 0
        owns_all = True
        filled: list[KVCacheBlock] = []  # blocks that became the values of nodes without one
        if (
            window is not None
            and 0 < window.num_stored <= len(keys)
            and window.num_shared_moves == self._sequences.num_shared_moves
        ):
            last = blocks[window.num_stored - 1]
            last_node = last._lookup_node
            is_same_key = keys[window.num_stored - 1] is window.last_stored_key
            if last_node is not None and is_same_key and last_node.key is window.last_node_key:
                node, prev, index = last_node, last, window.num_stored
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
                if self._hash_map_order or self._event_manager is not None:
                    return False
                self._attach(block, node, key, prev)
                filled.append(block)
                existing = block
            elif existing is not block:
                owns_all = False
            prev = existing
        if filled and self._policy.follows_tree:
            self._policy.stored(filled)
        new_blocks, above = blocks[index : len(keys)], prev
        if self._hash_map_order and any(block._lookup_node is not None for block in new_blocks):
            return False
        for key, block in zip(keys[index:], new_blocks, strict=True):
            if block._lookup_node is not None:
                self._sequences.num_shared_moves += block._ref_count > 1
                self._claimer.remove_from_tree(block, RemovalReason.MOVED)
            self._set_key_and_hash(block, key, prev)
            block.become_node()
            if node.children is None and node.__class__ is not HashMapOrderedNode:
                block.parent = node
                node.children = block
            else:
                node.link_node(block)
            node = prev = block
        if self._policy.follows_tree:
            self._policy.stored(new_blocks)
        if self._event_manager is not None and new_blocks:
            self._report_chain(new_blocks, keys[index:], above, self._event_manager)
        if window is not None and owns_all and keys:
            num_full = len(keys) - (num_key_tokens(keys[-1]) != self._settings.tokens_per_block)
            window.num_stored = num_full
            window.num_shared_moves = self._sequences.num_shared_moves
            if num_full:
                window.last_stored_key = keys[num_full - 1]
                # Stored just now, so it is in the tree.
                window.last_node_key = blocks[num_full - 1]._lookup_node.key  # type: ignore[union-attr]
        return True

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
            block._hash = value
        is_first = above is self._matcher.root_block
        event_manager.enqueue_stored_event(blocks, self._settings.window_size, None if is_first else parent_hash)

    def _attach(self, block: KVCacheBlock, node: LookupNodePtr, key: PackedKey, prev: KVCacheBlock) -> None:
        """Make a block the value of a free node; what admission has already set stays."""
        self._sequences.num_shared_moves += block._ref_count > 1 and block._lookup_node is not None
        block.attach_to_lookup_node(node)
        self._set_key_and_hash(block, key, prev)

    def _set_key_and_hash(self, block: KVCacheBlock, key: PackedKey, prev: KVCacheBlock) -> None:
        if block.key is not key:
            block.key = key
            block._is_full = num_key_tokens(key) == self._settings.tokens_per_block
        block._prev_block_in_seq = prev
        link = block._hash
        parent = prev._hash
        if isinstance(link, int) or link[0] is not key or link[1] is not parent:
            block._hash = link_hash(key, parent)

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
            self._policy.claim_block(block, block._priority, self._policy.get_duration_ms(block))
        self._sequences.add_pin(block)
        return block._block_id

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
        return build_block_keys(request, settings.tokens_per_block, usable, allow_partial, settings.key_form)

    def store_context_blocks(self, sequence: GenerationRequest, request: LlmRequest) -> None:
        """Store the full blocks computed so far. C++: storeContextBlocks."""
        window = sequence.get_window(self._settings.window_size)
        keys = self._keys(sequence, request, False)
        if self._settings.is_swa:
            self.store_blocks(keys, self._visible_blocks(window, len(keys)))
        else:
            self.store_blocks(keys, self._blocks_of_beam_0(sequence, request, window), window=window)

    def _blocks_of_beam_0(
        self, sequence: GenerationRequest, request: LlmRequest, window: SequenceWindow
    ) -> Sequence[KVCacheBlock]:
        """Blocks by position, to be read only; a stand-in where there is none, or one without a state."""
        if self._recurrent is not None:
            return self._recurrent.storable_blocks(sequence, request)
        return window.held if sequence.beam_width == 1 else window.held[:: sequence.beam_width]

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
        """Whether so many tokens are computed, and are what the cache holds."""
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
        keys = build_block_keys(request, self._settings.tokens_per_block, usable, True, self._settings.key_form)
        blocks = self._blocks_of_beam_0(sequence, request, self._sequences.get_window(sequence.request_id))
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
        blocks = self._blocks_of_beam_0(sequence, request, window)
        return self.store_blocks(keys, blocks, pin_blocks, window)


def _is_better(block: KVCacheBlock, existing: KVCacheBlock) -> bool:
    """Whether a block has memory and the one that stands at its node has none."""
    return existing.is_placeholder and not block.is_placeholder
