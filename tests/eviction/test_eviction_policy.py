"""The LRU policy with priorities: order of victims, never-used blocks, expiries, fast paths against a slow model."""

from __future__ import annotations

import random

import pytest

from tests.fake_clock import FakeClock
from trtkv.blocks.kv_cache_block import KVCacheBlock, PlaceholderBlock, create_root_block, create_swa_placeholder
from trtkv.blocks.radix_block_tree import UnifiedBlockTree
from trtkv.common import PLACEHOLDER_BLOCK_ID, PLACEHOLDER_LEVEL, PRIMARY_LEVEL, SECONDARY_LEVEL, BlockId
from trtkv.errors import LogicError, OutOfBlocksError
from trtkv.eviction.eviction_policy import WindowEvictionPolicy, get_cache_level
from trtkv.eviction.fresh_blocks import FreshBlocks
from trtkv.eviction.lru import LRU
from trtkv.eviction.recorded.eviction_policy import RecordedWindowEvictionPolicy
from trtkv.eviction.registry import DEFAULT_EVICTION, EVICTIONS
from trtkv.records.kv_cache_index import make_index


def make_policy(
    num_primary: int,
    num_secondary: int = 0,
    num_placeholders: int = 0,
    clock: FakeClock | None = None,
    threshold: int | None = None,
    eviction: str = DEFAULT_EVICTION,
    recorded: bool = False,
) -> WindowEvictionPolicy:
    """A policy whose blocks are all cached."""
    tree = UnifiedBlockTree()

    def make_block(block_id: BlockId, fresh: FreshBlocks) -> KVCacheBlock:
        if fresh.level == PLACEHOLDER_LEVEL:
            return PlaceholderBlock(block_id, 0, fresh)
        is_secondary = fresh.level == SECONDARY_LEVEL
        block = KVCacheBlock(block_id, make_index(block_id - num_primary * is_secondary, is_secondary), fresh)
        block.attach_to_lookup_node(tree.root.insert_node(block_id.to_bytes(4, "little")))
        return block

    return (RecordedWindowEvictionPolicy if recorded else WindowEvictionPolicy)(
        (num_primary, num_secondary),
        make_block,
        clock or FakeClock(),
        threshold,
        num_placeholders,
        EVICTIONS[eviction],
    )


def take(policy: WindowEvictionPolicy, level: int = PRIMARY_LEVEL) -> KVCacheBlock:
    block, _ = policy.get_free_block(level)
    policy.take_free_block(block)
    return block


def ids(policy: WindowEvictionPolicy, level: int = PRIMARY_LEVEL) -> list[tuple[int, list[BlockId]]]:
    return [(priority, found) for of_level, priority, found in policy.free_queues() if of_level == level]


# -- with every policy ------------------------------------------------------------------------------

every = pytest.mark.parametrize("eviction", list(EVICTIONS))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@every
def test_every_block_is_given_once(eviction: str, clock: FakeClock) -> None:
    policy = make_policy(5, 3, clock=clock, eviction=eviction)
    assert (policy.get_num_free_blocks(PRIMARY_LEVEL), policy.get_num_free_blocks(SECONDARY_LEVEL)) == (5, 3)
    assert {take(policy).block_id for _ in range(5)} == set(range(5))
    assert {take(policy, SECONDARY_LEVEL).block_id for _ in range(3)} == {5, 6, 7}
    for level in (PRIMARY_LEVEL, SECONDARY_LEVEL):
        assert policy.get_num_free_blocks(level) == 0
        with pytest.raises(OutOfBlocksError, match="no free block"):
            policy.get_free_block(level)


@every
def test_looking_takes_nothing(eviction: str, clock: FakeClock) -> None:
    policy = make_policy(2, 0, clock=clock, eviction=eviction)
    assert policy.get_free_block(PRIMARY_LEVEL) == policy.get_free_block(PRIMARY_LEVEL)
    assert policy.get_num_free_blocks(PRIMARY_LEVEL) == 2


@every
def test_released_block_can_be_taken_again(eviction: str, clock: FakeClock) -> None:
    policy = make_policy(1, 0, clock=clock, eviction=eviction)
    block = take(policy)
    policy.release_block(block)
    assert take(policy) is block


@every
def test_release_of_a_queued_block_is_a_fault_that_changes_nothing(eviction: str, clock: FakeClock) -> None:
    policy = make_policy(2, 0, clock=clock, eviction=eviction)
    block = take(policy)
    policy.release_block(block)
    with pytest.raises(LogicError, match="released twice"):
        policy.release_block(block)
    assert policy.get_num_free_blocks(PRIMARY_LEVEL) == 2
    assert {take(policy).block_id for _ in range(2)} == {0, 1}


@every
def test_claiming_a_block_that_is_not_queued_leaves_the_counts(eviction: str, clock: FakeClock) -> None:
    policy = make_policy(2, 0, clock=clock, eviction=eviction)
    block = take(policy)
    policy.claim_block(block, 50)
    assert policy.get_num_free_blocks(PRIMARY_LEVEL) == 1


@every
def test_block_comes_back_on_the_level_its_slot_lies_on(eviction: str, clock: FakeClock) -> None:
    policy = make_policy(1, 1, clock=clock, eviction=eviction)
    first, second = take(policy), take(policy, SECONDARY_LEVEL)
    first.swap_memory_pool_block_offset(second)
    policy.release_block(first)
    policy.release_block(second)
    assert policy.get_free_block(PRIMARY_LEVEL)[0] is second
    assert policy.get_free_block(SECONDARY_LEVEL)[0] is first


@every
def test_lower_priority_goes_first(eviction: str, clock: FakeClock) -> None:
    policy = make_policy(3, 0, clock=clock, eviction=eviction)
    blocks = [take(policy) for _ in range(3)]
    for block, priority in zip(blocks, (60, 10, 40), strict=True):
        policy.claim_block(block, priority)
        policy.release_block(block)
    taken = [take(policy) for _ in range(3)]
    if EVICTIONS[eviction].by_priority:
        assert taken == [blocks[1], blocks[2], blocks[0]]
    else:
        assert set(taken) == set(blocks)
    if eviction in ("lru", "fifo", "lfu", "arc"):  # nothing tells them apart but their age
        assert taken == blocks


@every
def test_front_of_a_queue_is_before_all_of_its_priority(eviction: str, clock: FakeClock) -> None:
    policy = make_policy(4, 0, clock=clock, eviction=eviction)
    first, second = take(policy), take(policy)
    policy.release_block(second, to_front=True)
    policy.release_block(first, to_front=True)
    assert [take(policy).block_id for _ in range(4)] == [0, 1, 2, 3]


@every
def test_queue_integrity_notices_a_held_block(eviction: str, clock: FakeClock) -> None:
    policy = make_policy(2, 0, clock=clock, eviction=eviction)
    block = take(policy)
    policy.release_block(block)
    assert policy.verify_queue_integrity()
    block.inc_ref_count()
    assert not policy.verify_queue_integrity()


@every
def test_expired_priority_falls_back_to_the_default(eviction: str, clock: FakeClock) -> None:
    policy = make_policy(2, 0, clock=clock, eviction=eviction)
    block = take(policy)
    policy.claim_block(block, 80, duration_ms=10)
    policy.release_block(block)
    clock.advance_ms(9)
    assert policy.refresh() == []
    assert block.priority == 80
    clock.advance_ms(2)
    assert policy.refresh() == [(block, 80)]
    assert block.priority == 35
    assert policy.get_num_free_blocks(PRIMARY_LEVEL) == 2
    assert policy.refresh() == []


@every
def test_claim_cancels_an_expiry(eviction: str, clock: FakeClock) -> None:
    policy = make_policy(1, 0, clock=clock, eviction=eviction)
    block = take(policy)
    policy.claim_block(block, 80, duration_ms=10)
    policy.release_block(block)
    policy.claim_block(block)
    policy.release_block(block)
    clock.advance_ms(100)
    assert policy.refresh() == []
    assert block.priority == 80


@every
def test_random_calls_lose_and_double_no_block(eviction: str, clock: FakeClock) -> None:
    rng = random.Random(11)
    policy = make_policy(9, 4, clock=clock, eviction=eviction)
    held: list[KVCacheBlock] = []
    for _ in range(3000):
        free = policy.get_num_free_blocks(PRIMARY_LEVEL) + policy.get_num_free_blocks(SECONDARY_LEVEL)
        assert free + len(held) == 13
        action = rng.randrange(5)
        level = rng.choice((PRIMARY_LEVEL, SECONDARY_LEVEL))
        if action < 2 and policy.get_num_free_blocks(level):
            block, _ = policy.get_free_block(level)
            assert block not in held
            policy.claim_block(block, rng.choice((None, 0, 35, 70)), rng.choice((None, 3)))
            held.append(block)
        elif action < 4 and held:
            policy.release_block(held.pop(rng.randrange(len(held))), to_front=rng.random() < 0.3)
        elif len(held) > 1:
            first, second = rng.sample(held, 2)
            first.swap_memory_pool_block_offset(second)
        else:
            clock.advance_ms(rng.randrange(3))
            policy.refresh()
        assert policy.verify_queue_integrity()


# -- order ------------------------------------------------------------------------------------------


def test_blocks_start_in_id_order_at_the_default_priority() -> None:
    policy = make_policy(3, 2, 2)
    assert policy.free_queues() == [(0, 35, [0, 1, 2]), (1, 35, [3, 4]), (-1, 35, [-2, -3])]


@every
def test_blocks_that_nobody_can_find_go_before_cached_ones(eviction: str, clock: FakeClock) -> None:
    """Whatever their priority, and in front of blocks that were never used."""
    policy = make_policy(6, clock=clock, eviction=eviction)
    cached, low, lost, left = (take(policy) for _ in range(4))
    lost.detach_from_lookup_node()
    for block, priority in ((cached, 35), (lost, 90), (low, 0), (left, 80)):
        policy.claim_block(block, priority, duration_ms=5)
        policy.release_block(block)
    assert policy.get_free_block(PRIMARY_LEVEL)[0] is lost
    left.detach_from_lookup_node()
    policy.requeue(left)
    policy.requeue(cached)  # is cached and stays
    assert [take(policy).block_id for _ in range(4)] == [3, 2, 4, 5]
    clock.advance_ms(10)
    assert {block.block_id for block, _ in policy.refresh()} == {1}
    assert {take(policy), take(policy)} == {cached, low}


def test_recorded_policy_keeps_to_priorities() -> None:
    policy = make_policy(3, recorded=True)
    blocks = [take(policy) for _ in range(2)]
    for block, priority in zip(blocks, (90, 10), strict=True):
        block.detach_from_lookup_node()
        policy.claim_block(block, priority)
        policy.release_block(block)
        policy.requeue(block)
    assert ids(policy) == [(10, [1]), (35, [2]), (90, [0])]
    assert [take(policy).block_id for _ in range(3)] == [1, 2, 0]


def test_recorded_policy_has_a_front_for_each_priority() -> None:
    policy = make_policy(5, recorded=True)
    blocks = [take(policy) for _ in range(4)]
    for block, priority, to_front in zip(blocks, (10, 10, 35, 80), (None, True, True, True), strict=True):
        policy.claim_block(block, priority)
        policy.release_block(block, to_front)
    assert ids(policy) == [(10, [1, 0]), (35, [2, 4]), (80, [3])]
    assert [block.block_id for block in policy.take_free_blocks(5)] == [1, 0, 2, 4, 3]


def test_longest_free_block_goes_first() -> None:
    policy = make_policy(3)
    blocks = [take(policy) for _ in range(3)]
    for index in (1, 2, 0):
        policy.release_block(blocks[index])
    assert ids(policy) == [(35, [1, 2, 0])]


def test_never_used_blocks_stand_between_front_and_back() -> None:
    policy = make_policy(5)
    blocks = [take(policy) for _ in range(3)]
    policy.release_block(blocks[0])
    policy.release_block(blocks[1], to_front=True)
    policy.release_block(blocks[2], to_front=True)
    assert ids(policy) == [(35, [2, 1, 3, 4, 0])]
    assert [take(policy).block_id for _ in range(5)] == [2, 1, 3, 4, 0]


def test_claiming_one_from_the_middle_of_the_never_used_keeps_the_order() -> None:
    policy = make_policy(6)
    block = policy.get_fresh_blocks(PRIMARY_LEVEL).get_block(3)
    policy.claim_block(block)
    assert ids(policy) == [(35, [0, 1, 2, 4, 5])]
    assert policy.get_num_free_blocks(PRIMARY_LEVEL) == 5
    assert [take(policy).block_id for _ in range(5)] == [0, 1, 2, 4, 5]


def test_placeholders_have_a_level_of_their_own() -> None:
    policy = make_policy(1, 1, 2)
    block, can_offload = policy.get_free_block(PRIMARY_LEVEL, want_placeholder=True)
    assert (block.block_id, can_offload) == (-2, False)
    policy.claim_block(block)
    assert policy.get_num_free_blocks(PLACEHOLDER_LEVEL) == 1
    policy.release_block(block)
    assert ids(policy, PLACEHOLDER_LEVEL) == [(35, [-2, -3])]  # not cached, so it goes first
    assert get_cache_level(block) == PLACEHOLDER_LEVEL


@pytest.mark.parametrize(
    ("threshold", "offloadable"), [(None, [False, True, True]), (0, [True] * 3), (101, [False] * 3)]
)
def test_victims_of_enough_priority_may_be_offloaded(threshold: int | None, offloadable: list[bool]) -> None:
    policy = make_policy(3, 1, threshold=threshold)
    blocks = [take(policy) for _ in range(3)]
    for block, priority in zip(blocks, (29, 30, 80), strict=True):
        policy.claim_block(block, priority)
        policy.release_block(block)
    found = []
    for _ in range(3):
        block, can_offload = policy.get_free_block(PRIMARY_LEVEL)
        found.append(can_offload)
        policy.claim_block(block)
    assert found == offloadable
    assert policy.get_free_block(SECONDARY_LEVEL)[1] is False


def test_priority_is_kept_unless_another_is_given_and_duration_is_not() -> None:
    policy = make_policy(1)
    block = take(policy)
    policy.claim_block(block, 70, 500)
    assert (block.priority, policy.get_duration_ms(block)) == (70, 500)
    policy.release_block(block)
    policy.claim_block(block)
    assert (block.priority, policy.get_duration_ms(block)) == (70, None)


def test_stand_in_of_sliding_windows_is_never_queued() -> None:
    policy = make_policy(1)
    policy.release_block(create_swa_placeholder())
    assert policy.free_queues() == [(0, 35, [0])]
    with pytest.raises(LogicError, match="the root block must never be queued"):
        policy.release_block(create_root_block(0))
    assert PLACEHOLDER_BLOCK_ID not in [i for _, found in ids(policy) for i in found]


def test_held_block_in_a_queue_is_noticed_when_it_would_be_taken() -> None:
    policy = make_policy(1)
    block, _ = policy.get_free_block(PRIMARY_LEVEL)
    block.inc_ref_count()
    with pytest.raises(LogicError, match="holds referenced block 0"):
        policy.get_free_block(PRIMARY_LEVEL)


# -- never-used blocks ------------------------------------------------------------------------------


def test_block_objects_are_made_when_they_are_needed() -> None:
    policy = make_policy(3000, 1000)
    assert policy.get_fresh_blocks(PRIMARY_LEVEL).blocks == []
    take(policy)
    assert len(policy.get_fresh_blocks(PRIMARY_LEVEL).blocks) == 1024
    assert len(policy.get_fresh_blocks(PRIMARY_LEVEL)) == 2999
    policy.make_all_blocks()
    assert [len(level.fresh.blocks) for level in policy.levels()] == [3000, 1000, 0]
    assert policy.get_num_free_blocks(PRIMARY_LEVEL) == 2999
    assert policy.verify_queue_integrity()


# -- expiries ---------------------------------------------------------------------------------------


def release(policy: WindowEvictionPolicy, block: KVCacheBlock, priority: int, duration_ms: int | None) -> None:
    policy.claim_block(block, priority, duration_ms)
    policy.release_block(block)


def test_expired_blocks_go_to_the_back_in_the_order_of_their_expiry() -> None:
    clock = FakeClock(tick_ns=0)
    policy = make_policy(5, clock=clock)
    blocks = [take(policy) for _ in range(4)]
    for block, duration in zip(blocks, (30, 10, 20, 10), strict=True):
        release(policy, block, 80, duration)
    assert [block_id for block_id, _ in policy.expiring()] == [1, 3, 2, 0]
    clock.advance_ms(20)
    assert policy.refresh() == [(blocks[1], 80), (blocks[3], 80), (blocks[2], 80)]
    assert ids(policy) == [(35, [4, 1, 3, 2]), (80, [0])]
    assert policy.expiring() == [(0, 1000 * 10**6 + 30 * 10**6)]


def test_expiry_at_this_very_moment_counts() -> None:
    clock = FakeClock(tick_ns=0)
    policy = make_policy(1, clock=clock)
    block = take(policy)
    release(policy, block, 80, 5)
    clock.advance_ms(5)
    assert policy.refresh() == [(block, 80)]


@pytest.mark.parametrize(("priority", "duration_ms"), [(35, 10), (80, None)])
def test_default_priority_and_unlimited_duration_do_not_expire(priority: int, duration_ms: int | None) -> None:
    policy = make_policy(1)
    release(policy, take(policy), priority, duration_ms)
    assert policy.expiring() == []


def test_expired_block_lands_on_its_present_level() -> None:
    clock = FakeClock()
    policy = make_policy(1, 1, clock=clock)
    primary, secondary = take(policy), take(policy, SECONDARY_LEVEL)
    policy.claim_block(primary, 80, 5)
    primary.swap_memory_pool_block_offset(secondary)
    policy.release_block(primary)
    clock.advance_ms(10)
    policy.refresh()
    assert ids(policy, SECONDARY_LEVEL) == [(35, [0])]


# -- fast paths -------------------------------------------------------------------------------------


@pytest.mark.parametrize("eviction", list(EVICTIONS))
def test_taking_many_is_taking_one_after_the_other(eviction: str) -> None:
    """``take_free_blocks`` against ``get_free_block`` and ``take_free_block``, from random states."""
    num_lower = 0
    for seed in range(200):
        fast, slow = (run_randomly(seed, eviction) for _ in range(2))
        rng = random.Random(seed)
        count = rng.randint(0, fast.get_num_free_blocks(PRIMARY_LEVEL))
        num_lower += any(priority < 35 for priority, _ in ids(fast))
        taken = fast.take_free_blocks(count)
        expected = [take_default(slow) for _ in range(count)]
        assert [b.block_id for b in taken] == [b.block_id for b in expected]
        assert all((b.priority, fast.get_duration_ms(b), b.free_queue) == (35, None, None) for b in taken)
        assert fast.free_queues() == slow.free_queues()
        assert fast.get_num_free_blocks(PRIMARY_LEVEL) == slow.get_num_free_blocks(PRIMARY_LEVEL)
    assert (num_lower > 5) == (eviction == DEFAULT_EVICTION)


def test_taking_more_than_are_free_changes_nothing() -> None:
    policy = run_randomly(4)
    before = policy.free_queues()
    with pytest.raises(OutOfBlocksError, match="13 blocks are needed and"):
        policy.take_free_blocks(13)
    assert policy.free_queues() == before


def test_memory_that_runs_out_while_blocks_are_made_costs_no_block() -> None:
    has_memory = False

    def make_block(block_id: BlockId, fresh: FreshBlocks) -> KVCacheBlock:
        if block_id >= 2000 and not has_memory:
            raise MemoryError
        return KVCacheBlock(block_id, block_id, fresh)

    policy = WindowEvictionPolicy((3000, 0), make_block, FakeClock())
    low = take(policy)
    low.attach_to_lookup_node(UnifiedBlockTree().root.insert_node(bytes(4)))
    release(policy, low, 10, None)
    front = take_from_fresh(policy)
    policy.release_block(front, to_front=True)
    before = policy.free_queues()
    with pytest.raises(MemoryError):
        policy.take_free_blocks(2500)
    assert policy.free_queues() == before
    assert policy.get_num_free_blocks(PRIMARY_LEVEL) == 3000
    has_memory = True
    assert [block.block_id for block in policy.take_free_blocks(2500)] == [*range(1, 2501)]


def take_from_fresh(policy: WindowEvictionPolicy) -> KVCacheBlock:
    block = policy.get_fresh_blocks(PRIMARY_LEVEL).peek()
    policy.claim_block(block)
    return block


def test_only_the_next_block_is_taken_as_a_victim() -> None:
    policy = make_policy(3)
    blocks = [take(policy) for _ in range(3)]
    for block in blocks:
        policy.release_block(block)
    with pytest.raises(LogicError, match="block 2 is not the next of its queue, 0 is"):
        policy.take_free_block(blocks[2])


def take_default(policy: WindowEvictionPolicy) -> KVCacheBlock:
    block = take(policy)
    policy.set_retention(block, 35, None)
    return block


def run_randomly(seed: int, eviction: str = DEFAULT_EVICTION) -> WindowEvictionPolicy:
    rng = random.Random(seed)
    policy = make_policy(12, 3, eviction=eviction)
    held: list[KVCacheBlock] = []
    priorities = (35,) if seed % 2 else (35, 35, 35, 60, 10)
    for _ in range(rng.randrange(40)):
        if policy.get_num_free_blocks(PRIMARY_LEVEL) and rng.random() < 0.6:
            block, _ = policy.get_free_block(PRIMARY_LEVEL)
            policy.claim_block(block, rng.choice(priorities))
            held.append(block)
        elif held:
            policy.release_block(held.pop(rng.randrange(len(held))), rng.random() < 0.4)
    return policy


def name_of(seed: int) -> str:
    return list(EVICTIONS)[seed % len(EVICTIONS)]


def test_claiming_many_is_claiming_one_after_the_other() -> None:
    for seed in range(50):
        fast, slow = (run_randomly(seed, name_of(seed)) for _ in range(2))
        chosen = [i for _, found in ids(fast) for i in found][::2]
        for policy in (fast, slow):
            blocks = [policy.get_fresh_blocks(PRIMARY_LEVEL).get_block(i) for i in chosen]
            if policy is fast:
                policy.claim_blocks(blocks)
            else:
                for block in blocks:
                    policy.claim_block(block)
        assert fast.free_queues() == slow.free_queues()
        assert fast.get_num_free_blocks(PRIMARY_LEVEL) == slow.get_num_free_blocks(PRIMARY_LEVEL)


def test_claiming_many_cancels_their_expiries() -> None:
    policy = make_policy(3)
    blocks = [take(policy) for _ in range(2)]
    for block in blocks:
        release(policy, block, 80, 5)
    policy.claim_blocks(blocks)
    assert policy.expiring() == []


def test_releasing_many_drops_one_reference_each() -> None:
    """Uncached blocks go to the front, cached ones to the back; those still held stay out of the queues."""
    policy = make_policy(7, 1)
    blocks = [take(policy) for _ in range(6)]
    for block in blocks[3:5]:
        block.detach_from_lookup_node()
    secondary = take(policy, SECONDARY_LEVEL)
    secondary.swap_memory_pool_block_offset(blocks[1])
    policy.claim_block(blocks[2], 60)
    for block in blocks:
        block.inc_ref_count()
    blocks[0].inc_ref_count()
    policy.release_blocks(reversed([*blocks, create_swa_placeholder()]))
    assert [block.ref_count for block in blocks] == [1, 0, 0, 0, 0, 0]
    assert ids(policy) == [(35, [3, 4, 6, 5]), (60, [2])]
    assert ids(policy, SECONDARY_LEVEL) == [(35, [1])]
    assert policy.get_num_free_blocks(PRIMARY_LEVEL) == 5


def test_ring_of_lru_is_checked() -> None:
    ring, other = LRU(), LRU()
    blocks = [KVCacheBlock(index, index) for index in range(4)]
    ring.released(blocks[:3])
    ring.put_first(blocks[3])
    assert list(ring) == [blocks[3], *blocks[:3]]
    assert ring.is_intact()
    ring.claimed([blocks[1]])
    assert list(ring) == [blocks[3], blocks[0], blocks[2]]
    assert ring.take(2) == [blocks[3], blocks[0]]
    assert ring.peek() is blocks[2]
    assert ring.is_intact()
    other.released([blocks[2]])  # without leaving the first ring
    assert not ring.is_intact()
    assert other.is_intact()
    assert other.take(5) == [blocks[2]]
    assert (len(other), other.peek(), list(other), other.is_intact()) == (0, None, [], True)
