"""Listeners after restarts, gaps and repeats: the tree is right, or ``needs_resync`` says that it may be wrong."""

from __future__ import annotations

import random

import pytest

from tests.events.test_kv_cache_event_consumer import NUM_STEPS, make_removed, make_stored, read_consumer
from tests.stress.manager_tree import read_trees
from tests.stress.random_program import RandomProgram
from trtkv import KVCacheManager, LlmRequest, MultimodalInput
from trtkv.events.event_sequence import MAX_GAPS
from trtkv.events.kv_cache_event_consumer import KVCacheEventConsumer, RankedEventConsumer
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.events.kv_cache_events import (
    KVCacheEvent,
    KVCacheStoredBlockData,
    KVCacheStoredData,
    KVCacheUpdatedData,
)


def run_program(seed: int, epoch: int = 0, rank: int | None = None) -> tuple[KVCacheManager, list[KVCacheEvent]]:
    """A manager after a random program, and all its events."""
    program = RandomProgram(seed, KVCacheEventManager(100_000, rank, epoch=epoch))
    for _ in range(NUM_STEPS):
        program.step()
    program.manager.flush_iteration_events()
    return program.manager, program.manager.get_latest_events(0)


@pytest.mark.parametrize("num_read", [1, 40, None])
def test_restart_with_an_epoch_needs_nothing_else(num_read: int | None) -> None:
    consumer = KVCacheEventConsumer()
    _, old = run_program(1, epoch=5)
    manager, new = run_program(2, epoch=6)
    consumer.apply(old[:num_read])
    consumer.apply(new)
    consumer.apply(old)  # they come too late
    assert (consumer.needs_resync, consumer.num_restarts, consumer.epoch) == (False, 1, 6)
    assert read_consumer(consumer, manager) == read_trees(manager)


def test_restart_of_which_the_beginning_is_missing_needs_a_resync() -> None:
    consumer = KVCacheEventConsumer()
    consumer.apply(run_program(1, epoch=5)[1])
    manager, new = run_program(2, epoch=6)
    consumer.apply(new[30:])
    assert consumer.needs_resync
    assert consumer.gaps == [(0, 30)]
    consumer.resync(manager.get_cached_block_events())
    assert not consumer.needs_resync
    assert read_consumer(consumer, manager) == read_trees(manager)


def test_restart_without_an_epoch_is_followed_and_asks_for_a_resync() -> None:
    consumer = KVCacheEventConsumer()
    _, old = run_program(1)
    manager, new = run_program(2)
    consumer.apply(old)
    consumer.apply(new[: len(old) // 2])
    assert consumer.needs_resync
    assert consumer.num_restarts == 1
    consumer.apply(new[len(old) // 2 :])
    assert read_consumer(consumer, manager) == read_trees(manager)
    consumer.resync(manager.get_cached_block_events())
    assert not consumer.needs_resync


def test_stream_read_again_from_its_start_ends_where_it_was() -> None:
    manager, stream = run_program(3)
    consumer = KVCacheEventConsumer()
    consumer.apply(stream)
    consumer.apply(stream[:-1])
    assert consumer.needs_resync
    consumer.apply(stream[-1:])
    assert not consumer.needs_resync
    assert read_consumer(consumer, manager) == read_trees(manager)


def test_events_still_under_way_do_not_spoil_a_late_start() -> None:
    manager, stream = run_program(4)
    consumer = KVCacheEventConsumer()
    consumer.resync(manager.get_cached_block_events())
    for start in (0, 1, len(stream) // 2):
        consumer.apply(stream[start:])
        assert not consumer.needs_resync
        assert read_consumer(consumer, manager) == read_trees(manager)


def test_late_start_without_a_snapshot_asks_for_one() -> None:
    consumer = KVCacheEventConsumer()
    consumer.apply(run_program(4)[1][1:])
    assert consumer.needs_resync


def test_only_the_newest_gaps_are_listed() -> None:
    consumer = KVCacheEventConsumer()
    consumer.apply([make_removed(2 * index, 1) for index in range(1, MAX_GAPS + 5)])
    assert len(consumer.gaps) == MAX_GAPS
    assert consumer.gaps[-1].first_missing_id == 2 * (MAX_GAPS + 4) - 1


@pytest.mark.parametrize("seed", range(20))
def test_tree_is_right_or_a_resync_is_asked_for(seed: int) -> None:
    """Portions are lost, repeated and sent late, managers restart with and without epochs."""
    rng = random.Random(seed)
    consumer, epoch = KVCacheEventConsumer(), 0
    num_right = num_flagged = 0
    for _ in range(6):
        epoch += rng.random() < 0.5
        program = RandomProgram(rng.randrange(1000), KVCacheEventManager(100_000, epoch=epoch))
        sent: list[KVCacheEvent] = []
        for step in range(60):
            program.step()
            program.manager.flush_iteration_events()
            portion = program.manager.get_latest_events(0)
            sent += portion
            if rng.random() < (0.03 if step else 0) and portion:
                portion = portion[1:]
            if rng.random() < 0.05:
                start = rng.randrange(len(sent))
                portion = sent[start : start + rng.randint(1, 9)] + portion
            consumer.apply(portion)
            is_complete = consumer.next_event_id == len(sent)  # else the newest event is lost, which cannot be seen
            if consumer.needs_resync:
                num_flagged += 1
                if rng.random() < 0.3:
                    consumer.resync(program.manager.get_cached_block_events())
            elif is_complete:
                num_right += 1
                assert read_consumer(consumer, program.manager) == read_trees(program.manager)
    assert num_right > 60
    assert num_flagged


def test_restart_of_one_rank_leaves_the_others_alone() -> None:
    ranked = RankedEventConsumer()
    managers = [run_program(seed, 1, seed) for seed in range(2)]
    ranked.apply(event for _, events in managers for event in events)
    manager, events = run_program(7, 2, 1)
    ranked.apply(events[5:])
    assert ranked.needs_resync
    assert not ranked.ranks[0].needs_resync
    ranked.resync(manager.get_cached_block_events())
    assert not ranked.needs_resync
    assert read_consumer(ranked.ranks[0], managers[0][0]) == read_trees(managers[0][0])
    assert read_consumer(ranked.ranks[1], manager) == read_trees(manager)


# -- one hash, several blocks ------------------------------------------------------------------------


def test_block_stays_while_another_of_the_same_hash_goes() -> None:
    consumer = KVCacheEventConsumer()
    consumer.apply([make_stored(0, None, 1, 2), make_stored(1, None, 1, 2), make_removed(2, 2, 1)])
    tree = consumer.get_tree(64)
    assert (set(tree.blocks), tree.count_blocks(1), tree.get_children(1)) == ({1, 2}, 1, [2])
    assert not consumer.needs_resync  # both were alike, so it does not matter which one went
    consumer.apply([make_removed(3, 2, 1)])
    assert (dict(tree.blocks), tree.get_children(None), consumer.num_unknown_blocks) == ({}, [], 0)


def make_block(key: bytes, level: int = 0) -> KVCacheStoredBlockData:
    return KVCacheStoredBlockData(9, key, level, 35)


@pytest.mark.parametrize("data", [make_removed(0, 9).data, KVCacheUpdatedData(9, cache_level=(0, 1))])
def test_event_that_may_mean_either_of_two_blocks_asks_for_a_resync(data: KVCacheUpdatedData) -> None:
    consumer = KVCacheEventConsumer()
    for index, (parent, key) in enumerate([(None, b"left"), (7, b"rght")]):
        consumer.apply([KVCacheEvent(index, KVCacheStoredData(parent, [make_block(key)]), 64)])
    assert consumer.get_tree(64).get_children(None) == consumer.get_tree(64).get_children(7) == [9]
    consumer.apply([KVCacheEvent(2, data, 64)])
    assert 9 in consumer.get_tree(64).blocks
    assert consumer.needs_resync
    consumer.resync([KVCacheEvent(2, KVCacheStoredData(None, [make_block(b"left")]), 64)])
    assert not consumer.needs_resync
    assert consumer.get_tree(64).count_blocks(9) == 1


def test_images_of_one_content_under_two_names_have_hashes_of_their_own() -> None:
    windows = {64: (16, 0)}
    manager = KVCacheManager.from_arguments(
        [1], 4, 4, windows, 8, 1, [64], max_sequence_length=64, event_manager=KVCacheEventManager(100)
    )
    consumer = KVCacheEventConsumer()
    for index, name in enumerate(["cat", "dog", None]):
        image = MultimodalInput([[5] * 8], [0], [3], [name])
        request = LlmRequest(index, range(9), 4, multimodal_input=image)
        manager.add_sequence_batch([(index, 9, 1)], [request])
        request.set_context_current_position(9)
        manager.remove_sequence(index, request)
    manager.flush_iteration_events()
    consumer.apply(manager.get_latest_events(0))
    assert len(consumer.get_tree(64).blocks) == 6
    assert read_consumer(consumer, manager) == read_trees(manager)
