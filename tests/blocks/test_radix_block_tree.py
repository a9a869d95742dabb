"""The tree over block keys, and the order in which the original's hash map would list its children."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trtkv.blocks.hash_map_ordered_node import HashMapOrderedNode
from trtkv.blocks.introsort import introsort
from trtkv.blocks.kv_cache_block import ChannelBlock, KVCacheBlock, LookupNode, LookupNodePtr
from trtkv.blocks.radix_block_tree import UnifiedBlockTree
from trtkv.keys.block_key import BlockKey
from trtkv.keys.key_hash import hash_block_key
from trtkv.keys.packed_key import PackedKey, num_matching_tokens


def key(*tokens: int) -> PackedKey:
    return BlockKey(tokens).packed


def put(tree: UnifiedBlockTree, block_id: int, *path: PackedKey, channel: int = 0) -> KVCacheBlock:
    block = ChannelBlock(block_id, block_id, channel)
    block.attach_to_lookup_node(tree.insert_nodes(path)[-1])
    return block


# -- looking up -------------------------------------------------------------------------------------


@pytest.mark.parametrize("hash_map_order", [False, True])
def test_block_is_found_at_the_end_of_its_prefix_only(hash_map_order: bool) -> None:
    tree = UnifiedBlockTree(hash_map_order)
    block = put(tree, 1, key(1, 2), key(3, 4))
    assert tree.lookup_block([key(1, 2), key(3, 4)], 0, False) is block
    assert tree.lookup_block([key(1, 2)], 0, False) is None
    assert tree.lookup_block([key(3, 4)], 0, False) is None
    assert tree.lookup_block([key(1, 2), key(3, 4), key(5)], 0, False) is None
    assert tree.lookup_block([], 0, False) is None
    assert tree.lookup_block([key(1, 2), key(3, 4)], 1, False) is None


@pytest.mark.parametrize("hash_map_order", [False, True])
def test_partial_lookup_takes_the_deepest_block_along_the_prefix(hash_map_order: bool) -> None:
    tree = UnifiedBlockTree(hash_map_order)
    first, second = put(tree, 1, key(1, 2)), put(tree, 2, key(1, 2), key(3, 4))
    assert tree.lookup_block([key(1, 2), key(3, 9)], 0, True) is second
    assert tree.lookup_block([key(1, 2), key(9, 9)], 0, True) is first
    assert tree.lookup_block([key(9, 9)], 0, True) is None
    assert tree.lookup_block([key(1, 2), key(3, 4)], 0, True) is second


def test_blocks_of_all_positions_have_holes_where_nothing_is() -> None:
    tree = UnifiedBlockTree()
    block = put(tree, 1, key(1), key(2))
    assert tree.lookup_blocks_at_all_positions([key(1), key(2), key(3)], 0) == [None, block, None]


def test_slot_of_a_window_is_given_once() -> None:
    tree = UnifiedBlockTree()
    first, second = KVCacheBlock(1, 1), KVCacheBlock(2, 2)
    assert tree.insert_block([key(1)], 0, first)
    assert not tree.insert_block([key(1)], 0, second)
    assert tree.insert_block([key(1)], 1, second)
    assert not tree.insert_block([], 0, second)
    assert tree.count_number_of_nodes() == 1


def test_keys_that_differ_in_constraints_have_nodes_of_their_own() -> None:
    tree = UnifiedBlockTree()
    keys = [
        BlockKey((1, 2)),
        BlockKey((1, 2), (0, 0)),
        BlockKey((1, 2), None, 0),
        BlockKey((1, 2), None, 1),
        BlockKey((1, 2), None, None, ""),
        BlockKey((1, 2), None, None, "a"),
    ]
    blocks = [put(tree, index, entry.packed) for index, entry in enumerate(keys)]
    for entry, block in zip(keys, blocks, strict=True):
        assert tree.lookup_block([entry.packed], 0, False) is block
        shorter = entry.shorten(1).packed
        assert [node.get_value(0) for _, node in tree.find_partial_matches(tree.root, shorter)] == [block]


@pytest.mark.parametrize("hash_map_order", [False, True])
def test_ties_are_counted(hash_map_order: bool) -> None:
    tree = UnifiedBlockTree(hash_map_order)
    put(tree, 1, key(1, 2))
    put(tree, 2, key(1, 3))
    put(tree, 3, key(1, 4, 5))
    list(tree.find_partial_matches(tree.root, key(1, 9)))
    list(tree.find_partial_matches(tree.root, key(1, 4, 9)))  # the longest is alone
    assert tree.take_num_ties() == 1
    assert tree.take_num_ties() == 0


def test_ties_below_the_root_are_counted_too() -> None:
    tree = UnifiedBlockTree(hash_map_order=True)
    put(tree, 1, key(7), key(1, 2))
    put(tree, 2, key(7), key(1, 3))
    list(tree.find_partial_matches(tree.lookup_nodes([key(7)])[0], key(1, 9)))
    assert tree.take_num_ties() == 1


@pytest.mark.parametrize("hash_map_order", [False, True])
def test_look_ups_with_more_than_16_candidates_are_counted(hash_map_order: bool) -> None:
    tree = UnifiedBlockTree(hash_map_order)
    for index in range(17):
        put(tree, index, key(1, index, 5))
        list(tree.find_partial_matches(tree.root, key(1, 99)))
    put(tree, 17, key(2, 99))
    assert tree.take_num_large_lookups() == 1
    list(tree.find_partial_matches(tree.root, key(1, 3, 9)))
    assert tree.take_num_large_lookups() == 1
    assert tree.take_num_large_lookups() == 0


# -- the order of the original's map ----------------------------------------------------------------


class SlowMap:
    """The hash map of the C++ library as it is built: one chain, and for each bucket the entry before its first.

    Written after the library's own structure and not after its effects, so that it can disagree with the port.
    """

    PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 103, 109,
              113, 127, 137, 139, 149, 157, 167, 179, 193, 199, 211, 227, 241, 257, 277, 293, 313, 337, 359, 383, 409,
              439, 467, 503, 541, 577, 619, 661, 709, 761, 823, 887, 953, 1031, 1109)  # fmt: skip

    def __init__(self) -> None:
        self.next: dict[object, object] = {None: None}  # None stands before the first entry and behind the last
        self.hashes: dict[object, int] = {}
        self.buckets: dict[int, object] = {}
        self.bucket_count = 1
        self.resize_at = 0

    def __iter__(self) -> Iterator[object]:
        entry = self.next[None]
        while entry is not None:
            yield entry
            entry = self.next[entry]

    def insert(self, entry: object, hash_value: int) -> None:
        size = len(self.hashes)
        if size + 1 > self.resize_at:
            least = max(size + 1, 0 if self.resize_at else 11)
            if least >= self.bucket_count:
                wanted = max(least + 1, 2 * self.bucket_count)
                self.rehash(next(prime for prime in self.PRIMES if prime >= wanted))
            self.resize_at = self.bucket_count
        self.hashes[entry] = hash_value
        self.link(entry)

    def link(self, entry: object) -> None:
        bucket = self.hashes[entry] % self.bucket_count
        if bucket in self.buckets:
            before = self.buckets[bucket]
            self.next[entry] = self.next[before]
            self.next[before] = entry
            return
        self.next[entry] = self.next[None]
        self.next[None] = entry
        follower = self.next[entry]
        if follower is not None:
            self.buckets[self.hashes[follower] % self.bucket_count] = entry
        self.buckets[bucket] = None

    def rehash(self, count: int) -> None:
        entries = list(self)
        self.bucket_count, self.buckets, self.next = count, {}, {None: None}
        for entry in entries:
            self.link(entry)

    def erase(self, entry: object) -> None:
        bucket = self.hashes[entry] % self.bucket_count
        before = self.buckets[bucket]
        while self.next[before] is not entry:
            before = self.next[before]
        follower = self.next[entry]
        next_bucket = None if follower is None else self.hashes[follower] % self.bucket_count
        if before is self.buckets[bucket]:
            if next_bucket != bucket:
                if next_bucket is not None:
                    self.buckets[next_bucket] = before
                del self.buckets[bucket]
        elif next_bucket is not None and next_bucket != bucket:
            self.buckets[next_bucket] = before
        self.next[before] = follower
        del self.next[entry], self.hashes[entry]


class OrderedChildren:
    """The port, driven like the map."""

    def __init__(self) -> None:
        self.root: LookupNodePtr = UnifiedBlockTree(hash_map_order=True).root
        self.nodes: dict[PackedKey, LookupNodePtr] = {}

    def insert(self, entry: PackedKey) -> None:
        self.nodes[entry] = self.root.insert_node(entry)
        self.nodes[entry].try_set_value(0, KVCacheBlock(len(self.nodes), 0))

    def erase(self, entry: PackedKey) -> None:
        self.nodes.pop(entry).clear_value(0)

    def order(self) -> list[PackedKey]:
        return [node.key for node in self.root.ordered_children()]


def random_changes(seed: int, num_changes: int, growth: float) -> Iterator[tuple[bool, PackedKey]]:
    """(inserted, key); the map grows as long as growth is above one half."""
    rng = random.Random(seed)
    present: list[PackedKey] = []
    for _ in range(num_changes):
        if present and rng.random() > growth:
            yield False, present.pop(rng.randrange(len(present)))
        else:
            new = key(rng.randrange(50), rng.randrange(2**31))
            if new not in present:
                present.append(new)
                yield True, new


CHANGES = [(0, 14, 1.0), (1, 70, 1.0), (2, 140, 1.0), (3, 600, 0.75), (4, 600, 0.55), (5, 1200, 0.9)]


@pytest.mark.parametrize(("seed", "num_changes", "growth"), CHANGES)
def test_children_come_in_the_order_of_the_map(seed: int, num_changes: int, growth: float) -> None:
    slow, port = SlowMap(), OrderedChildren()
    for inserted, entry in random_changes(seed, num_changes, growth):
        if inserted:
            slow.insert(entry, hash_block_key(entry))
            port.insert(entry)
        else:
            slow.erase(entry)
            port.erase(entry)
        if len(port.nodes) < 40 or len(port.nodes) % 20 == 0:
            assert port.order() == list(slow)
    assert port.order() == list(slow)


@pytest.mark.parametrize(("num_children", "bucket_count"), [(2, 13), (13, 13), (14, 29), (29, 29), (30, 59), (60, 127)])
def test_map_grows_through_the_sizes_of_the_library(num_children: int, bucket_count: int) -> None:
    slow, port = SlowMap(), OrderedChildren()
    for index in range(num_children):
        slow.insert(index, index)
        port.insert(key(index))
    port.order()
    assert isinstance(port.root, HashMapOrderedNode)
    assert port.root.order is not None
    assert port.root.order.bucket_count == slow.bucket_count == bucket_count


def test_order_does_not_depend_on_when_it_is_asked_for() -> None:
    eager, late = OrderedChildren(), OrderedChildren()
    for inserted, entry in random_changes(9, 400, 0.7):
        for port in (eager, late):
            (port.insert if inserted else port.erase)(entry)
        eager.order()
    assert eager.order() == late.order()


def test_many_changes_do_not_pile_up() -> None:
    port = OrderedChildren()
    port.insert(key(-1))
    for index in range(20_000):
        port.insert(key(index))
        port.erase(key(index))
    assert isinstance(port.root, HashMapOrderedNode)
    assert port.root.order is not None
    assert port.root.order.num_pending < 5000


@pytest.fixture(scope="module")
def list_order(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[list[int]]]:
    """Runs changes through the map of the C++ library that is installed here."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++ with the C++ library whose map is reproduced")
    program = tmp_path_factory.mktemp("map") / "hash_map_order"
    source = Path(__file__).with_name("hash_map_order.cpp")
    subprocess.run([compiler, "-std=c++17", "-O1", str(source), "-o", str(program)], check=True)

    def run(changes: str) -> list[list[int]]:
        result = subprocess.run([str(program)], input=changes, capture_output=True, text=True, check=True)
        return [[int(word) for word in line.split()] for line in result.stdout.splitlines()]

    return run


@pytest.mark.parametrize(("seed", "num_changes", "growth"), CHANGES)
def test_order_is_that_of_the_library_itself(
    seed: int, num_changes: int, growth: float, list_order: Callable[[str], list[list[int]]]
) -> None:
    port = OrderedChildren()
    ids: dict[PackedKey, int] = {}
    lines, orders = [], []
    for inserted, entry in random_changes(seed, num_changes, growth):
        number = ids.setdefault(entry, len(ids))
        lines.append(f"{'+' if inserted else '-'} {hash_block_key(entry)} {number}\n")
        (port.insert if inserted else port.erase)(entry)
        orders.append([ids[present] for present in port.order()])
    assert orders == list_order("".join(lines))


@pytest.mark.parametrize("num_children", [16, 17, 40, 200])
def test_many_candidates_come_in_the_order_of_the_originals_sort(num_children: int) -> None:
    """All that share a token are sorted together, so the short ones decide where equal long ones end up."""
    tree = UnifiedBlockTree(hash_map_order=True)
    rng = random.Random(num_children)
    for index in range(num_children):
        put(tree, index, key(1, rng.randrange(3), rng.randrange(3), 10 + index))
    looked_up = key(1, 1, 1, 1)
    in_map_order = list(tree.root.ordered_children())
    lengths = [num_matching_tokens(looked_up, child.key) for child in in_map_order]
    expected = [in_map_order[index] for index in introsort([-length for length in lengths])]
    found = list(tree.find_partial_matches(tree.root, looked_up))
    assert [child for _, child in found] == expected
    assert [length for length, _ in found] == sorted(lengths, reverse=True)
    is_stable = expected == sorted(in_map_order, key=lambda child: -num_matching_tokens(looked_up, child.key))
    assert is_stable == (num_children <= 16)


def test_plain_nodes_are_used_unless_the_order_is_asked_for() -> None:
    assert type(UnifiedBlockTree().root) is LookupNode
    assert type(UnifiedBlockTree(hash_map_order=True).root) is HashMapOrderedNode
