"""The registered policies keep the contract, alone and in a manager; how a policy is chosen."""

from __future__ import annotations

import random

import pytest

from tests.builders import make_kv_cache_manager, make_request, prefill
from tests.contracts.eviction_policy import EvictionPolicyContract
from tests.stress.random_program import RandomProgram
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.errors import ConfigurationError
from trtkv.eviction.lru import LRU
from trtkv.eviction.ordered_policy import OrderedPolicy
from trtkv.eviction.orders.fifo import FifoOrder
from trtkv.eviction.protocol import EvictionPolicy, LevelOfBlocks, PolicyFactory
from trtkv.eviction.registry import DEFAULT_EVICTION, EVICTIONS, Eviction, find_eviction, order_eviction
from trtkv.inspection.invariants import check_invariants
from trtkv.records.retention_config import KvCacheRetentionConfig, TokenRangeRetentionConfig


@pytest.mark.parametrize("factory", [e.make_policy for e in EVICTIONS.values()], ids=list(EVICTIONS), scope="class")
class TestRegisteredPolicies(EvictionPolicyContract):
    @pytest.fixture(autouse=True)
    def remember(self, factory: PolicyFactory) -> None:
        self.factory = factory

    def make_policy(self, level: LevelOfBlocks) -> EvictionPolicy:
        return self.factory(level)


# -- choosing ---------------------------------------------------------------------------------------


def test_first_policy_of_the_registry_is_the_default() -> None:
    assert next(iter(EVICTIONS)) == DEFAULT_EVICTION
    assert find_eviction(DEFAULT_EVICTION) == Eviction(LRU, by_priority=True)
    assert find_eviction("lru") == Eviction(LRU)
    assert find_eviction(Eviction(LRU, True)) == Eviction(LRU, True)
    assert find_eviction(LRU) == EVICTIONS["lru"]


@pytest.mark.parametrize("eviction", ["LRU", "", 3, None])
def test_unknown_policy_is_refused_with_the_names_of_those_there_are(eviction: object) -> None:
    with pytest.raises(ConfigurationError, match="priority-lru, lru, fifo"):
        make_kv_cache_manager(8, eviction=eviction)


def test_compatibility_keeps_the_policy_of_the_original() -> None:
    make_kv_cache_manager(8, compatibility=True, eviction="priority-lru")
    for eviction in ("lru", "fifo", LRU, order_eviction("arc")):
        with pytest.raises(ConfigurationError, match="incompatible with compatibility=True"):
            make_kv_cache_manager(8, compatibility=True, eviction=eviction)


def test_factory_is_told_level_and_size_of_each_level() -> None:
    levels: list[LevelOfBlocks] = []

    def make(level: LevelOfBlocks) -> EvictionPolicy:
        levels.append(level)
        return LRU(level)

    make_kv_cache_manager(12, 5, eviction=make)
    assert [(level.level, level.num_blocks) for level in levels] == [(0, 12), (1, 5), (-1, 0)]


# -- in a manager -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(EVICTIONS))
def test_random_programs_keep_every_invariant(name: str) -> None:
    for seed in range(12):
        program = RandomProgram(seed, None, with_memory=True, eviction=name)
        for _ in range(60):
            program.step()
            check_invariants(program.manager, program.requests, rewound=program.rewound)


class FollowingPolicy(OrderedPolicy):
    """A policy that checks what it is told against what the manager does."""

    def __init__(self, level: LevelOfBlocks) -> None:
        super().__init__(level, lambda level: FifoOrder())
        self.in_tree: dict[KVCacheBlock, int] = {}

    def stored(self, blocks):  # type: ignore[no-untyped-def]
        super().stored(blocks)
        assert all(block.lookup_node is not None for block in blocks)
        self.in_tree.update(dict.fromkeys(blocks, 0))

    def used(self, blocks):  # type: ignore[no-untyped-def]
        super().used(blocks)
        for block in blocks:
            self.in_tree[block] += 1

    def removed(self, blocks):  # type: ignore[no-untyped-def]
        super().removed(blocks)
        for block in blocks:
            self.in_tree.pop(block, None)


@pytest.mark.parametrize("by_priority", [False, True])
def test_policies_know_at_any_time_which_blocks_of_theirs_are_in_the_tree(by_priority: bool) -> None:
    num_known = 0
    for seed in range(25):
        program = RandomProgram(seed, None, eviction=Eviction(FollowingPolicy, by_priority))
        for _ in range(60):
            program.step()
            for window in program.manager.block_manager.window_block_managers.values():
                policy = window.eviction_policy
                expected = {block for block in window.block_objects() if block.lookup_node is not None}
                known = [block for queue in policy.queues() for block in getattr(queue.policy, "in_tree", ())]
                assert len(known) == len(set(known))
                assert set(known) == expected
                for level in policy.levels():
                    for block in expected:
                        is_here = block in level.get_queue_of(block).policy.in_tree  # type: ignore[attr-defined]
                        assert is_here == (level.level == level_of(block))
                num_known += len(known)
    assert num_known > 1000


def level_of(block: KVCacheBlock) -> int:
    return -1 if block.is_placeholder else int(not block.is_primary)


def serve(manager, request_id, tokens):  # type: ignore[no-untyped-def]
    request = make_request(request_id, tokens)
    prefill(manager, request)
    manager.remove_sequence(request_id, request)


def count_found(manager, tokens):  # type: ignore[no-untyped-def]
    return manager.analyze_prefix_reuse(make_request(99, tokens)).reusable_blocks_all


def test_fifo_drops_what_was_stored_first_and_lru_what_was_used_longest_ago() -> None:
    """Pool of 6; a and b (2 full blocks each); a again; c: LRU drops b for it, FIFO drops a."""
    found = {}
    for name in EVICTIONS:
        manager = make_kv_cache_manager(6, eviction=name)
        a, b, c = (list(range(start, start + 9)) for start in (0, 100, 200))
        for request_id, tokens in enumerate((a, b, a, c)):
            serve(manager, request_id, tokens)
        found[name] = [count_found(manager, tokens) for tokens in (a, b, c)]
    assert found["priority-lru"] == found["lru"]
    assert found["lru"][0] > found["fifo"][0]
    assert found["fifo"][1] > found["lru"][1]


def test_lru_without_priorities_equals_the_default_where_all_are_equal() -> None:
    for seed in range(15):
        rng = random.Random(seed)
        managers = [make_kv_cache_manager(14, 6, eviction=name) for name in ("priority-lru", "lru")]
        for request_id in range(40):
            start = rng.randrange(4)
            tokens = [*range(start, start + rng.randrange(1, 20)), *range(1000 * request_id, 1000 * request_id + 3)]
            for manager in managers:
                serve(manager, request_id, tokens)
        first, second = (
            [m.eviction_policy.free_queues() for m in manager.block_manager.window_block_managers.values()]
            for manager in managers
        )
        assert first == second


def test_without_priorities_the_highest_protects_nothing() -> None:
    found = {}
    for name in ("priority-lru", "lru"):
        manager = make_kv_cache_manager(4, eviction=name)
        kept = make_request(
            1, range(9), kv_cache_retention_config=KvCacheRetentionConfig([TokenRangeRetentionConfig(0, 9, 90)])
        )
        prefill(manager, kept)
        manager.remove_sequence(1, kept)
        serve(manager, 2, list(range(50, 59)))
        serve(manager, 3, list(range(70, 79)))
        found[name] = count_found(manager, list(range(9)))
    assert found == {"priority-lru": 1, "lru": 0}
