"""BlockNode: how a block stands in the tree, at a plain node or as its own node.

A block that is its own node spares the plain node beside it, 72 bytes where a block has 144 (CPython 3.11), and an
access at each step of a walk. It can be one in a tree of one window, as long as it has at most one child. Before a
second child comes, when its key changes, or when it is evicted while a child stays, a plain node takes its place: the
stand-in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trtkv.blocks.partial_match_index import KeyFunctions
from trtkv.blocks.radix_block_tree import BLOCK_KEY_FUNCTIONS, LookupNode
from trtkv.blocks.templated_trie import Node
from trtkv.common import BlockId
from trtkv.errors import check
from trtkv.keys.packed_key import PackedKey

if TYPE_CHECKING:
    from trtkv.blocks.kv_cache_block import KVCacheBlock
    from trtkv.blocks.radix_block_tree import LookupNodePtr


class BlockNode(Node[PackedKey, "KVCacheBlock"]):
    """The part of a block that the tree knows; every object of this class is a ``KVCacheBlock``."""

    __slots__ = ("block_id", "lookup_node")

    block_id: BlockId
    """Identity inside the window; offload and onboard swap the slots of two blocks."""
    lookup_node: LookupNodePtr | None
    """Node of the tree at which the block stands, perhaps the block itself; None while it is not cached for reuse."""

    key_functions: ClassVar[KeyFunctions] = BLOCK_KEY_FUNCTIONS

    node_class: ClassVar[type[LookupNode]] = LookupNode
    """The plain nodes of the tree that the block may be part of."""

    @property
    def channel(self) -> int:
        """Place of the block's window among the windows of the tree; 0 is the widest."""
        return 0

    # -- standing somewhere -----------------------------------------------------------------------

    def attach_to_lookup_node(self, node: LookupNodePtr) -> None:
        """Become the node's block, leaving the present node; the node's slot must be free."""
        self.detach_from_lookup_node()
        is_set = node.try_set_value(self.channel, self)  # type: ignore[arg-type]  # every block node is a block
        check(is_set, f"block {self.block_id}: the node holds another block")
        self.lookup_node = node

    def replace_at_lookup_node(self, other: KVCacheBlock) -> None:
        """Leave the present node and take the place of a block of the same window, which leaves the tree."""
        self.detach_from_lookup_node()
        node = other.lookup_node
        check(node is not None, f"block {other.block_id} is not in the tree, so it cannot be replaced there")
        if node is other:
            node = other._leave_to_stand_in()
        other.lookup_node = None
        node.try_set_value(self.channel, self, overwrite=True)  # type: ignore[arg-type, union-attr]  # checked above
        self.lookup_node = node

    def detach_from_lookup_node(self) -> None:
        """Leave the tree; nodes left empty are pruned. Hot: the usual victim is the only child of a cached block."""
        node = self.lookup_node
        if node is None:
            return
        self.lookup_node = None
        if node is not self:
            check(node.clear_value(self.channel), f"block {self.block_id} was not at its node")
            return
        parent = self.parent
        if self.children is not None:
            self._give_way()
        elif isinstance(parent, BlockNode):
            self.parent = parent.children = None
        else:
            self.prune()

    def set_as_root(self, root: LookupNodePtr) -> None:
        """Stand at the root, so that blocks at the first position have a parent."""
        self.lookup_node = root
        root.try_set_value(self.channel, self, overwrite=True)  # type: ignore[arg-type]  # as above

    # -- being a node -----------------------------------------------------------------------------

    def get_value(self, channel: int) -> KVCacheBlock | None:
        """The block itself, in the place it has as a node."""
        return self if channel == 0 and self.lookup_node is self else None  # type: ignore[return-value]  # as above

    def try_set_value(self, channel: int, value: KVCacheBlock, overwrite: bool = False) -> bool:
        """False: a block has no room for another."""
        return False

    @property
    def has_values(self) -> bool:
        """Whether the block has a place as a node."""
        return self.lookup_node is self

    def values(self) -> dict[int, KVCacheBlock]:
        """The block itself, in the place it has as a node."""
        return {0: self} if self.lookup_node is self else {}  # type: ignore[dict-item]  # as above

    def become_node(self) -> None:
        """Turn into a node of the block's key; the caller links it below its parent.

        Only in a tree of one channel, for a block that is not attached.
        """
        self.children = None
        self.lookup_node = self

    def create_node(self, key: PackedKey) -> LookupNodePtr:
        """A plain node, for a child of this block."""
        return self.node_class(key, None)

    def link_node(self, node: LookupNodePtr) -> None:
        """Make a node a child; before a second one, this block gives way to a plain node."""
        if self.children is None:
            self.children = node
            node.parent = self
        else:
            self._leave_to_stand_in().link_node(node)

    def _leave_to_stand_in(self) -> LookupNode:
        """Stand at a plain node from now on, in the place that this block had as a node."""
        stand_in = self._give_way()
        stand_in.value = self  # type: ignore[assignment]  # as above
        self.lookup_node = stand_in
        return stand_in

    def _give_way(self) -> LookupNode:
        """Put a plain node in the place that this block has as a node."""
        check(self.parent is not None, f"block {self.block_id} is not a node of the tree")
        stand_in = self.node_class(self.key, None)
        stand_in.children = self.children
        if self.children is not None:
            self.children.parent = stand_in
        self.parent.replace_node(self, stand_in)  # type: ignore[union-attr]  # checked above
        self.children = None
        return stand_in
