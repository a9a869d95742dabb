"""UnifiedBlockTree: one prefix tree for all windows; a node holds at most one block per window."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias, cast

from trtkv import block_key
from trtkv.block_key import EMPTY_KEY, PackedKey, hash_block_key
from trtkv.templated_trie import Node, Trie

if TYPE_CHECKING:
    from trtkv.kv_cache_block import KVCacheBlock


class LookupNode(Node[PackedKey, "KVCacheBlock"]):
    """Node of the block tree: a packed key, and one block per window (channel 0 is the widest)."""

    __slots__ = ()

    match_index = staticmethod(block_key.first_token_of)
    num_matching_tokens = staticmethod(block_key.num_matching_tokens)
    supports_partial_matching = staticmethod(block_key.supports_partial_matching)


LookupNodePtr: TypeAlias = "Node[PackedKey, KVCacheBlock]"


class UnifiedBlockTree(Trie[PackedKey, "KVCacheBlock"]):
    """The tree of cached blocks. C++: radix_block_tree::UnifiedBlockTree.

    With ``hash_map_order`` equal partial matches are taken in the reference's iteration order (see
    HashMapOrderedNode); otherwise most recently inserted first.
    """

    def __init__(self, hash_map_order: bool = False) -> None:
        super().__init__(HashMapOrderedNode if hash_map_order else LookupNode, EMPTY_KEY)

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
            for _, node in last.find_partially_matching_nodes(prefix[len(nodes)]):
                block = node.get_value(channel)
                if block is not None:
                    return block
        return next((b for n in reversed(nodes) if (b := n.get_value(channel)) is not None), None)

    def lookup_blocks_at_all_positions(self, prefix: list[PackedKey], channel: int) -> list[KVCacheBlock | None]:
        """One entry per key: the block there, or None."""
        found: list[KVCacheBlock | None] = [node.get_value(channel) for node in self.lookup_nodes(prefix)]
        return found + [None] * (len(prefix) - len(found))

    def take_num_ties(self) -> int:
        """Partial look-ups since the last call whose two longest candidates matched equally (hash-map order only)."""
        root = self.root
        if not isinstance(root, HashMapOrderedNode):
            return 0
        ties, root.tie_counter[0] = root.tie_counter[0], 0
        return ties


_BUCKET_COUNTS = (
    13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933,
    351061, 712697, 1447153, 2938679,
)  # fmt: skip
"""Sizes through which the reference's hash map grows."""


class HashMapOrderedNode(LookupNode):
    """A node that keeps its children in the iteration order of the reference's hash map.

    The map is one list of nodes in which the members of a bucket are neighbours: a new node goes to the
    front of its bucket, or to the front of the list when the bucket is empty; growing re-inserts all nodes
    in list order. Erasing unlinks only. Used for verification; linear in the number of siblings.
    """

    __slots__ = ("bucket_count", "map_hash", "order", "tie_counter")

    def __init__(self, key: PackedKey, parent: LookupNodePtr | None) -> None:
        super().__init__(key, parent)
        self.bucket_count = 1
        self.map_hash = hash_block_key(key)
        self.order: list[HashMapOrderedNode] = []
        self.tie_counter = [0]  # one list for the whole tree, the root's

    def create_node(self, key: PackedKey) -> LookupNodePtr:
        """A node that counts ties in the tree's counter."""
        node = HashMapOrderedNode(key, None)
        node.tie_counter = self.tie_counter
        return node

    def link_node(self, node: LookupNodePtr) -> None:
        """Make a node a child and give it its place in the order."""
        super().link_node(node)
        if len(self.order) + 1 > (self.bucket_count if self.bucket_count > 1 else 0):
            self._grow()
        self._place(cast(HashMapOrderedNode, node))

    def remove_node(self, node: LookupNodePtr) -> None:
        """Unlink a child; the order of the others stays."""
        super().remove_node(node)
        self.order.remove(cast(HashMapOrderedNode, node))

    def ordered_children(self) -> Iterable[LookupNodePtr]:
        """Children in hash-map order."""
        return tuple(self.order)

    def find_partially_matching_nodes(self, key: PackedKey) -> list[tuple[int, LookupNodePtr]]:
        """As in Node, over all children in hash-map order; counts look-ups with a tie for the longest."""
        if not self.supports_partial_matching(key):
            return []
        matches: list[tuple[int, LookupNodePtr]] = []
        for node in self.order:
            matched = self.num_matching_tokens(key, node.key)
            if matched:
                matches.append((matched, node))
        matches.sort(key=lambda match: -match[0])
        if len(matches) > 1 and matches[0][0] == matches[1][0]:
            self.tie_counter[0] += 1
        return matches

    def _grow(self) -> None:
        self.bucket_count = next(count for count in _BUCKET_COUNTS if count > self.bucket_count)
        nodes, self.order = self.order, []
        for node in nodes:
            self._place(node)

    def _place(self, node: HashMapOrderedNode) -> None:
        bucket = node.map_hash % self.bucket_count
        for position, other in enumerate(self.order):
            if other.map_hash % self.bucket_count == bucket:
                self.order.insert(position, node)
                return
        self.order.insert(0, node)
