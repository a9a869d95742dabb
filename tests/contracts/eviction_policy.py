"""What every eviction policy must do, whatever it prefers. Derive a test class and give ``make_policy``."""

from __future__ import annotations

import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import FrameType
from typing import Any

from tests.fake_clock import FakeClock
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.eviction.protocol import EvictionPolicy, LevelOfBlocks


class EvictionPolicyContract(ABC):
    """Tests of an EvictionPolicy."""

    @abstractmethod
    def make_policy(self, level: LevelOfBlocks) -> EvictionPolicy:
        """A policy without free blocks."""

    def make(self, num_blocks: int) -> tuple[EvictionPolicy, list[KVCacheBlock]]:
        """A policy and blocks that it orders, none of them free."""
        blocks = [KVCacheBlock(block_id, block_id) for block_id in range(num_blocks)]
        return self.make_policy(LevelOfBlocks(0, num_blocks, FakeClock())), blocks

    def test_a_new_policy_has_no_block_to_give(self) -> None:
        policy, _ = self.make(3)
        assert (policy.peek(), policy.take(1), policy.take(0), len(policy), list(policy)) == (None, [], [], 0, [])
        assert policy.is_intact()

    def test_every_released_block_is_given_once(self) -> None:
        policy, blocks = self.make(7)
        policy.stored(blocks[:5])
        policy.released(blocks[4::-1])
        policy.released(blocks[5:])  # never stored
        assert len(policy) == 7
        assert set(policy.take(3)) | set(policy.take(99)) == set(blocks)
        assert (len(policy), policy.take(1), policy.peek()) == (0, [], None)

    def test_blocks_that_are_held_are_never_given(self) -> None:
        policy, blocks = self.make(9)
        policy.stored(blocks)
        policy.released(blocks[8:2:-1])  # 0, 1 and 2 stay held
        policy.used(blocks[:6])
        policy.claimed(blocks[3:6])
        assert len(policy) == 3
        assert set(policy.take(9)) == set(blocks[6:])

    def test_looking_and_walking_foretell_what_is_taken(self) -> None:
        """``peek``, the order of walking, and one batch against single blocks, on policies of the same past."""
        for seed in range(20):
            one, many, untouched = (run_randomly(*self.make(12), seed) for _ in range(3))
            expected = [block.block_id for block in one]
            for _ in range(3):
                one.peek()
                list(one)
                assert one.is_intact()
            singles = []
            while len(one):
                seen = one.peek()
                (taken,) = one.take(1)
                assert taken is seen
                singles.append(taken.block_id)
            assert singles == expected == [block.block_id for block in untouched.take(12)]
            half = len(many) // 2
            assert [block.block_id for block in many.take(half) + many.take(12)] == expected

    def test_free_block_that_leaves_the_tree_can_still_be_taken(self) -> None:
        policy, blocks = self.make(4)
        policy.stored(blocks)
        policy.released(blocks[::-1])
        policy.removed(blocks[1:3])
        assert len(policy) == 4
        assert set(policy.take(4)) == set(blocks)
        policy.removed(blocks)  # as the manager says of victims
        policy.stored(blocks[:1])
        policy.released(blocks[:1])
        assert policy.take(2) == blocks[:1]

    def test_random_calls_lose_and_double_no_block(self) -> None:
        for seed in range(10):
            run_randomly(*self.make(10), seed, num_calls=400)

    def test_steps_a_block_do_not_grow_with_the_number_of_free_blocks(self) -> None:
        few, many = (self.count_steps(num_blocks) for num_blocks in (200, 6400))
        assert many <= 2 * few + 20

    def count_steps(self, num_blocks: int) -> int:
        """Lines run by 50 rounds of claiming, releasing, looking and taking beside that many free blocks."""
        policy, blocks = self.make(num_blocks)
        policy.stored(blocks)
        policy.released(blocks[::-1])
        rng = random.Random(3)

        def work() -> None:
            for block in rng.sample(blocks[num_blocks // 2 :], 50):
                if block in taken:
                    continue
                policy.claimed([block])
                policy.used([block])
                policy.released([block])
                policy.peek()
                taken.update(policy.take(1))

        taken: set[KVCacheBlock] = set()
        return count_lines(work)


def run_randomly(policy: EvictionPolicy, blocks: list[KVCacheBlock], seed: int, num_calls: int = 60) -> EvictionPolicy:
    """Random calls in the order that a manager keeps to, checked against sets of what is free and what is stored."""
    rng = random.Random(seed)
    held, free, stored = set(blocks), set[KVCacheBlock](), set[KVCacheBlock]()

    def some(of: set[KVCacheBlock]) -> list[KVCacheBlock]:
        return rng.sample(sorted(of, key=lambda block: block.block_id), rng.randint(0, min(3, len(of))))

    for _ in range(num_calls):
        action = rng.randrange(5)
        if action == 0:
            policy.stored(chosen := some(held - stored))
            stored.update(chosen)
        elif action == 1:
            policy.released(chosen := some(held))
            held.difference_update(chosen)
            free.update(chosen)
        elif action == 2:
            chosen = some(free & stored)
            policy.used(chosen)
            policy.claimed(chosen)
            free.difference_update(chosen)
            held.update(chosen)
        elif action == 3:
            policy.removed(chosen := some(stored))
            stored.difference_update(chosen)
        else:
            chosen = policy.take(rng.randrange(3))
            assert free.issuperset(chosen)
            policy.removed(chosen)
            stored.difference_update(chosen)
            free.difference_update(chosen)
            held.update(chosen)
        assert len(policy) == len(free)
        assert set(policy) == free
        assert (policy.peek() is None) == (not free)
        assert policy.is_intact()
    return policy


def count_lines(work: Callable[[], None]) -> int:
    """Python lines that a call runs, whatever it takes them; 0 in compiled modules."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
