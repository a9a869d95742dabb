"""UnifiedBlockTree: one prefix tree for all windows; a node holds at most one block per window."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias, cast

from trtkv import block_key
from trtkv.block_key import EMPTY_KEY, PackedKey, hash_key_alone
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
    """A node that knows the order in which the reference's hash map would iterate over its children.

    That map is one list in which the members of a bucket are neighbours: a new node goes to the front of its
    bucket, or of the list when the bucket is empty; growing re-inserts all nodes in list order; erasing unlinks.
    The order matters only between equal partial matches, so what happens to the map is written down and
    worked out, with one hash per child, when somebody asks.
    """

    __slots__ = ("bucket_count", "map_hash", "order", "pending", "tie_counter")

    def __init__(self, key: PackedKey, parent: LookupNodePtr | None, value: KVCacheBlock | None = None) -> None:
        super().__init__(key, parent, value)
        self.bucket_count = 1
        self.map_hash: int | None = None
        self.order: list[HashMapOrderedNode] | None = None
        # (inserted, node), not worked into order yet; None: no more than one insertion, of the child there is.
        self.pending: list[tuple[bool, HashMapOrderedNode]] | None = None
        self.tie_counter: list[int] = [0] if parent is None else cast(HashMapOrderedNode, parent).tie_counter

    def create_node(self, key: PackedKey) -> LookupNodePtr:
        """A node that counts ties in the tree's counter."""
        return HashMapOrderedNode(key, self)

    def link_node(self, node: LookupNodePtr) -> None:
        """Make a node a child."""
        only_child = self.children
        super().link_node(node)
        if only_child is not None or self.pending is not None:
            self._write_down(True, node, only_child)

    def remove_node(self, node: LookupNodePtr) -> None:
        """Unlink a child; the order of the others stays."""
        super().remove_node(node)
        self._write_down(False, node, node)

    def _write_down(self, inserted: bool, node: LookupNodePtr, first: LookupNodePtr) -> None:
        """Note a change; ``first`` is the child whose insertion went without a note, if one did."""
        if self.pending is None:
            self.pending = [(True, cast(HashMapOrderedNode, first))]
        self.pending.append((inserted, cast(HashMapOrderedNode, node)))
        if len(self.pending) > _MOST_PENDING and len(self.pending) > 4 * len(self.order or ()):
            self._work_out()

    def ordered_children(self) -> Iterable[LookupNodePtr]:
        """Children in hash-map order."""
        return tuple(self._work_out())

    def find_partially_matching_nodes(self, key: PackedKey) -> list[tuple[int, LookupNodePtr]]:
        """As in Node, equal lengths in hash-map order; counts look-ups with a tie for the longest."""
        matches = super().find_partially_matching_nodes(key)
        if len({matched for matched, _ in matches}) < len(matches):
            if matches[0][0] == matches[1][0]:
                self.tie_counter[0] += 1
            place = {node: position for position, node in enumerate(self.ordered_children())}
            matches.sort(key=lambda match: (-match[0], place[match[1]]))
        return matches

    def _work_out(self) -> list[HashMapOrderedNode]:
        """The order with all changes worked in."""
        if self.pending is None:
            self.pending = [] if self.children is None else [(True, self.children)]
        order = self.order = self.order or []
        for inserted, node in self.pending:
            if not inserted:
                order.remove(node)
                continue
            if len(order) + 1 > (self.bucket_count if self.bucket_count > 1 else 0):
                self._grow(order)
            self._place(node, order)
        self.pending.clear()
        return order

    def _grow(self, order: list[HashMapOrderedNode]) -> None:
        self.bucket_count = next(count for count in _BUCKET_COUNTS if count > self.bucket_count)
        nodes = list(order)
        order.clear()
        for node in nodes:
            self._place(node, order)

    def _place(self, node: HashMapOrderedNode, order: list[HashMapOrderedNode]) -> None:
        bucket = node.get_map_hash() % self.bucket_count
        for position, other in enumerate(order):
            if other.get_map_hash() % self.bucket_count == bucket:
                order.insert(position, node)
                return
        order.insert(0, node)

    def get_map_hash(self) -> int:
        """Hash of the key with parent 0, under which the node stands in its parent's map."""
        if self.map_hash is None:
            self.map_hash = hash_key_alone(self.key)
        return self.map_hash


_MOST_PENDING = 4096
"""Changes written down before they are worked out, so that the list stays in proportion to the children."""
