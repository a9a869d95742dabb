"""What every eviction policy must do, whatever it prefers. Derive a test class and give ``make_policy``.

The policy of a test has blocks 0 to P - 1 at the primary level and P to P + S - 1 at the secondary one.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod

import pytest

from tests.fake_clock import FakeClock
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import PRIMARY_LEVEL, SECONDARY_LEVEL
from trtkv.errors import LogicError, OutOfBlocksError
from trtkv.eviction.eviction_policy import BaseEvictionPolicy


class EvictionPolicyContract(ABC):
    """Tests of a BaseEvictionPolicy."""

    @abstractmethod
    def make_policy(self, num_primary: int, num_secondary: int, clock: FakeClock) -> BaseEvictionPolicy:
        """A policy over blocks that were never used."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @staticmethod
    def take(policy: BaseEvictionPolicy, level: int = PRIMARY_LEVEL) -> KVCacheBlock:
        block, _ = policy.get_free_block(level)
        policy.claim_block(block)
        return block

    def test_every_block_is_given_once(self, clock: FakeClock) -> None:
        policy = self.make_policy(5, 3, clock)
        assert (policy.get_num_free_blocks(PRIMARY_LEVEL), policy.get_num_free_blocks(SECONDARY_LEVEL)) == (5, 3)
        assert {self.take(policy).block_id for _ in range(5)} == set(range(5))
        assert {self.take(policy, SECONDARY_LEVEL).block_id for _ in range(3)} == {5, 6, 7}
        for level in (PRIMARY_LEVEL, SECONDARY_LEVEL):
            assert policy.get_num_free_blocks(level) == 0
            with pytest.raises(OutOfBlocksError, match="no free block"):
                policy.get_free_block(level)

    def test_looking_takes_nothing(self, clock: FakeClock) -> None:
        policy = self.make_policy(2, 0, clock)
        assert policy.get_free_block(PRIMARY_LEVEL) == policy.get_free_block(PRIMARY_LEVEL)
        assert policy.get_num_free_blocks(PRIMARY_LEVEL) == 2

    def test_released_block_can_be_taken_again(self, clock: FakeClock) -> None:
        policy = self.make_policy(1, 0, clock)
        block = self.take(policy)
        policy.release_block(block)
        assert self.take(policy) is block

    def test_release_of_a_queued_block_is_a_fault_that_changes_nothing(self, clock: FakeClock) -> None:
        policy = self.make_policy(2, 0, clock)
        block = self.take(policy)
        policy.release_block(block)
        with pytest.raises(LogicError, match="released twice"):
            policy.release_block(block)
        assert policy.get_num_free_blocks(PRIMARY_LEVEL) == 2
        assert {self.take(policy).block_id for _ in range(2)} == {0, 1}

    def test_claiming_a_block_that_is_not_queued_leaves_the_counts(self, clock: FakeClock) -> None:
        policy = self.make_policy(2, 0, clock)
        block = self.take(policy)
        policy.claim_block(block, 50)
        assert policy.get_num_free_blocks(PRIMARY_LEVEL) == 1

    def test_block_comes_back_on_the_level_its_slot_lies_on(self, clock: FakeClock) -> None:
        policy = self.make_policy(1, 1, clock)
        first, second = self.take(policy), self.take(policy, SECONDARY_LEVEL)
        first.swap_memory_pool_block_offset(second)
        policy.release_block(first)
        policy.release_block(second)
        assert policy.get_free_block(PRIMARY_LEVEL)[0] is second
        assert policy.get_free_block(SECONDARY_LEVEL)[0] is first

    def test_lower_priority_goes_first(self, clock: FakeClock) -> None:
        policy = self.make_policy(3, 0, clock)
        blocks = [self.take(policy) for _ in range(3)]
        for block, priority in zip(blocks, (60, 10, 35), strict=True):
            policy.claim_block(block, priority)
            policy.release_block(block)
        assert [self.take(policy) for _ in range(3)] == [blocks[1], blocks[2], blocks[0]]

    def test_front_of_a_queue_is_before_all_of_its_priority(self, clock: FakeClock) -> None:
        policy = self.make_policy(4, 0, clock)
        first, second = self.take(policy), self.take(policy)
        policy.release_block(second, to_front=True)
        policy.release_block(first, to_front=True)
        assert [self.take(policy).block_id for _ in range(4)] == [0, 1, 2, 3]

    def test_queue_integrity_notices_a_held_block(self, clock: FakeClock) -> None:
        policy = self.make_policy(2, 0, clock)
        block = self.take(policy)
        policy.release_block(block)
        assert policy.verify_queue_integrity()
        block.inc_ref_count()
        assert not policy.verify_queue_integrity()

    def test_expired_priority_falls_back_to_the_default(self, clock: FakeClock) -> None:
        policy = self.make_policy(2, 0, clock)
        block = self.take(policy)
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

    def test_claim_cancels_an_expiry(self, clock: FakeClock) -> None:
        policy = self.make_policy(1, 0, clock)
        block = self.take(policy)
        policy.claim_block(block, 80, duration_ms=10)
        policy.release_block(block)
        policy.claim_block(block)
        policy.release_block(block)
        clock.advance_ms(100)
        assert policy.refresh() == []
        assert block.priority == 80

    def test_random_calls_lose_and_double_no_block(self, clock: FakeClock) -> None:
        rng = random.Random(11)
        policy = self.make_policy(9, 4, clock)
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
