"""Metadata of one block: references, slot, key and lazy hash, place in the tree, a block as its own node."""

from __future__ import annotations

import random

import pytest

from trtkv.blocks.kv_cache_block import (
    ChannelBlock,
    KVCacheBlock,
    PlaceholderBlock,
    create_root_block,
    create_swa_placeholder,
)
from trtkv.blocks.radix_block_tree import UnifiedBlockTree
from trtkv.common import CACHED_BLOCKS_ROOT_ID, PLACEHOLDER_BLOCK_ID
from trtkv.errors import LogicError
from trtkv.keys.block_key import BlockKey
from trtkv.keys.packed_key import PackedKey
from trtkv.records.kv_cache_index import NULL_INDEX, get_slot, make_index


def key(*tokens: int) -> PackedKey:
    return BlockKey(tokens).packed


def make_chain(*blocks: KVCacheBlock) -> UnifiedBlockTree:
    """A tree with these blocks one below the other, in plain nodes."""
    tree = UnifiedBlockTree()
    create_root_block(0).set_as_root(tree.root)
    nodes = tree.insert_nodes([key(index) for index in range(len(blocks))])
    for node, block in zip(nodes, blocks, strict=True):
        block.attach_to_lookup_node(node)
    return tree


def test_new_block_is_free_empty_and_detached() -> None:
    block = KVCacheBlock(3, 3)
    assert (block.block_id, block.memory_pool_block_index, block.is_primary) == (3, 3, True)
    assert not any([block.has_refs, block.is_shared, block.is_full, block.has_tokens, block.is_placeholder])
    assert block.is_detached
    assert block.is_leaf
    assert (block.hash, block.block_key, block.prev_block, block.prev_block_in_seq) == (0, b"", None, None)
    assert block.next_blocks == []
    assert "id=3, refs=0, attached=False" in repr(block)


def test_slots_are_exchanged_with_their_level() -> None:
    first, second = KVCacheBlock(0, 0), KVCacheBlock(9, make_index(4, level=1))
    first.swap_memory_pool_block_offset(second)
    assert (first.is_primary, get_slot(first.memory_pool_block_index)) == (False, 4)
    assert (second.is_primary, get_slot(second.memory_pool_block_index)) == (True, 0)
    assert (first.block_id, second.block_id) == (0, 9)


def test_references_are_counted_and_never_fall_below_zero() -> None:
    block = KVCacheBlock(0, 0)
    block.inc_ref_count()
    assert block.has_refs
    assert not block.is_shared
    block.inc_ref_count()
    assert block.is_shared
    block.dec_ref_count()
    block.dec_ref_count()
    with pytest.raises(LogicError, match="block 0 has no reference to drop"):
        block.dec_ref_count()


def test_cached_block_is_shared_even_with_one_holder() -> None:
    block = KVCacheBlock(0, 0)
    block.inc_ref_count()
    make_chain(block)
    assert block.is_shared


def test_retention_is_what_was_set_last() -> None:
    block = KVCacheBlock(0, 0)
    assert block.priority == 35
    block.priority = 60
    assert block.priority == 60


# -- key and hash -----------------------------------------------------------------------------------


def test_hash_keeps_the_value_of_the_moment_it_was_set() -> None:
    first, second = KVCacheBlock(0, 0), KVCacheBlock(1, 1)
    first.set_block_key(key(1, 2), is_full=True)
    first.compute_hash()
    second.prev_block_in_seq = first
    second.set_block_key(key(3, 4), is_full=True)
    second.compute_hash()
    expected = BlockKey((3, 4)).hash(BlockKey((1, 2)).hash())
    first.set_block_key(key(9, 9), is_full=True)
    first.compute_hash()
    second.set_block_key(key(8, 8), is_full=False)
    assert second.hash == expected
    assert first.hash == BlockKey((9, 9)).hash()


def test_hash_of_a_number_is_the_number() -> None:
    block = KVCacheBlock(0, 0)
    block.hash_link = 99
    assert block.hash == 99


def test_key_of_constraints_alone_has_no_tokens() -> None:
    block = KVCacheBlock(0, 0)
    block.set_block_key(BlockKey((), None, 5).packed, is_full=False)
    assert not block.has_tokens
    block.set_block_key(BlockKey((1,), None, 5).packed, is_full=False)
    assert block.has_tokens


# -- tree -------------------------------------------------------------------------------------------


def test_neighbours_in_the_tree_are_blocks_of_the_same_window() -> None:
    first, second, other = KVCacheBlock(0, 0), KVCacheBlock(1, 1), ChannelBlock(0, 0, channel=1)
    tree = make_chain(first, second)
    other.attach_to_lookup_node(tree.insert_nodes([key(0), key(7)])[-1])
    assert first.next_blocks == [second]
    assert second.prev_block is first
    assert first.prev_block is not None
    assert first.prev_block.block_id == CACHED_BLOCKS_ROOT_ID
    assert other.prev_block is None
    assert not first.is_leaf
    assert second.is_leaf


def test_leaf_means_no_node_below_of_any_window() -> None:
    first = KVCacheBlock(0, 0)
    tree = make_chain(first)
    ChannelBlock(5, 5, channel=1).attach_to_lookup_node(tree.insert_nodes([key(0), key(7)])[-1])
    assert first.next_blocks == []
    assert not first.is_leaf
    with pytest.raises(LogicError, match="block 0 is not a leaf"):
        first.free_leaf_block()


def test_attaching_moves_a_block_and_prunes_what_it_left() -> None:
    block = KVCacheBlock(0, 0)
    tree = make_chain(block)
    block.attach_to_lookup_node(tree.root.insert_node(key(5)))
    assert tree.count_number_of_nodes() == 1
    assert tree.lookup_block([key(5)], 0, False) is block


def test_taken_slot_is_not_overwritten() -> None:
    first = KVCacheBlock(0, 0)
    tree = make_chain(first)
    with pytest.raises(LogicError, match="block 1: the node holds another block"):
        KVCacheBlock(1, 1).attach_to_lookup_node(tree.lookup_nodes([key(0)])[0])


def test_block_takes_the_place_of_another() -> None:
    first, second = KVCacheBlock(0, 0), KVCacheBlock(1, 1)
    tree = make_chain(first)
    second.replace_at_lookup_node(first)
    assert first.is_detached
    assert tree.lookup_block([key(0)], 0, False) is second
    with pytest.raises(LogicError, match="block 0 is not in the tree"):
        second.replace_at_lookup_node(first)


def test_block_that_takes_a_place_leaves_the_one_it_had() -> None:
    first, second = KVCacheBlock(0, 0), KVCacheBlock(1, 1)
    tree = make_chain(first)
    second.attach_to_lookup_node(tree.root.insert_node(key(5)))
    second.replace_at_lookup_node(first)
    assert tree.count_number_of_nodes() == 1
    assert tree.lookup_block([key(0)], 0, False) is second


def test_leaf_is_freed_alone() -> None:
    block = KVCacheBlock(0, 0)
    tree = make_chain(block)
    block.free_leaf_block()
    assert block.is_detached
    assert tree.count_number_of_nodes() == 0


def test_detaching_twice_is_nothing() -> None:
    block = KVCacheBlock(0, 0)
    tree = make_chain(block)
    block.detach_from_lookup_node()
    block.detach_from_lookup_node()
    assert tree.count_number_of_nodes() == 0


# -- a block as its own node ------------------------------------------------------------------------


def hang(tree: UnifiedBlockTree, block: KVCacheBlock, *path: PackedKey) -> None:
    """Attach a block at a new node: as the node itself."""
    nodes = tree.lookup_nodes(path[:-1])
    assert len(nodes) == len(path) - 1
    block.set_block_key(path[-1], is_full=True)
    block.become_node()
    (nodes[-1] if nodes else tree.root).link_node(block)


def test_block_serves_as_its_own_node() -> None:
    tree = UnifiedBlockTree()
    first, second = KVCacheBlock(0, 0), KVCacheBlock(1, 1)
    hang(tree, first, key(1))
    hang(tree, second, key(1), key(2))
    assert tree.lookup_nodes([key(1), key(2)]) == [first, second]
    assert (first.lookup_node, second.prev_block, first.next_blocks) == (first, first, [second])
    second.detach_from_lookup_node()
    assert first.is_leaf
    first.detach_from_lookup_node()
    assert not tree.root.has_children


def test_block_gives_way_to_a_plain_node_when_a_second_child_comes() -> None:
    tree = UnifiedBlockTree()
    blocks = [KVCacheBlock(index, index) for index in range(3)]
    hang(tree, blocks[0], key(1))
    hang(tree, blocks[1], key(1), key(2))
    hang(tree, blocks[2], key(1), key(3))
    assert blocks[0].lookup_node is not blocks[0]
    assert blocks[0].next_blocks == [blocks[2], blocks[1]]
    assert all(block.prev_block is blocks[0] for block in blocks[1:])


def test_block_gives_way_when_it_is_evicted_above_a_child() -> None:
    tree = UnifiedBlockTree()
    first, second = KVCacheBlock(0, 0), KVCacheBlock(1, 1)
    hang(tree, first, key(1))
    hang(tree, second, key(1), key(2))
    first.detach_from_lookup_node()
    assert second.prev_block is None
    assert tree.lookup_blocks_at_all_positions([key(1), key(2)], 0) == [None, second]
    hang(tree, first, key(9))  # the evicted block can be used anew
    assert tree.lookup_block([key(9)], 0, False) is first


def test_new_key_of_a_block_leaves_its_node_where_it_is() -> None:
    tree = UnifiedBlockTree()
    first, second = KVCacheBlock(0, 0), KVCacheBlock(1, 1)
    hang(tree, first, key(1))
    hang(tree, second, key(1), key(2))
    first.set_block_key(key(7), is_full=False)
    assert tree.lookup_blocks_at_all_positions([key(1), key(2)], 0) == [first, second]
    assert tree.lookup_block([key(7)], 0, False) is None
    assert first.block_key == key(7)
    second.detach_from_lookup_node()
    first.detach_from_lookup_node()
    assert not tree.root.has_children


def test_block_replaces_one_that_serves_as_its_own_node() -> None:
    tree = UnifiedBlockTree()
    first, second = KVCacheBlock(0, 0), KVCacheBlock(1, 1)
    hang(tree, first, key(1))
    second.replace_at_lookup_node(first)
    first.set_block_key(key(5), is_full=True)
    assert tree.lookup_block([key(1)], 0, False) is second
    assert first.is_detached


def test_nodes_of_a_path_stay_valid_while_one_of_them_gives_way() -> None:
    tree = UnifiedBlockTree()
    hang(tree, KVCacheBlock(0, 0), key(1))
    hang(tree, KVCacheBlock(1, 1), key(1), key(2))
    nodes = tree.insert_nodes([key(1), key(3)])
    assert nodes == tree.lookup_nodes([key(1), key(3)])
    assert nodes[1].parent is nodes[0]


def test_tree_of_blocks_as_nodes_is_the_tree_of_plain_nodes() -> None:
    """Random insertions and evictions, once with each kind of node."""
    rng = random.Random(5)
    plain, own = UnifiedBlockTree(), UnifiedBlockTree()
    present: dict[tuple[PackedKey, ...], tuple[KVCacheBlock, KVCacheBlock]] = {}
    for step in range(2500):
        path = tuple(key(rng.randrange(3)) for _ in range(rng.randint(1, 4)))
        if path in present:
            for block in present.pop(path):
                block.detach_from_lookup_node()
        else:
            pair = KVCacheBlock(step, step), KVCacheBlock(step, step)
            pair[0].attach_to_lookup_node(plain.insert_nodes(path)[-1])
            if len(own.lookup_nodes(path)) == len(path) - 1:
                hang(own, pair[1], *path)
            else:
                pair[1].attach_to_lookup_node(own.insert_nodes(path)[-1])
            present[path] = pair
        assert own.count_number_of_nodes() == plain.count_number_of_nodes()
        probe = [key(rng.randrange(3)) for _ in range(4)]
        found = [
            [None if block is None else block.block_id for block in tree.lookup_blocks_at_all_positions(probe, 0)]
            for tree in (plain, own)
        ]
        assert found[0] == found[1]
    for blocks in present.values():
        assert [sorted(b.block_id for b in block.next_blocks) for block in blocks[:1]] == [
            sorted(b.block_id for b in blocks[1].next_blocks)
        ]


# -- placeholders and roots -------------------------------------------------------------------------


def test_placeholders_have_no_memory() -> None:
    placeholder = PlaceholderBlock(-2)
    assert placeholder.is_placeholder
    assert placeholder.memory_pool_block_index == NULL_INDEX
    assert create_swa_placeholder().block_id == PLACEHOLDER_BLOCK_ID


def test_root_block_stands_at_the_root_of_its_window() -> None:
    tree = UnifiedBlockTree()
    roots = [create_root_block(channel) for channel in (0, 1)]
    for root in roots:
        root.set_as_root(tree.root)
    assert [tree.root.get_value(channel) for channel in (0, 1)] == roots
    assert roots[0].hash == 0
