"""A listener that sees nothing but events knows the manager's tree after every step."""

from __future__ import annotations

import pytest

from tests.stress.manager_tree import read_trees
from tests.stress.random_program import RandomProgram
from trtkv import KVCacheManager, LlmRequest
from trtkv.errors import InvalidInputError
from trtkv.events.event_sequence import EventGap
from trtkv.events.kv_cache_event_consumer import CachedBlock, KVCacheEventConsumer, RankedEventConsumer
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.events.kv_cache_events import (
    KVCacheEvent,
    KVCacheRemovedData,
    KVCacheStoredBlockData,
    KVCacheStoredData,
    KVCacheUpdatedData,
)

NUM_STEPS = 150


def read_consumer(consumer: KVCacheEventConsumer, manager: KVCacheManager) -> dict[int, dict[int, CachedBlock]]:
    return {window: dict(consumer.get_tree(window).blocks) for window in manager.window_sizes_metadata}


@pytest.mark.parametrize("seed", range(50))
def test_consumer_agrees_with_the_manager_after_each_step(seed: int) -> None:
    program = RandomProgram(seed, KVCacheEventManager(10_000))
    consumer = KVCacheEventConsumer()
    for step in range(NUM_STEPS):
        action = program.step()
        program.manager.flush_iteration_events()
        consumer.apply(program.manager.get_latest_events(0))
        where = f"seed {seed}, step {step}: {action}"
        assert read_consumer(consumer, program.manager) == read_trees(program.manager), where
        assert consumer.num_unknown_blocks == 0, where
        assert all(program.manager.verify_queue_integrity(window) for window in program.windows), where
    assert consumer.gaps == []


@pytest.mark.parametrize("seed", range(20))
def test_events_do_not_change_what_the_manager_does(seed: int) -> None:
    """Without events the manager takes its fast paths; blocks, queues and tree must come out the same."""
    with_events = RandomProgram(seed, KVCacheEventManager(10))
    without = RandomProgram(seed, None)
    for step in range(NUM_STEPS):
        where = f"seed {seed}, step {step}: {with_events.step()}"
        without.step()
        managers = with_events.manager, without.manager
        assert with_events.num_failed == without.num_failed, where
        blocks = [
            {(i, w): m.get_cache_block_ids(i, w) for i in with_events.requests for w in with_events.windows}
            for m in managers
        ]
        assert blocks[0] == blocks[1], where
        queues = [
            [m.eviction_policy.free_queues() for m in manager.block_manager.window_block_managers.values()]
            for manager in managers
        ]
        assert queues[0] == queues[1], where
        assert read_trees(managers[0]) == read_trees(managers[1]), where


def test_the_recorded_events_are_not_enough() -> None:
    """The reason for the default: a listener of the recorded events is wrong in most programs."""
    num_wrong = 0
    for seed in range(10):
        program = RandomProgram(seed, KVCacheEventManager(100_000), compatibility=True)
        program.actions = [(action, weight) for action, weight in program.actions if action != program.rewind]
        consumer = KVCacheEventConsumer()
        for _ in range(NUM_STEPS):
            program.step()
        program.manager.flush_iteration_events()
        consumer.apply(program.manager.get_latest_events(0))
        hashes = {
            window: {block.hash for block in manager.matcher.list_blocks()}
            for window, manager in program.manager.block_manager.window_block_managers.items()
        }
        num_wrong += any(set(consumer.get_tree(window).blocks) != hashes[window] for window in hashes)
    assert num_wrong > 5


# -- lost events -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_a_full_buffer_shows_as_a_gap_and_a_resync_repairs_it(seed: int) -> None:
    events = KVCacheEventManager(4)
    program = RandomProgram(seed, events)
    manager, consumer = program.manager, KVCacheEventConsumer()
    num_repaired = 0
    for _ in range(20):
        for _ in range(15):
            program.step()
        manager.flush_iteration_events()
        consumer.apply(manager.get_latest_events(0))
        if consumer.needs_resync:
            program.step()  # what happens between the loss and the repair is in the snapshot or comes later
            consumer.resync(manager.get_cached_block_events())
            assert not consumer.needs_resync
            program.step()
            manager.flush_iteration_events()
            consumer.apply(manager.get_latest_events(0))
            if not consumer.needs_resync:
                num_repaired += 1
                assert read_consumer(consumer, manager) == read_trees(manager)
    assert num_repaired > 0
    assert sum(gap.num_missing for gap in consumer.gaps) > 0
    assert events.num_dropped_events >= len(consumer.gaps)


def test_gap_names_the_lost_ids() -> None:
    program = RandomProgram(1, KVCacheEventManager(10_000))
    for _ in range(NUM_STEPS):
        program.step()
    program.manager.flush_iteration_events()
    stream = program.manager.get_latest_events(0)
    consumer = KVCacheEventConsumer()
    consumer.apply(stream[:5])
    consumer.apply(stream[9:])
    assert consumer.gaps == [EventGap(5, 9)]
    assert consumer.gaps[0].num_missing == 4
    assert consumer.needs_resync
    assert consumer.next_event_id == len(stream)


def test_listener_that_starts_late_starts_from_a_snapshot() -> None:
    program = RandomProgram(7, KVCacheEventManager(10_000))
    for _ in range(NUM_STEPS):
        program.step()
    program.manager.flush_iteration_events()
    program.manager.get_latest_events(0)
    consumer = KVCacheEventConsumer()
    consumer.resync(program.manager.get_cached_block_events())
    assert read_consumer(consumer, program.manager) == read_trees(program.manager)
    assert any(tree.blocks for tree in consumer.windows.values())
    with pytest.raises(InvalidInputError, match="get_cached_block_events"):
        consumer.resync([])


# -- single events ---------------------------------------------------------------------------------


def make_stored(event_id: int, parent: int | None, *hashes: int, rank: int | None = None) -> KVCacheEvent:
    blocks = [KVCacheStoredBlockData(value, bytes([value, 0, 0, 0]), 0, 35) for value in hashes]
    return KVCacheEvent(event_id, KVCacheStoredData(parent, blocks), 64, rank)


def make_removed(event_id: int, *hashes: int) -> KVCacheEvent:
    return KVCacheEvent(event_id, KVCacheRemovedData(list(hashes)), 64)


def test_removal_is_idempotent_and_order_does_not_matter() -> None:
    consumer = KVCacheEventConsumer()
    consumer.apply([make_stored(0, None, 1, 2, 3)])
    tree = consumer.get_tree(64)
    consumer.apply([make_removed(1, 1)])  # the ancestor first
    assert set(tree.blocks) == {2, 3}
    assert not tree.is_reachable(3)
    consumer.apply([make_removed(2, 3, 2), make_removed(3, 3, 2, 1)])
    assert dict(tree.blocks) == {}
    assert consumer.num_unknown_blocks == 3
    assert tree.get_children(None) == []


def test_blocks_below_a_hole_are_found_again_when_it_is_filled() -> None:
    consumer = KVCacheEventConsumer()
    consumer.apply([make_stored(0, None, 1, 2, 3), make_removed(1, 2)])
    tree = consumer.get_tree(64)
    assert tree.count_cached_prefix([1, 2, 3]) == 1
    consumer.apply([make_stored(2, 1, 2)])
    assert tree.count_cached_prefix([1, 2, 3]) == 3
    assert tree.get_children(1) == [2]
    assert tree.is_reachable(3)


def test_events_read_twice_are_applied_once() -> None:
    consumer = KVCacheEventConsumer()
    stream = [make_stored(0, None, 1, 2), make_removed(1, 2), make_stored(2, 1, 3)]
    consumer.apply(stream)
    consumer.apply(stream)
    assert set(consumer.get_tree(64).blocks) == {1, 3}
    assert consumer.gaps == []


def test_update_changes_only_what_it_names() -> None:
    consumer = KVCacheEventConsumer()
    consumer.apply(
        [
            make_stored(0, None, 1),
            KVCacheEvent(1, KVCacheUpdatedData(1, cache_level=(0, 1)), 64),
            KVCacheEvent(2, KVCacheUpdatedData(9, priority=(35, 80)), 64),
        ]
    )
    assert consumer.get_tree(64).blocks[1].cache_level == 1
    assert consumer.get_tree(64).blocks[1].priority == 35
    assert consumer.num_unknown_blocks == 1


def test_ranks_are_kept_apart() -> None:
    ranked = RankedEventConsumer()
    ranked.apply([make_stored(0, None, 1, rank=0), make_stored(0, None, 2, rank=1), make_stored(2, 2, 3, rank=1)])
    assert set(ranked.ranks[0].get_tree(64).blocks) == {1}
    assert set(ranked.ranks[1].get_tree(64).blocks) == {2, 3}
    assert ranked.needs_resync
    assert not ranked.ranks[0].needs_resync
    with pytest.raises(InvalidInputError, match="rank 1"):
        ranked.ranks[0].apply([make_stored(3, None, 4, rank=1)])


# -- what the events say ---------------------------------------------------------------------------


def make_manager(**options: object) -> KVCacheManager:
    settings: dict[str, object] = {"max_sequence_length": 64, "event_manager": KVCacheEventManager(1000)} | options
    windows = settings.pop("windows", {64: (16, 0)})
    assert isinstance(windows, dict)
    return KVCacheManager.from_arguments([1] * len(windows), 4, 4, windows, 8, 1, list(windows), **settings)  # type: ignore[arg-type]


def serve(manager: KVCacheManager, request_id: int, tokens: list[int]) -> LlmRequest:
    """Admit, compute and remove one request."""
    request = LlmRequest(request_id, tokens, 8)
    manager.add_sequence_batch([(request_id, len(tokens), 1)], [request])
    request.set_context_current_position(len(tokens))
    manager.remove_sequence(request_id, request)
    return request


def read_data(manager: KVCacheManager) -> list[object]:
    manager.flush_iteration_events()
    return [event.data for event in manager.get_latest_events(0)]


def test_blocks_on_both_sides_of_a_cached_one_are_told_apart() -> None:
    """A block stored below one that was cached already names that one as its parent, not the block stored before it."""
    manager = make_manager(windows={64: (6, 0)})
    serve(manager, 1, [*range(12), 0])
    tree = manager.block_manager.window_block_managers[64]
    first, second, third = tree.matcher.list_blocks()
    hashes = [first.hash, second.hash, third.hash]
    for block in (first, third):
        tree.claimer.remove_from_tree(block)
    read_data(manager)
    serve(manager, 2, [*range(12), 0])
    stored = [data for data in read_data(manager) if isinstance(data, KVCacheStoredData)]
    assert [(data.parent_hash, [block.block_hash for block in data.blocks]) for data in stored] == [
        (None, hashes[:1]),
        (hashes[1], hashes[2:]),
    ]


def test_parent_outside_the_window_is_named_all_the_same() -> None:
    manager = make_manager(windows={8: (16, 0)})
    request = LlmRequest(1, list(range(12)), 20)
    manager.add_sequence_batch([(1, 12, 1)], [request])
    request.set_context_current_position(12)
    for token in range(12):
        request.add_new_token(token)
        manager.add_token(1)
    manager.remove_sequence(1, request)
    stored = [data for data in read_data(manager) if isinstance(data, KVCacheStoredData)]
    hashes = manager_hashes(request, 6)
    assert [block.block_hash for data in stored for block in data.blocks] == hashes[4:]
    assert [data.parent_hash for data in stored] == [hashes[3]]


def manager_hashes(request: LlmRequest, count: int) -> list[int]:
    from trtkv.keys.key_builder import build_block_keys
    from trtkv.keys.key_hash import hash_block_key

    hashes = [0]
    for key in build_block_keys(request, 4, request.get_num_tokens(0) - 1, True)[:count]:
        hashes.append(hash_block_key(key, hashes[-1]))
    return hashes[1:]


def test_block_taken_over_in_place_is_removed_for_listeners() -> None:
    manager = make_manager()
    serve(manager, 1, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    read_data(manager)
    manager.add_sequence_batch([(2, 8, 1)], [LlmRequest(2, [1, 2, 3, 4, 5, 6, 0, 0], 4)])
    (removed,) = read_data(manager)
    assert isinstance(removed, KVCacheRemovedData)
    assert removed.block_hashes == manager_hashes(LlmRequest(3, [1, 2, 3, 4, 5, 6, 7, 8, 9]), 2)[1:]


def test_block_that_grows_is_removed_under_its_old_key_first() -> None:
    manager = make_manager()
    request = LlmRequest(1, [1, 2, 3, 4, 5, 6], 8)
    manager.add_sequence_batch([(1, 6, 1)], [request])
    request.set_context_current_position(6)
    manager.store_blocks_for_reuse(1, request)
    read_data(manager)
    for token in (7, 8, 9):
        request.add_new_token(token)
        manager.add_token(1)
    manager.store_blocks_for_reuse(1, request)
    removed, stored = read_data(manager)
    assert isinstance(removed, KVCacheRemovedData)
    assert isinstance(stored, KVCacheStoredData)
    assert removed.block_hashes == manager_hashes(LlmRequest(2, [1, 2, 3, 4, 5, 6]), 2)[1:]
    assert [block.block_hash for block in stored.blocks] == manager_hashes(request, 2)[1:]


def test_reset_removes_everything_at_once() -> None:
    manager = make_manager()
    serve(manager, 1, list(range(13)))
    read_data(manager)
    manager.reset_reuse_state()
    (removed,) = read_data(manager)
    assert isinstance(removed, KVCacheRemovedData)
    assert len(removed.block_hashes) == 3
    serve(manager, 2, list(range(13)))
    (stored,) = read_data(manager)
    assert isinstance(stored, KVCacheStoredData)
