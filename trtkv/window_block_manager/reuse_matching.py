"""Finding cached blocks for a list of keys. Nothing here changes a block, a queue or the tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from trtkv.blocks.hash_map_ordered_node import HashMapOrderedBlock
from trtkv.blocks.kv_cache_block import KVCacheBlock, LookupNodePtr, create_root_block, create_swa_placeholder
from trtkv.blocks.radix_block_tree import UnifiedBlockTree
from trtkv.blocks.templated_trie import ChildMap
from trtkv.common import MAX_INT32
from trtkv.events.kv_cache_event_manager import describe_stored_block
from trtkv.events.kv_cache_events import KVCacheStoredData
from trtkv.keys.key_builder import chop_vector_into_blocks
from trtkv.keys.key_hash import hash_block_key
from trtkv.keys.packed_key import PackedKey, num_key_tokens, token_bytes
from trtkv.records.window_size_metadata import PrefixReuseSummary
from trtkv.window_block_manager.settings import WindowSettings


class ReuseMatches:
    """Cached blocks for the first keys of a list. C++: ReuseMatchResult.

    ``blocks``: one per key; positions passed without a block hold the sliding-window placeholder.
    ``is_partial``: whether the last one matched in part, or is not full; then ``num_partial_tokens`` counts.
    """

    __slots__ = ("blocks", "is_partial", "num_partial_tokens", "total_matched_tokens")

    def __init__(self) -> None:
        self.blocks: list[KVCacheBlock] = []
        self.is_partial = False
        self.num_partial_tokens = 0
        self.total_matched_tokens = 0


class ReuseMatcher:
    """Walks the tree for one window. C++: WindowBlockManager::findReusableBlockMatches and its callers.

    A prefix is usable as far as every position has a block: full attention.
    """

    def __init__(self, settings: WindowSettings, tree: UnifiedBlockTree) -> None:
        self._settings = settings
        self._placeholder: KVCacheBlock = create_swa_placeholder()
        self.set_tree(tree)

    def set_tree(self, tree: UnifiedBlockTree) -> None:
        """Use another tree from now on."""
        self.tree = tree
        self._block_class = HashMapOrderedBlock if tree.hash_map_order else KVCacheBlock
        self.root_block = create_root_block(self._settings.channel)
        self.root_block.set_as_root(tree.root)

    def find_reusable_block_matches(
        self,
        keys: Sequence[PackedKey],
        enable_partial_reuse: bool,
        copy_on_partial_reuse: bool,
        max_matched_tokens: int = MAX_INT32,
    ) -> ReuseMatches:
        """Cached blocks for the longest usable prefix of the keys; the walk stops at an empty key. A hot loop."""
        result = ReuseMatches()
        blocks = result.blocks
        append = blocks.append
        block_class, channel, width = self._block_class, self._settings.channel, self._settings.tokens_per_block
        node: LookupNodePtr = self.tree.root
        missing: PackedKey | None = None
        for key in keys:
            child = node.children
            if child.__class__ is block_class and child.key == key:  # by far the most: a cached block is its own node
                append(child)
                node = child
                continue
            if child.__class__ is ChildMap:
                child = child.get(key)
            elif child is not None and child.key != key:
                child = None
            if child is None:
                missing = key
                break
            block = child if child.__class__ is block_class else child.get_value(channel)
            if block is None:
                break
            append(block)
            node = child
        tokens = 0
        if blocks:  # all keys but the last are those of whole blocks
            tokens = (len(blocks) - 1) * width + num_key_tokens(keys[len(blocks) - 1])
            while tokens > max_matched_tokens:
                blocks.pop()
                tokens, missing = len(blocks) * width, None
            if blocks and not blocks[-1].is_full:
                if self._may_use_part(blocks[-1], enable_partial_reuse, copy_on_partial_reuse):
                    result.is_partial = True
                    result.num_partial_tokens = tokens - (len(blocks) - 1) * width
                else:
                    blocks.pop()
                    tokens = len(blocks) * width
        if missing is not None and enable_partial_reuse:
            matched, partial = self._find_partial(node, missing, copy_on_partial_reuse)
            if partial is not None and tokens + matched <= max_matched_tokens:
                append(partial)
                tokens += matched
                result.is_partial = True
                result.num_partial_tokens = matched
        result.total_matched_tokens = tokens
        return result

    def _may_use_part(self, block: KVCacheBlock, enable_partial_reuse: bool, copy_on_partial_reuse: bool) -> bool:
        """Whether a block that is filled in part, and found exactly, may be used under these settings."""
        return enable_partial_reuse and (copy_on_partial_reuse or (not block.ref_count and block.is_leaf))

    def _find_partial(
        self, node: LookupNodePtr, key: PackedKey, copy_on_partial_reuse: bool
    ) -> tuple[int, KVCacheBlock | None]:
        """Longest partial match among a node's children that has a block of this window and may be used."""
        if not num_key_tokens(key):
            return 0, None
        for matched, child in self.tree.find_partial_matches(node, key):
            block = child.get_value(self._settings.channel)
            if block is not None and (copy_on_partial_reuse or (not block.ref_count and child.children is None)):
                return matched, block
        return 0, None

    def find_child_block(
        self, node: LookupNodePtr, key: PackedKey, enable_partial_reuse: bool, copy_on_partial_reuse: bool
    ) -> tuple[int, KVCacheBlock] | None:
        """(matched tokens, block) of one key below a node, or None. C++: KVCacheBlock::findMatchingBlock."""
        child = node.find_matching_node(key)
        if child is not None:
            block = child.get_value(self._settings.channel)
            return None if block is None else (num_key_tokens(key), block)
        if not enable_partial_reuse:
            return None
        matched, partial = self._find_partial(node, key, copy_on_partial_reuse)
        return None if partial is None else (matched, partial)

    def search_reuse_tree(self, keys: Sequence[PackedKey]) -> KVCacheBlock | None:
        """The block at the end of all keys, the last one matched in part if need be; the root for no key."""
        if not keys or not num_key_tokens(keys[0]):
            return self.root_block
        matches = self.find_reusable_block_matches(keys, True, True)
        if len(matches.blocks) != len(keys) or matches.blocks[-1] is self._placeholder:
            return None
        return matches.blocks[-1]

    def analyze_prefix_reuse(
        self, keys: Sequence[PackedKey], is_held: Callable[[KVCacheBlock], bool]
    ) -> PrefixReuseSummary:
        """Count cached blocks for keys of full blocks, and those among them that are held. C++: analyzePrefixReuse."""
        blocks = self.find_reusable_block_matches(keys, False, False).blocks
        real = [block for block in blocks if block is not self._placeholder]
        return PrefixReuseSummary(
            sum(map(is_held, real)),
            len(real),
            keys[len(blocks)] if len(blocks) < len(keys) else None,
        )

    def find_blocks_in_reuse_tree_by_block_key(self, block_key: PackedKey) -> KVCacheBlock | None:
        """The block at the end of a long key, cut into blocks; constraints are repeated on each."""
        if isinstance(block_key, int):  # a digest is that of one block
            return self.find_blocks_in_reuse_tree_by_block_keys([block_key])
        tokens_per_block = self._settings.tokens_per_block
        tokens = token_bytes(block_key)
        width = 4 * tokens_per_block
        pieces = chop_vector_into_blocks(tokens, len(tokens), width, True)
        if not isinstance(block_key, tuple):
            return self.find_blocks_in_reuse_tree_by_block_keys([bytes(piece) for piece in pieces])
        _, extra_ids, lora_task_id, cache_salt, extra_keys = block_key
        extras: Sequence[bytes | None] = [None] * len(pieces)
        if extra_ids is not None:
            # Pieces of bytes are bytes, which the type of the function cannot say.
            extras = chop_vector_into_blocks(extra_ids, len(extra_ids), 2 * width, True)  # type: ignore[assignment]
        keys: list[PackedKey] = [
            (bytes(piece), extra, lora_task_id, cache_salt, extra_keys)
            for piece, extra in zip(pieces, extras, strict=True)
        ]
        return self.find_blocks_in_reuse_tree_by_block_keys(keys)

    def find_blocks_in_reuse_tree_by_block_keys(self, block_keys: Sequence[PackedKey]) -> KVCacheBlock | None:
        """The block at the end of a list of keys, one per block."""
        return self.search_reuse_tree(self.tree.stored_form(block_keys, self._settings.tokens_per_block))

    def list_blocks(self) -> list[KVCacheBlock]:
        """Every block of this window in the tree, each behind its ancestors."""
        blocks = [node.get_value(self._settings.channel) for node in self._walk()]
        return [block for block in blocks if block is not None]

    def describe_blocks(self) -> list[KVCacheStoredData]:
        """Stored events of every block in the tree but placeholders, each behind its ancestors."""
        found = []
        hashes: dict[LookupNodePtr | None, int] = {self.tree.root: 0}
        for node in self._walk():
            parent_hash = hashes[node.parent]
            block = node.get_value(self._settings.channel)
            hashes[node] = hash_block_key(node.key, parent_hash) if block is None else block.hash
            if block is not None and not block.is_placeholder:
                found.append(KVCacheStoredData(parent_hash or None, [describe_stored_block(block)]))
        return found

    def _walk(self) -> Iterator[LookupNodePtr]:
        """All nodes below the root, each behind its ancestors."""
        stack = list(self.tree.root.ordered_children())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.ordered_children())


class HolePassingMatcher(ReuseMatcher):
    """The walk of windows that can do without blocks.

    A sliding window accepts a prefix only if the last hole lies a whole window before its end. Of recurrent states
    only the last one of a prefix counts, so a missing one is no hole.
    """

    def find_reusable_block_matches(
        self,
        keys: Sequence[PackedKey],
        enable_partial_reuse: bool,
        copy_on_partial_reuse: bool,
        max_matched_tokens: int = MAX_INT32,
    ) -> ReuseMatches:
        """Cached blocks for the longest usable prefix of the keys; the walk stops at an empty key."""
        channel, is_swa, window_size = self._settings.channel, self._settings.is_swa, self._settings.window_size
        result = ReuseMatches()
        node: LookupNodePtr = self.tree.root
        blocks: list[KVCacheBlock] = []
        tokens = end_of_last_hole = num_safe = 0
        for key in keys:
            num_tokens = num_key_tokens(key)
            if not num_tokens:
                break
            child = node.find_matching_node(key)
            if child is None:
                if enable_partial_reuse:
                    matched, partial = self._find_partial(node, key, copy_on_partial_reuse)
                    if partial is not None and tokens + matched <= max_matched_tokens:
                        tokens += matched
                        blocks.append(partial)
                        if not end_of_last_hole or tokens >= end_of_last_hole + window_size:
                            num_safe = len(blocks)
                            result.total_matched_tokens = tokens
                            result.is_partial = True
                            result.num_partial_tokens = matched
                break
            if tokens + num_tokens > max_matched_tokens:
                break
            block = child.get_value(channel)
            if (
                block is not None
                and not block.is_full
                and not self._may_use_part(block, enable_partial_reuse, copy_on_partial_reuse)
            ):
                break
            if block is None:
                block = self._placeholder
                if is_swa:
                    end_of_last_hole = tokens + num_tokens
            tokens += num_tokens
            blocks.append(block)
            node = child
            if not end_of_last_hole or tokens >= end_of_last_hole + window_size:
                num_safe = len(blocks)
                result.total_matched_tokens = tokens
                result.is_partial = block is not self._placeholder and not block.is_full
                result.num_partial_tokens = num_tokens
        del blocks[num_safe:]
        result.blocks = blocks
        return result
