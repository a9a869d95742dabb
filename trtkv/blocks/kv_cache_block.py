"""KVCacheBlock: metadata of one block. The bytes live in pools; only the slot links the two."""

from __future__ import annotations

from typing import Any

from trtkv.blocks.block_node import BlockNode
from trtkv.blocks.radix_block_tree import HashMapOrderedNode
from trtkv.common import CACHED_BLOCKS_ROOT_ID, PLACEHOLDER_BLOCK_ID, BlockId, Priority
from trtkv.errors import check
from trtkv.keys.key_hash import HashLink, link_hash, resolve_hash
from trtkv.keys.packed_key import EMPTY_KEY, PackedKey, num_key_tokens
from trtkv.records.kv_cache_index import NULL_INDEX, SECONDARY_POOL_FLAG, KVCacheIndex
from trtkv.records.retention_config import DEFAULT_RETENTION_PRIORITY


class KVCacheBlock(BlockNode):
    """One block of one window. C++: KVCacheBlock.

    ``prev_block_in_seq`` is the predecessor in the sequence that holds it, ``prev_block`` the parent in the tree; they
    differ. Fields are changed by the parts of a window block manager only. There is one object of this class per block
    of a pool, so what few blocks have is kept elsewhere: durations in the eviction policy, the window's place in a
    subclass.
    """

    __slots__ = (
        "free_queue",
        "hash_link",
        "is_full",
        "memory_pool_block_index",
        "next_free",
        "prev_block_in_seq",
        "prev_free",
        "priority",
        "ref_count",
    )

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
