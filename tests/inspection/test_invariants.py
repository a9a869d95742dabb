"""Each rule of docs/invariants.md is broken by hand and reported under its number."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import (
    add,
    decode,
    make_kv_cache_manager,
    make_linear_attention,
    make_request,
    prefill,
    serve,
)
from tests.fake_clock import FakeClock
from trtkv.blocks.generation_request import SequenceWindow
from trtkv.blocks.kv_cache_block import KVCacheBlock, LookupNode
from trtkv.blocks.radix_block_tree import UnifiedBlockTree
from trtkv.common import RECURRENT_STATES
from trtkv.errors import LogicError
from trtkv.inspection.invariants import check_invariants, find_violations
from trtkv.keys.block_key import BlockKey
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest
from trtkv.records.retention_config import KvCacheRetentionConfig, TokenRangeRetentionConfig
from trtkv.window_block_manager import WindowBlockManager


class World:
    """A manager with one live sequence (9 tokens in blocks of 4) and cached blocks of an earlier one."""

    def __init__(self, num_secondary_blocks: int = 2, **options: object) -> None:
        self.clock = FakeClock()
        self.manager: KVCacheManager = make_kv_cache_manager(12, num_secondary_blocks, clock=self.clock, **options)
        retention = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 60, duration_ms=50)])
        serve(self.manager, make_request(1, [7, 7, 7, 7, 8, 8, 8, 8, 9], kv_cache_retention_config=retention))
        self.request: LlmRequest = prefill(self.manager, make_request(2, 9))

    @property
    def window(self) -> WindowBlockManager:
        return next(reversed(self.manager.block_manager.window_block_managers.values()))

    @property
    def record(self) -> SequenceWindow:
        return self.window.sequences.allocated_blocks_per_seq[2]

    @property
    def held(self) -> KVCacheBlock:
        """A cached block that the live sequence holds."""
        return self.record.held[0]

    @property
    def free(self) -> KVCacheBlock:
        """A cached block that nobody holds."""
        return next(b for b in self.window.block_objects() if not b.has_refs and b.lookup_node is not None)

    def violations(self, **options: object) -> list[str]:
        return find_violations(self.manager, {2: self.request}, **options)


def numbers(violations: list[str]) -> set[int]:
    return {int(text.split(":")[0]) for text in violations}


def test_healthy_manager_has_no_violation() -> None:
    world = World()
    assert world.violations() == []
    check_invariants(world.manager)


# -- the breakages, each with the rules it must be reported under -----------------------------------


def tell_wrong_id(world: World) -> None:
    world.held.block_id = 11


def give_slot_twice(world: World) -> None:
    world.free.memory_pool_block_index = world.held.memory_pool_block_index


def count_reference_too_many(world: World) -> None:
    world.held.ref_count += 1


def count_reference_too_few(world: World) -> None:
    world.held.ref_count -= 1


def queue_held_block(world: World) -> None:
    world.held.ref_count = 0
    world.window.eviction_policy.release_block(world.held)
    world.held.ref_count = 1


def queue_block_twice(world: World) -> None:
    block = world.free
    block.free_queue = None
    world.window.eviction_policy.release_block(block)
    world.window.eviction_policy.levels()[0].default.append([block])


def let_a_block_that_nobody_finds_wait(world: World) -> None:
    lost = world.free
    lost.detach_from_lookup_node()


def lose_free_block(world: World) -> None:
    world.window.eviction_policy.claim_block(world.free)


def change_priority_of_queued_block(world: World) -> None:
    world.free.priority = 3


def change_level_of_queued_block(world: World) -> None:
    world.free.swap_memory_pool_block_offset(world.window.get_block_by_id(13))


def miscount_free_blocks(world: World) -> None:
    world.window.eviction_policy.levels()[0].num_free += 1


def hold_block_that_waits_for_expiry(world: World) -> None:
    block_id, _ = world.window.eviction_policy.expiring()[0]
    block = world.window.get_block_by_id(block_id)
    block.free_queue.discard([block])
    block.free_queue = None


def take_duration_of_waiting_block(world: World) -> None:
    world.window.eviction_policy._durations.by_block.clear()


def file_expiry_under_wrong_time(world: World) -> None:
    block_id, _ = world.window.eviction_policy.expiring()[0]
    durations = world.window.eviction_policy._durations
    block = world.window.get_block_by_id(block_id)
    durations._expiry_keys[block] = (5, durations._expiry_keys[block][1])


def attach_block_to_two_nodes(world: World) -> None:
    root = world.manager.block_manager.lookup_tree.root
    root.insert_node(BlockKey((1, 2)).packed).try_set_value(0, world.free)


def detach_block_on_one_side(world: World) -> None:
    world.free.lookup_node = None


def put_foreign_block_into_tree(world: World) -> None:
    stranger = KVCacheBlock(3, 3)
    stranger.attach_to_lookup_node(world.manager.block_manager.lookup_tree.root.insert_node(BlockKey((1, 2)).packed))


def use_channel_of_no_window(world: World) -> None:
    world.manager.block_manager.lookup_tree.root.insert_node(BlockKey((1, 2)).packed).try_set_value(5, world.free)


def leave_block_in_other_tree(world: World) -> None:
    world.free.attach_to_lookup_node(UnifiedBlockTree().root.insert_node(world.free.block_key))


def forget_parent(world: World) -> None:
    node = next(iter(world.manager.block_manager.lookup_tree.root.ordered_children()))
    node.parent = LookupNode(b"", None)


def file_child_under_wrong_key(world: World) -> None:
    root = world.manager.block_manager.lookup_tree.root
    key = next(iter(root.children))
    root.children[BlockKey((5, 5, 5, 5)).packed] = root.children.pop(key)


def forget_child_in_index(world: World) -> None:
    root = world.manager.block_manager.lookup_tree.root
    list(root.find_partial_matches(BlockKey((1, 9)).packed))
    root.children.index.discard(next(iter(root.children)))


def leave_empty_node(world: World) -> None:
    world.manager.block_manager.lookup_tree.root.insert_node(BlockKey((1, 2)).packed)


def change_key_of_attached_block(world: World) -> None:
    world.held.set_block_key(BlockKey((1, 2, 3, 5)).packed, is_full=True)


def change_full_flag(world: World) -> None:
    world.held.is_full = False


def change_hash(world: World) -> None:
    world.held.hash_link = 12345


def forget_record(world: World) -> None:
    del world.window.sequences.allocated_blocks_per_seq[2]


def exchange_record(world: World) -> None:
    other = SequenceWindow(1)
    other.held, other.block_ids, other.slots = world.record.held, world.record.block_ids, world.record.slots
    world.window.sequences.allocated_blocks_per_seq[2] = other


def show_wrong_id(world: World) -> None:
    world.record.block_ids[0][1] = 9


def show_one_id_less(world: World) -> None:
    world.record.block_ids[0].pop()


def remove_front_of_full_attention(world: World) -> None:
    world.record.num_front_blocks_removed = 1


def hold_block_too_many(world: World) -> None:
    world.manager.get_sequence(2).num_tokens = 8


def hold_block_too_few(world: World) -> None:
    world.manager.get_sequence(2).num_tokens = 13


def offload_held_block(world: World) -> None:
    world.manager.block_manager.get_window_block_manager(64).claimer.offload_block(world.held)


def count_more_new_than_all(world: World) -> None:
    world.window.counters.alloc_new = world.window.counters.alloc_total + 1


def count_reuse_without_kind(world: World) -> None:
    world.window.counters.reused += 1


def let_counter_fall(world: World) -> None:
    world.manager.get_iteration_stats()
    world.window.counters.missed -= 1


def hold_block_for_nobody(world: World) -> None:
    world.manager.remove_sequence(2)
    world.window.eviction_policy.claim_block(world.free)
    block = next(b for b in world.window.block_objects() if b.free_queue is None)
    block.ref_count = 1


def forget_priority(world: World) -> None:
    world.window.eviction_policy.levels()[0]._used_priorities &= ~(1 << 60)


def change_tokens_of_request(world: World) -> None:
    world.request.get_tokens()[1] = 77


def change_salt_of_request(world: World) -> None:
    world.request.cache_salt = "other"


def keep_more_than_sequence_has(world: World) -> None:
    world.manager.get_sequence(2).num_tokens = 7
    world.record.held.pop().ref_count -= 1
    world.record.block_ids[0].pop()


def write_wrong_table_entry(world: World) -> None:
    world.record.slots[0][1] = 0


def keep_table_entry_of_dropped_block(world: World) -> None:
    world.record.slots[0].append(0)


BREAKAGES: list[tuple[Callable[[World], None], set[int]]] = [
    (tell_wrong_id, {1}),
    (give_slot_twice, {2}),
    (count_reference_too_many, {3}),
    (count_reference_too_few, {3, 4}),
    (queue_held_block, {4}),
    (queue_block_twice, {4}),
    (lose_free_block, {4, 6}),
    (let_a_block_that_nobody_finds_wait, {26}),
    (change_priority_of_queued_block, {5}),
    (change_level_of_queued_block, {5}),
    (miscount_free_blocks, {6}),
    (hold_block_that_waits_for_expiry, {7}),
    (take_duration_of_waiting_block, {7}),
    (file_expiry_under_wrong_time, {7}),
    (attach_block_to_two_nodes, {8}),
    (detach_block_on_one_side, {8}),
    (put_foreign_block_into_tree, {8}),
    (use_channel_of_no_window, {8}),
    (leave_block_in_other_tree, {8}),
    (forget_parent, {9}),
    (file_child_under_wrong_key, {9}),
    (forget_child_in_index, {9}),
    (leave_empty_node, {10}),
    (change_key_of_attached_block, {11}),
    (change_full_flag, {11}),
    (change_hash, {12}),
    (forget_record, {13}),
    (exchange_record, {13}),
    (show_wrong_id, {14}),
    (show_one_id_less, {14}),
    (remove_front_of_full_attention, {14}),
    (hold_block_too_many, {15}),
    (hold_block_too_few, {15}),
    (offload_held_block, {17, 24}),
    (count_more_new_than_all, {18}),
    (count_reuse_without_kind, {18}),
    (let_counter_fall, {18}),
    (hold_block_for_nobody, {19}),
    (forget_priority, {22}),
    (change_tokens_of_request, {23}),
    (change_salt_of_request, {23}),
    (keep_more_than_sequence_has, {23}),
    (write_wrong_table_entry, {24}),
    (keep_table_entry_of_dropped_block, {25}),
]


@pytest.mark.parametrize(("break_it", "expected"), BREAKAGES, ids=[function.__name__ for function, _ in BREAKAGES])
def test_broken_rule_is_reported_under_its_number(break_it: Callable[[World], None], expected: set[int]) -> None:
    world = World()
    break_it(world)
    found = world.violations()
    assert expected <= numbers(found), found


def test_window_that_lost_a_block_in_use_is_reported() -> None:
    world = World(window=8)
    decode(world.manager, world.request, [5] * 8)
    assert world.violations() == []
    world.manager.get_sequence(2).num_tokens -= 3
    world.record.held.pop().ref_count -= 1
    world.record.block_ids[0].pop()
    assert 16 in numbers(world.violations())
    assert 16 not in numbers(world.violations(rewound=[2]))


def test_placeholder_with_a_slot_is_reported() -> None:
    manager = make_kv_cache_manager(
        windows={64: (12, 0), RECURRENT_STATES: (8, 0)},
        linear_attention_metadata=make_linear_attention(),
        enable_partial_reuse=False,
    )
    add(manager, make_request(2, 13))
    assert find_violations(manager) == []
    placeholder = manager.block_manager.window_block_managers[RECURRENT_STATES].get_block_by_id(-2)
    assert placeholder.is_placeholder
    placeholder.memory_pool_block_index = 1
    assert "2" in {text.split(":")[0] for text in find_violations(manager)}


def test_pins_that_the_caller_knows_replace_the_record() -> None:
    world = World()
    world.manager.pin_blocks(2)
    held = [block.block_id for block in world.record.held]
    assert world.violations() == []
    assert world.violations(pins={64: dict.fromkeys(held, 1)}) == []
    assert numbers(world.violations(pins={})) == {3}


def test_requests_that_are_not_named_are_not_compared_with_the_tree() -> None:
    world = World()
    world.request.get_tokens()[1] = 77
    assert find_violations(world.manager) == []


def test_all_violations_are_raised_together_with_their_numbers() -> None:
    world = World()
    world.held.is_full = False
    world.record.slots[0][1] = 0
    with pytest.raises(LogicError, match=r"(?s)2 invariants are broken.*11: window 64.*24: window 64"):
        check_invariants(world.manager)


def test_a_broken_ring_does_not_hold_the_checker_up() -> None:
    manager = make_kv_cache_manager(8)
    policy = manager.block_manager.window_block_managers[64].eviction_policy
    block = policy.get_fresh_blocks(0).take(1)[0]
    queue = policy.levels()[0].default
    queue.append([block])
    queue.append([block])
    assert not policy.verify_queue_integrity()
    assert "4: window 64, the queue of level 0 and priority 35 is broken" in str(find_violations(manager))


def test_checking_makes_no_block_and_changes_nothing() -> None:
    manager = make_kv_cache_manager(12, 3)
    check_invariants(manager)
    assert manager.block_manager.window_block_managers[64].block_objects() == []


def test_every_rule_of_the_page_is_broken_here_or_said_to_need_time(repository_root: Path) -> None:
    page = (repository_root / "docs" / "invariants.md").read_text(encoding="utf-8")
    rules, over_time = page.split("## Rules over time")
    numbers_of = re.compile(r"^(\d+)\. ", re.MULTILINE)
    broken = set().union(*(expected for _, expected in BREAKAGES)) | {16}
    assert {int(number) for number in numbers_of.findall(rules)} == broken
    assert {int(number) for number in numbers_of.findall(over_time)} == {20, 21, 27}
