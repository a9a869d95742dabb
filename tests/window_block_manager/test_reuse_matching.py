"""What counts as a hit: walks through the tree that change nothing."""

from __future__ import annotations

import random

import pytest

from tests.builders import TOKENS_PER_BLOCK, make_kv_cache_manager
from tests.snapshot import take_snapshot
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import MAX_INT32, PLACEHOLDER_BLOCK_ID
from trtkv.keys.block_key import BlockKey
from trtkv.keys.packed_key import PackedKey
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.window_block_manager.reuse_matching import ReuseMatcher, ReuseMatches


def key(*tokens: int) -> PackedKey:
    return BlockKey(tokens).packed


A, B, C, D = key(1, 1, 1, 1), key(2, 2, 2, 2), key(3, 3, 3, 3), key(4, 4, 4, 4)


class Cache:
    """A window with blocks at chosen places of the tree."""

    def __init__(self, window: int = 64, **options: object) -> None:
        self.manager: KVCacheManager = make_kv_cache_manager(16, window=window, **options)
        self.window = self.manager.block_manager.window_block_managers[window]
        self.matcher: ReuseMatcher = self.window.matcher
        self._next_id = 0

    def put(self, *path: PackedKey, is_held: bool = False) -> KVCacheBlock:
        """A cached block at the end of a path; positions before it may stay without a block."""
        block = self.window.get_block_by_id(self._next_id)
        self._next_id += 1
        block.attach_to_lookup_node(self.matcher.tree.insert_nodes(path)[-1])
        block.set_block_key(path[-1], len(BlockKey.unpack(path[-1]).tokens) == TOKENS_PER_BLOCK)
        if is_held:
            block.inc_ref_count()
        return block

    def find(self, *keys: PackedKey, partial: bool = True, copy: bool = True, limit: int = MAX_INT32) -> ReuseMatches:
        before = take_snapshot(self.manager)
        matches = self.matcher.find_reusable_block_matches(keys, partial, copy, limit)
        assert take_snapshot(self.manager) == before
        return matches


def summary(matches: ReuseMatches) -> tuple[list[int], int, int]:
    """Ids, matched tokens, and tokens of the last block if it matched in part (else 0)."""
    ids = [block.block_id for block in matches.blocks]
    return ids, matches.total_matched_tokens, matches.num_partial_tokens if matches.is_partial else 0


# -- full attention ---------------------------------------------------------------------------------


def test_whole_blocks_match_as_far_as_they_are_cached() -> None:
    cache = Cache()
    cache.put(A)
    cache.put(A, B)
    assert summary(cache.find(A, B, C)) == ([0, 1], 8, 0)
    assert summary(cache.find(B)) == ([], 0, 0)
    assert summary(cache.find()) == ([], 0, 0)


def test_walk_stops_at_a_hole_without_trying_neighbours() -> None:
    cache = Cache()
    cache.put(A)
    cache.put(A, B, C)  # nothing at A, B
    cache.put(A, key(2, 2, 2, 9))
    assert summary(cache.find(A, B, C)) == ([0], 4, 0)


def test_longest_shared_beginning_matches_in_part() -> None:
    cache = Cache()
    cache.put(A)
    cache.put(A, key(2, 2, 9, 9))
    cache.put(A, key(2, 9, 9, 9))
    assert summary(cache.find(A, B)) == ([0, 1], 6, 2)
    assert summary(cache.find(A, B, partial=False)) == ([0], 4, 0)
    assert summary(cache.find(A, key(2, 2))) == ([0, 1], 6, 2)


def test_shorter_key_inside_a_longer_one_is_a_partial_match() -> None:
    cache = Cache()
    cache.put(A)
    assert summary(cache.find(key(1, 1, 1))) == ([0], 3, 3)
    assert summary(cache.find(key(1, 1, 1), partial=False)) == ([], 0, 0)


def test_exact_match_of_a_partly_filled_block_counts_as_partial() -> None:
    cache = Cache()
    cache.put(key(1, 1))
    assert summary(cache.find(key(1, 1))) == ([0], 2, 2)


@pytest.mark.parametrize("window", [64, 8])
def test_exact_match_of_a_partly_filled_block_follows_the_settings(window: int) -> None:
    cache = Cache(window=window)
    cache.put(A)
    cache.put(A, key(2, 2))
    assert summary(cache.find(A, key(2, 2), copy=False)) == ([0, 1], 6, 2)  # an idle leaf is taken over
    assert summary(cache.find(A, key(2, 2), partial=False)) == ([0], 4, 0)
    held = Cache(window=window)
    held.put(A)
    held.put(A, key(2, 2), is_held=True)
    assert summary(held.find(A, key(2, 2))) == ([0, 1], 6, 2)
    assert summary(held.find(A, key(2, 2), copy=False)) == ([0], 4, 0)


@pytest.mark.parametrize("window", [64, 8])
def test_recorded_exact_matches_follow_no_settings(window: int) -> None:
    cache = Cache(window=window, compatibility=True)
    cache.put(key(1, 1), is_held=True)
    assert summary(cache.find(key(1, 1), partial=False, copy=False)) == ([0], 2, 2)


@pytest.mark.parametrize(("is_held", "has_child"), [(True, False), (False, True)])
def test_without_copying_only_a_free_leaf_matches_in_part(is_held: bool, has_child: bool) -> None:
    cache = Cache()
    cache.put(key(1, 1, 1, 9), is_held=is_held)
    if has_child:
        cache.put(key(1, 1, 1, 9), B)
    cache.put(key(1, 1, 9, 9))
    best, second = cache.find(A), cache.find(A, copy=False)
    assert summary(best)[1:] == (3, 3)
    assert summary(second)[1:] == (2, 2)


def test_candidate_without_a_block_of_the_window_is_passed_over() -> None:
    cache = Cache()
    cache.put(key(1, 1, 1, 9), B)  # a node without a block of its own
    cache.put(key(1, 9, 9, 9))
    assert summary(cache.find(A)) == ([1], 1, 1)


def test_empty_key_ends_the_walk() -> None:
    cache = Cache(window=8)
    cache.put(A)
    assert summary(cache.find(A, b"", B)) == ([0], 4, 0)


def test_step_beyond_the_limit_is_dropped_whole() -> None:
    cache = Cache()
    cache.put(A)
    cache.put(A, B)
    assert summary(cache.find(A, B, limit=8)) == ([0, 1], 8, 0)
    assert summary(cache.find(A, B, limit=7)) == ([0], 4, 0)
    assert summary(cache.find(A, key(2, 2, 9), limit=6)) == ([0, 1], 6, 2)
    assert summary(cache.find(A, key(2, 2, 9), limit=5)) == ([0], 4, 0)


def walk_plainly(cache: Cache, keys: list[PackedKey], partial: bool, copy: bool, limit: int) -> ReuseMatches:
    """What a full-attention window finds, one key after the other."""
    result, node, tokens = ReuseMatches(), cache.matcher.tree.root, 0
    for each in keys:
        found = cache.matcher.find_child_block(node, each, partial, copy)
        if found is None or tokens + found[0] > limit:
            break
        matched, block = found
        may_copy = copy or (not block.has_refs and block.is_leaf)
        if block.block_key == each and not block.is_full and not (partial and may_copy):
            break
        tokens += matched
        result.blocks.append(block)
        result.is_partial = matched < TOKENS_PER_BLOCK
        result.num_partial_tokens = matched
        if block.block_key != each:
            break
        assert block.lookup_node is not None
        node = block.lookup_node
    result.total_matched_tokens = tokens
    return result


def test_hot_walk_finds_what_a_plain_walk_finds() -> None:
    rng = random.Random(3)
    full = [A, B, key(1, 1, 1, 2), key(2, 9, 9, 9)]
    last = [*full, key(1, 1), key(2, 2, 2)]  # only the last key of a list may be short
    for _ in range(300):
        cache = Cache()
        for _ in range(rng.randrange(9)):
            path = [*(rng.choice(full) for _ in range(rng.randint(0, 2))), rng.choice(last)]
            nodes = cache.matcher.tree.lookup_nodes(path)
            if len(nodes) < len(path) or nodes[-1].get_value(0) is None:
                cache.put(*path, is_held=rng.random() < 0.4)
        search = [*(rng.choice(full) for _ in range(rng.randint(0, 3))), rng.choice(last)]
        partial, copy, limit = rng.random() < 0.7, rng.random() < 0.5, rng.choice([MAX_INT32, rng.randint(0, 16)])
        found = cache.matcher.find_reusable_block_matches(search, partial, copy, limit)
        assert summary(found) == summary(walk_plainly(cache, search, partial, copy, limit))


# -- sliding windows --------------------------------------------------------------------------------


def test_sliding_window_passes_holes_that_lie_outside_of_it() -> None:
    cache = Cache(window=4)
    cache.put(A)
    cache.put(A, B, C)
    matches = cache.find(A, B, C, D)
    assert summary(matches) == ([0, PLACEHOLDER_BLOCK_ID, 1], 12, 0)
    assert not matches.is_partial


def test_prefix_is_safe_only_a_whole_window_behind_its_last_hole() -> None:
    cache = Cache(window=5)
    cache.put(A)
    cache.put(A, B, C)
    assert summary(cache.find(A, B, C)) == ([0], 4, 0)  # twelve tokens, the hole ends at eight
    cache.put(A, B, C, D)
    assert summary(cache.find(A, B, C, D)) == ([0, PLACEHOLDER_BLOCK_ID, 1, 2], 16, 0)


def test_partial_match_behind_a_hole_counts_if_it_reaches_far_enough() -> None:
    cache = Cache(window=5)
    cache.put(A)
    cache.put(A, B, C)
    cache.put(A, B, C, D)
    assert summary(cache.find(A, B, C, key(4, 9))) == ([0, PLACEHOLDER_BLOCK_ID, 1, 2], 13, 1)
    cache = Cache(window=6)
    cache.put(A)
    cache.put(A, B, C)
    cache.put(A, B, C, D)
    assert summary(cache.find(A, B, C, key(4, 9))) == ([0], 4, 0)


def test_hole_at_the_end_is_no_match() -> None:
    cache = Cache(window=4)
    cache.put(A)
    cache.put(A, B, C)
    assert summary(cache.find(A, B)) == ([0], 4, 0)


# -- other walks ------------------------------------------------------------------------------------


def test_search_needs_all_keys_and_may_match_the_last_in_part() -> None:
    cache = Cache(enable_partial_reuse=False)
    first, second = cache.put(A), cache.put(A, B)
    search = cache.matcher.search_reuse_tree
    assert search([A]) is first
    assert search([A, B]) is second
    assert search([A, key(2, 2)]) is second
    assert search([A, C]) is None
    assert search([A, B, C]) is None
    assert search([]) is search([b""]) is cache.matcher.root_block


def test_search_does_not_end_on_a_position_without_a_block() -> None:
    cache = Cache(window=4)
    cache.put(A)
    cache.put(A, B, C)
    assert cache.matcher.search_reuse_tree([A, B]) is None


def test_child_of_a_node_is_found_exactly_or_in_part() -> None:
    cache = Cache()
    block = cache.put(A)
    root = cache.matcher.tree.root
    assert cache.matcher.find_child_block(root, A, False, False) == (4, block)
    assert cache.matcher.find_child_block(root, key(1, 1, 9), True, True) == (2, block)
    assert cache.matcher.find_child_block(root, key(1, 1, 9), False, True) is None
    assert cache.matcher.find_child_block(root, B, True, True) is None
    cache.put(B, C)
    assert cache.matcher.find_child_block(root, B, True, True) is None


def test_list_of_cached_blocks_has_ancestors_first() -> None:
    cache = Cache()
    blocks = [cache.put(A), cache.put(A, B), cache.put(A, B, C), cache.put(D)]
    listed = cache.matcher.list_blocks()
    assert sorted(block.block_id for block in listed) == [0, 1, 2, 3]
    assert [block for block in listed if block is not blocks[3]] == blocks[:3]
