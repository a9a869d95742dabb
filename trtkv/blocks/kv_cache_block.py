"""KVCacheBlock: metadata of one block. The bytes live in pools; only the slot links the two.

A block stands in the tree at a plain ``LookupNode``, or as its own node. That spares the plain node, 72 bytes beside
the 144 of a block (CPython 3.11), and an access at each step of a walk. A block can be its own node in a tree of one
window, as long as it has at most one child. Before a second child comes, when its key changes, or when it is evicted
while a child stays, a plain node takes its place: the stand-in. Nodes hold blocks and blocks are nodes, so both
classes stand here.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, TypeAlias

from trtkv.blocks.partial_match_index import KeyFunctions
from trtkv.blocks.templated_trie import Node, ValuedNode
from trtkv.common import CACHED_BLOCKS_ROOT_ID, PLACEHOLDER_BLOCK_ID, BlockId, Priority
from trtkv.errors import check
from trtkv.keys import packed_key
from trtkv.keys.key_hash import HashLink, link_hash, resolve_hash
from trtkv.keys.packed_key import EMPTY_KEY, PackedKey, num_key_tokens
from trtkv.records.kv_cache_index import NULL_INDEX, SECONDARY_POOL_FLAG, KVCacheIndex
from trtkv.records.retention_config import DEFAULT_RETENTION_PRIORITY

BLOCK_KEY_FUNCTIONS: Final = KeyFunctions(
    packed_key.first_token_of, packed_key.num_matching_tokens, packed_key.token_at, packed_key.supports_partial_matching
)


class LookupNode(ValuedNode[PackedKey, "KVCacheBlock"]):
    """Node of the block tree: a packed key, and one block per window (channel 0 is the widest)."""

    __slots__ = ()

    key_functions: ClassVar[KeyFunctions] = BLOCK_KEY_FUNCTIONS


LookupNodePtr: TypeAlias = "Node[PackedKey, KVCacheBlock]"


class KVCacheBlock(Node[PackedKey, "KVCacheBlock"]):
    """One block of one window. C++: KVCacheBlock.

    ``prev_block_in_seq`` is the predecessor in the sequence that holds it, ``prev_block`` the parent in the tree; they
    differ. Fields are changed by the parts of a window block manager only. There is one object of this class per block
    of a pool, so what few blocks have is kept elsewhere: durations in the eviction policy, the window's place in a
    subclass.
    """

    __slots__ = (
        "block_id",
        "free_queue",
        "hash_link",
        "is_full",
        "lookup_node",
        "memory_pool_block_index",
        "next_free",
        "prev_block_in_seq",
        "prev_free",
        "priority",
        "ref_count",
    )

    block_id: BlockId
    """Identity inside the window; offload and onboard swap the slots of two blocks."""
    lookup_node: LookupNodePtr | None
    """Node of the tree at which the block stands, perhaps the block itself; None while it is not cached for reuse."""
    memory_pool_block_index: KVCacheIndex
    """Slot, with the level bits."""
    ref_count: int
    """Entries in sequences (one per beam) and pins that hold the block."""
    is_full: bool
    """Whether the key covers a whole block."""
    hash_link: HashLink | int
    """The hash, or what it is computed from when it is asked for."""
    prev_block_in_seq: KVCacheBlock | None
    """Predecessor in the sequence that last took or stored the block."""
    priority: Priority
    """Retention priority; stays until another is given."""
    free_queue: Any
    """Where the block waits, owned by the eviction policy; None while it is held."""
    prev_free: KVCacheBlock
    next_free: KVCacheBlock
    """Neighbours in the free queue, set by it."""

    is_placeholder: bool = False
    """Whether the block has no memory behind it."""

    key_functions: ClassVar[KeyFunctions] = BLOCK_KEY_FUNCTIONS

    node_class: ClassVar[type[LookupNode]] = LookupNode
    """The plain nodes of the tree that the block may be part of."""

    def __init__(self, block_id: BlockId, memory_pool_block_index: KVCacheIndex, free_queue: Any = None) -> None:
        self.key = EMPTY_KEY  # what Node sets, without the call: a third of the time of making a block
        self.parent = self.children = None
        self.block_id = block_id
        self.memory_pool_block_index = memory_pool_block_index
        self.ref_count = 0
        self.is_full = False
        self.hash_link = 0
        self.lookup_node = self.prev_block_in_seq = None
        self.free_queue = free_queue
        self.priority = DEFAULT_RETENTION_PRIORITY

    def __repr__(self) -> str:
        return f"KVCacheBlock(id={self.block_id}, refs={self.ref_count}, attached={self.lookup_node is not None})"

    # -- identity and slot ----------------------------------------------------------------------

    @property
    def channel(self) -> int:
        """Place of the block's window among the windows of the tree; 0 is the widest."""
        return 0

    @property
    def is_primary(self) -> bool:
        """Whether the slot lies in the primary pool."""
        return self.memory_pool_block_index < SECONDARY_POOL_FLAG

    def swap_memory_pool_block_offset(self, other: KVCacheBlock) -> None:
        """Exchange slots with another block."""
        mine = self.memory_pool_block_index
        self.memory_pool_block_index = other.memory_pool_block_index
        other.memory_pool_block_index = mine

    # -- references -----------------------------------------------------------------------------

    @property
    def has_refs(self) -> bool:
        """Whether anybody holds the block."""
        return self.ref_count > 0

    @property
    def is_shared(self) -> bool:
        """Whether writing to the block could disturb another holder."""
        return self.ref_count > 1 or self.lookup_node is not None

    def inc_ref_count(self) -> None:
        """Add one holder."""
        self.ref_count += 1

    def dec_ref_count(self) -> None:
        """Remove one holder."""
        check(self.ref_count > 0, f"block {self.block_id} has no reference to drop")
        self.ref_count -= 1

    # -- key and hash ---------------------------------------------------------------------------

    @property
    def block_key(self) -> PackedKey:
        """Packed key of the tokens; stays when the block is evicted, until it is given another."""
        return self.key

    @property
    def has_tokens(self) -> bool:
        """Whether a key with tokens was ever set: evidence that the block may hold state."""
        return num_key_tokens(self.key) > 0

    def set_block_key(self, block_key: PackedKey, is_full: bool) -> None:
        """Set key and full flag; the hash stays as it was, and so does the key of the node."""
        if self.lookup_node is self and block_key != self.key:
            self._leave_to_stand_in()
        self.key = block_key
        self.is_full = is_full

    @property
    def hash(self) -> int:
        """64-bit chain hash, computed at the first reading with the value of the time it was set.

        InvalidInputError where keys are digests.
        """
        value = self.hash_link
        if not isinstance(value, int):
            value = self.hash_link = resolve_hash(value)
        return value

    def compute_hash(self) -> None:
        """Chain the hash of the key to that of the predecessor in the sequence. C++: setHash()."""
        prev = self.prev_block_in_seq
        self.hash_link = link_hash(self.key, 0 if prev is None else prev.hash_link)

    # -- tree -----------------------------------------------------------------------------------

    @property
    def prev_block(self) -> KVCacheBlock | None:
        """Block of the same window at the parent node; the root block for the first position."""
        node = self.lookup_node
        if node is None or node.parent is None:
            return None
        return node.parent.get_value(self.channel)

    @property
    def is_leaf(self) -> bool:
        """Whether no node hangs below, of any window."""
        return self.lookup_node is None or self.lookup_node.children is None

    @property
    def is_detached(self) -> bool:
        """Whether the block is not in the tree."""
        return self.lookup_node is None

    @property
    def next_blocks(self) -> list[KVCacheBlock]:
        """Blocks of the same window at the child nodes, in the tree's order."""
        if self.lookup_node is None:
            return []
        values = (child.get_value(self.channel) for child in self.lookup_node.ordered_children())
        return [block for block in values if block is not None]

    def free_leaf_block(self) -> None:
        """Leave the tree; the block must be a leaf."""
        check(self.is_leaf, f"block {self.block_id} is not a leaf, so it cannot be freed on its own")
        self.detach_from_lookup_node()

    # -- standing in the tree ----------------------------------------------------------------------

    def attach_to_lookup_node(self, node: LookupNodePtr) -> None:
        """Become the node's block, leaving the present node; the node's slot must be free."""
        self.detach_from_lookup_node()
        is_set = node.try_set_value(self.channel, self)
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
        node.try_set_value(self.channel, self, overwrite=True)  # type: ignore[union-attr]  # checked above
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
        elif isinstance(parent, KVCacheBlock):
            self.parent = parent.children = None
        else:
            self.prune()

    def set_as_root(self, root: LookupNodePtr) -> None:
        """Stand at the root, so that blocks at the first position have a parent."""
        self.lookup_node = root
        root.try_set_value(self.channel, self, overwrite=True)

    # -- being a node -----------------------------------------------------------------------------

    def get_value(self, channel: int) -> KVCacheBlock | None:
        """The block itself, in the place it has as a node."""
        return self if channel == 0 and self.lookup_node is self else None

    def try_set_value(self, channel: int, value: KVCacheBlock, overwrite: bool = False) -> bool:
        """False: a block has no room for another."""
        return False

    @property
    def has_values(self) -> bool:
        """Whether the block has a place as a node."""
        return self.lookup_node is self

    def values(self) -> dict[int, KVCacheBlock]:
        """The block itself, in the place it has as a node."""
        return {0: self} if self.lookup_node is self else {}

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
        stand_in.value = self
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


class ChannelBlock(KVCacheBlock):
    """A block of a window that may be another than the widest; in the tree it stands at plain nodes only."""

    __slots__ = ("_channel",)

    def __init__(
        self, block_id: BlockId, memory_pool_block_index: KVCacheIndex, channel: int, free_queue: Any = None
    ) -> None:
        super().__init__(block_id, memory_pool_block_index, free_queue)
        self._channel = channel

    @property
    def channel(self) -> int:
        """Place of the block's window among the windows of the tree; 0 is the widest."""
        return self._channel


class PlaceholderBlock(ChannelBlock):
    """A position of a sequence without memory. C++: KVCacheBlock::createPlaceholder."""

    __slots__ = ()

    is_placeholder = True

    def __init__(self, block_id: BlockId, channel: int = 0, free_queue: Any = None) -> None:
        super().__init__(block_id, NULL_INDEX, channel, free_queue)


def create_swa_placeholder() -> PlaceholderBlock:
    """The stand-in at sliding-window positions; never attached, never queued, one serves a whole window."""
    return PlaceholderBlock(PLACEHOLDER_BLOCK_ID)


def create_root_block(channel: int) -> KVCacheBlock:
    """The block at the root of the tree; it has no memory and is never queued."""
    return ChannelBlock(CACHED_BLOCKS_ROOT_ID, NULL_INDEX, channel)
