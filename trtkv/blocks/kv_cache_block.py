"""KVCacheBlock: metadata of one block. The bytes live in pools; only the slot links the two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from trtkv.blocks.partial_match_index import KeyFunctions
from trtkv.blocks.radix_block_tree import BLOCK_KEY_FUNCTIONS, HashMapOrderedNode, LookupNode
from trtkv.blocks.templated_trie import Node
from trtkv.common import CACHED_BLOCKS_ROOT_ID, PLACEHOLDER_BLOCK_ID, BlockId, Priority
from trtkv.errors import check
from trtkv.keys.key_hash import HashLink, link_hash, resolve_hash
from trtkv.keys.packed_key import EMPTY_KEY, PackedKey, num_key_tokens
from trtkv.records.kv_cache_index import NULL_INDEX, SECONDARY_POOL_FLAG, KVCacheIndex
from trtkv.records.retention_config import DEFAULT_RETENTION_PRIORITY

if TYPE_CHECKING:
    from trtkv.blocks.radix_block_tree import LookupNodePtr


class KVCacheBlock(Node[PackedKey, "KVCacheBlock"]):
    """One block of one window. C++: KVCacheBlock.

    The block id is its identity; offload and onboard swap the slots of two blocks. ``prev_block_in_seq``
    is the predecessor in the sequence that holds it, ``prev_block`` the parent in the tree; they differ.
    Fields are changed by the parts of a window block manager only; hot loops there access them directly.

    A block may serve as its own node of the tree (``lookup_node`` is the block itself), which spares an object
    per cached block; then its key is that of the node. It does so only with at most one child, and gives way to a
    plain node when a second child comes or when it is evicted while a child stays. There is one object of this
    class per block of a pool, so what few blocks have is kept elsewhere: durations in the eviction policy, the window's
    place in a subclass.
    """

    __slots__ = (
        "_block_id",
        "_free_queue",
        "_hash",
        "_is_full",
        "_lookup_node",
        "_memory_pool_block_index",
        "_next_free",
        "_prev_block_in_seq",
        "_prev_free",
        "_priority",
        "_ref_count",
    )

    _prev_free: KVCacheBlock  # neighbours in the free queue, set by it
    _next_free: KVCacheBlock

    is_placeholder: bool = False
    """Whether the block has no memory behind it."""

    key_functions: ClassVar[KeyFunctions] = BLOCK_KEY_FUNCTIONS

    node_class: ClassVar[type[LookupNode]] = LookupNode
    """The plain nodes of the tree that the block may be part of."""

    def __init__(self, block_id: BlockId, memory_pool_block_index: KVCacheIndex, free_queue: Any = None) -> None:
        self.key = EMPTY_KEY  # what Node sets, without the call: a third of the time of making a block
        self.parent = self.children = None
        self._block_id = block_id
        self._memory_pool_block_index = memory_pool_block_index
        self._ref_count = 0
        self._is_full = False
        self._hash: HashLink | int = 0
        self._lookup_node: LookupNodePtr | None = None
        self._prev_block_in_seq: KVCacheBlock | None = None
        self._free_queue = free_queue  # owned by the eviction policy
        self._priority: Priority = DEFAULT_RETENTION_PRIORITY

    def __repr__(self) -> str:
        return f"KVCacheBlock(id={self._block_id}, refs={self._ref_count}, attached={self._lookup_node is not None})"

    # -- identity and slot ----------------------------------------------------------------------

    @property
    def block_id(self) -> BlockId:
        """Identity inside the window."""
        return self._block_id

    @property
    def channel(self) -> int:
        """Place of the block's window among the windows of the tree; 0 is the widest."""
        return 0

    @property
    def memory_pool_block_index(self) -> KVCacheIndex:
        """Slot, with the level bit."""
        return self._memory_pool_block_index

    @property
    def is_primary(self) -> bool:
        """Whether the slot lies in the primary pool."""
        return self._memory_pool_block_index < SECONDARY_POOL_FLAG

    def swap_memory_pool_block_offset(self, other: KVCacheBlock) -> None:
        """Exchange slots with another block."""
        mine = self._memory_pool_block_index
        self._memory_pool_block_index = other._memory_pool_block_index
        other._memory_pool_block_index = mine

    # -- references -----------------------------------------------------------------------------

    @property
    def ref_count(self) -> int:
        """Entries in sequences (one per beam) and pins that hold the block."""
        return self._ref_count

    @property
    def has_refs(self) -> bool:
        """Whether anybody holds the block."""
        return self._ref_count > 0

    @property
    def is_shared(self) -> bool:
        """Whether writing to the block could disturb somebody else."""
        return self._ref_count > 1 or self._lookup_node is not None

    def inc_ref_count(self) -> None:
        """Add one holder."""
        self._ref_count += 1

    def dec_ref_count(self) -> None:
        """Remove one holder."""
        check(self._ref_count > 0, f"block {self._block_id} has no reference to drop")
        self._ref_count -= 1

    # -- key and hash ---------------------------------------------------------------------------

    @property
    def block_key(self) -> PackedKey:
        """Packed key of the tokens; stays when the block is evicted, until it is given another."""
        return self.key

    @property
    def has_tokens(self) -> bool:
        """Whether a key with tokens was ever set: evidence that the block may hold state."""
        return num_key_tokens(self.key) > 0

    @property
    def is_full(self) -> bool:
        """Whether the key covers a whole block."""
        return self._is_full

    def set_block_key(self, block_key: PackedKey, is_full: bool) -> None:
        """Set key and full flag; the hash stays as it was, and so does the key of the node."""
        if self._lookup_node is self and block_key != self.key:
            self._leave_to_stand_in()
        self.key = block_key
        self._is_full = is_full

    @property
    def hash(self) -> int:
        """64-bit chain hash, computed at the first reading with the value of the time it was set.

        InvalidInputError where keys are digests.
        """
        value = self._hash
        if not isinstance(value, int):
            value = self._hash = resolve_hash(value)
        return value

    def set_hash(self, value: HashLink | int) -> None:
        """Set the hash."""
        self._hash = value

    def compute_hash(self) -> None:
        """Chain the hash of the key to that of the predecessor in the sequence. C++: setHash()."""
        prev = self._prev_block_in_seq
        self._hash = link_hash(self.key, 0 if prev is None else prev._hash)

    @property
    def prev_block_in_seq(self) -> KVCacheBlock | None:
        """Predecessor in the sequence that last took or stored the block."""
        return self._prev_block_in_seq

    def set_prev_block_in_seq(self, block: KVCacheBlock | None) -> None:
        """Set the predecessor."""
        self._prev_block_in_seq = block

    # -- tree -----------------------------------------------------------------------------------

    @property
    def lookup_node(self) -> LookupNodePtr | None:
        """Node of the tree, or None while the block is not cached for reuse."""
        return self._lookup_node

    @property
    def prev_block(self) -> KVCacheBlock | None:
        """Block of the same window at the parent node; the root block for the first position."""
        node = self._lookup_node
        if node is None or node.parent is None:
            return None
        return node.parent.get_value(self.channel)

    @property
    def is_leaf(self) -> bool:
        """Whether no node hangs below, of any window."""
        return self._lookup_node is None or self._lookup_node.children is None

    @property
    def is_detached(self) -> bool:
        """Whether the block is not in the tree."""
        return self._lookup_node is None

    @property
    def next_blocks(self) -> list[KVCacheBlock]:
        """Blocks of the same window at the child nodes, in the tree's order."""
        if self._lookup_node is None:
            return []
        values = (child.get_value(self.channel) for child in self._lookup_node.ordered_children())
        return [block for block in values if block is not None]

    def get_value(self, channel: int) -> KVCacheBlock | None:
        """The block itself, in the place it has as a node."""
        return self if channel == 0 and self._lookup_node is self else None

    def try_set_value(self, channel: int, value: KVCacheBlock, overwrite: bool = False) -> bool:
        """False: a block has no room for another."""
        return False

    @property
    def has_values(self) -> bool:
        """Whether the block has a place as a node."""
        return self._lookup_node is self

    def values(self) -> dict[int, KVCacheBlock]:
        """The block itself, in the place it has as a node."""
        return {0: self} if self._lookup_node is self else {}

    def become_node(self) -> None:
        """Turn into a node of the block's key; the caller links it below its parent.

        Only in a tree of one channel, for a block that is not attached.
        """
        self.children = None
        self._lookup_node = self

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
        self._lookup_node = stand_in
        return stand_in

    def _give_way(self) -> LookupNode:
        """Put a plain node in the place that this block has as a node."""
        check(self.parent is not None, f"block {self._block_id} is no node of the tree")
        stand_in = self.node_class(self.key, None)
        stand_in.children = self.children
        if self.children is not None:
            self.children.parent = stand_in
        self.parent.replace_node(self, stand_in)  # type: ignore[union-attr]  # checked above
        self.children = None
        return stand_in

    def attach_to_lookup_node(self, node: LookupNodePtr) -> None:
        """Become the node's block, leaving the present node; the node's slot must be free."""
        self.detach_from_lookup_node()
        check(node.try_set_value(self.channel, self), f"block {self._block_id}: the node holds another block")
        self._lookup_node = node

    def replace_at_lookup_node(self, other: KVCacheBlock) -> None:
        """Leave the present node and take the place of a block of the same window, which leaves the tree."""
        self.detach_from_lookup_node()
        node = other._lookup_node
        check(node is not None, f"block {other._block_id} is not in the tree and cannot be replaced there")
        if node is other:
            node = other._leave_to_stand_in()
        other._lookup_node = None
        node.try_set_value(self.channel, self, overwrite=True)  # type: ignore[union-attr]  # checked above
        self._lookup_node = node

    def detach_from_lookup_node(self) -> None:
        """Leave the tree; nodes left empty are pruned. Hot: the usual victim is the only child of a cached block."""
        node = self._lookup_node
        if node is None:
            return
        self._lookup_node = None
        if node is not self:
            check(node.clear_value(self.channel), f"block {self._block_id} was not at its node")
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
        self._lookup_node = root
        root.try_set_value(self.channel, self, overwrite=True)

    def free_leaf_block(self) -> None:
        """Leave the tree; the block must be a leaf."""
        check(self.is_leaf, f"block {self._block_id} is no leaf and cannot be freed alone")
        self.detach_from_lookup_node()

    # -- retention ------------------------------------------------------------------------------

    @property
    def priority(self) -> Priority:
        """Retention priority; stays until somebody gives another."""
        return self._priority

    def set_priority(self, priority: Priority) -> None:
        """Set the priority; a queue place is not changed."""
        self._priority = priority


class HashMapOrderedBlock(KVCacheBlock):
    """A block of a tree with hash-map order."""

    __slots__ = ()

    node_class = HashMapOrderedNode


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
