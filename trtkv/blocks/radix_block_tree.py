"""UnifiedBlockTree: one prefix tree for all windows; a node holds at most one block per window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from trtkv.blocks.hash_map_ordered_node import HashMapOrderedNode
from trtkv.blocks.introsort import MOST_SORTED_STABLY
from trtkv.blocks.kv_cache_block import KVCacheBlock, LookupNode, LookupNodePtr
from trtkv.blocks.templated_trie import Trie
from trtkv.common import KeyForm
from trtkv.keys.key_form import convert_keys
from trtkv.keys.packed_key import EMPTY_KEY, PackedKey


class UnifiedBlockTree(Trie[PackedKey, "KVCacheBlock"]):
    """The tree of cached blocks. C++: radix_block_tree::UnifiedBlockTree.

    With ``hash_map_order`` equal partial matches are taken in the reference's iteration order (see HashMapOrder);
    otherwise most recently inserted first. ``num_ties`` counts partial look-ups whose two longest candidates
    matched equally, ``num_large_lookups`` those with more candidates than the reference sorts stably. ``key_form`` is
    that of the keys of full blocks.
    """

    def __init__(self, hash_map_order: bool = False, key_form: KeyForm = KeyForm.TOKENS) -> None:
        super().__init__(HashMapOrderedNode if hash_map_order else LookupNode, EMPTY_KEY)
        self.key_form = key_form
        self.num_ties = 0
        self.num_large_lookups = 0

    @property
    def hash_map_order(self) -> bool:
        """Whether equal partial matches are taken in the reference's order."""
        return isinstance(self._root, HashMapOrderedNode)

    def stored_form(self, keys: Sequence[PackedKey], tokens_per_block: int) -> Sequence[PackedKey]:
        """Keys as they would be stored, for keys of tokens."""
        return convert_keys(list(keys), tokens_per_block, self.key_form)

    def find_partial_matches(self, node: LookupNodePtr, key: PackedKey) -> Iterator[tuple[int, LookupNodePtr]]:
        """Children of a node that share leading tokens with a key, as (shared tokens, child), longest first."""
        is_first = True
        for matches in node.find_partial_matches(key):
            if is_first:
                self.num_ties += matches.size > 1
                self.num_large_lookups += matches.num_candidates > MOST_SORTED_STABLY
                is_first = False
            for child in matches.children:
                yield matches.num_tokens, child

    def insert_block(self, prefix: Iterable[PackedKey], channel: int, block: KVCacheBlock) -> bool:
        """Put a block at the end of a prefix unless that slot is taken; does not link the block back."""
        nodes = self.insert_nodes(prefix)
        return bool(nodes) and nodes[-1].try_set_value(channel, block)

    def lookup_block(self, prefix: list[PackedKey], channel: int, allow_partial_match: bool) -> KVCacheBlock | None:
        """The block at the end of a prefix; with partial matching the deepest one along it. Changes nothing."""
        nodes = self.lookup_nodes(prefix)
        if not allow_partial_match:
            return nodes[-1].get_value(channel) if prefix and len(nodes) == len(prefix) else None
        if len(nodes) < len(prefix):
            last = nodes[-1] if nodes else self.root
            for _, node in self.find_partial_matches(last, prefix[len(nodes)]):
                block = node.get_value(channel)
                if block is not None:
                    return block
        return next((b for n in reversed(nodes) if (b := n.get_value(channel)) is not None), None)

    def lookup_blocks_at_all_positions(self, prefix: list[PackedKey], channel: int) -> list[KVCacheBlock | None]:
        """One entry per key: the block there, or None."""
        found: list[KVCacheBlock | None] = [node.get_value(channel) for node in self.lookup_nodes(prefix)]
        return found + [None] * (len(prefix) - len(found))

    def take_num_ties(self) -> int:
        """``num_ties`` since the last call; sets it to 0."""
        ties, self.num_ties = self.num_ties, 0
        return ties

    def take_num_large_lookups(self) -> int:
        """``num_large_lookups`` since the last call; sets it to 0."""
        lookups, self.num_large_lookups = self.num_large_lookups, 0
        return lookups
