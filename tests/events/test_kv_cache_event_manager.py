"""Collecting events and handing them over: ids, order, flushes, waiting, the bounded buffer, a stream switched off."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.builders import add, decode, finish_prompt, make_kv_cache_manager, make_request, serve
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.errors import ConfigurationError, InvalidInputError
from trtkv.events.kv_cache_event_consumer import KVCacheEventConsumer
from trtkv.events.kv_cache_event_manager import KVCacheEventManager, describe_stored_block
from trtkv.events.kv_cache_events import (
    KVCacheCreatedData,
    KVCacheEvent,
    KVCacheRemovedData,
    KVCacheStoredBlockData,
    KVCacheStoredData,
    KVCacheUpdatedData,
)
from trtkv.keys.block_key import BlockKey
from trtkv.records.kv_cache_index import make_index

JOIN_S = 60
NEVER_MS = 3_600_000
"""A timeout that no test lives to see: a call that returns within JOIN_S was woken."""


def make_block(block_id: int, block_hash: int, is_secondary: bool = False) -> KVCacheBlock:
    block = KVCacheBlock(block_id, make_index(block_id, is_secondary))
    block.set_block_key(BlockKey((block_id,)).packed, is_full=False)
    block.hash_link = block_hash
    return block


def read(manager: KVCacheEventManager) -> list[tuple[int, int, object]]:
    manager.flush()
    return [(event.event_id, event.window_size, event.data) for event in manager.get_events()]


def run_in_thread(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    return thread, results


def join(thread: threading.Thread) -> None:
    thread.join(JOIN_S)
    assert not thread.is_alive(), "the reader was not woken"


# -- collecting -------------------------------------------------------------------------------------


def test_ids_count_in_the_order_of_events() -> None:
    manager = KVCacheEventManager(10)
    manager.enqueue_created_event((3, 1), 64)
    manager.enqueue_updated_event(KVCacheUpdatedData(7, priority=(35, 60)), 64)
    assert manager.next_event_id == 2
    assert read(manager) == [
        (0, 64, KVCacheCreatedData((3, 1))),
        (1, 64, KVCacheUpdatedData(7, priority=(35, 60))),
    ]
    assert read(manager) == []


def test_stored_blocks_are_described_with_level_and_priority() -> None:
    block = make_block(3, 77, is_secondary=True)
    block.priority = 60
    assert describe_stored_block(block) == KVCacheStoredBlockData(77, BlockKey((3,)).packed, 1, 60)
    manager = KVCacheEventManager(10)
    manager.enqueue_stored_event([make_block(1, 5), block], 64, None)
    manager.enqueue_stored_event([block], 64, 5)
    (first, second) = [data for _, _, data in read(manager)]
    assert isinstance(first, KVCacheStoredData)
    assert (first.parent_hash, [entry.block_hash for entry in first.blocks]) == (None, [5, 77])
    assert second == KVCacheStoredData(5, [describe_stored_block(block)])


def test_removals_of_a_window_wait_for_its_next_store() -> None:
    manager = KVCacheEventManager(10)
    manager.enqueue_removed_event(make_block(1, 11), 64)
    manager.enqueue_removed_event(make_block(2, 22), 8)
    manager.enqueue_removed_event(make_block(3, 33), 64)
    manager.enqueue_updated_event(KVCacheUpdatedData(9, cache_level=(0, 1)), 64)  # does not flush them
    manager.enqueue_stored_event([make_block(4, 44)], 64, None)
    kinds = [(window, type(data).__name__) for _, window, data in read(manager)]
    assert kinds == [
        (64, "KVCacheUpdatedData"),
        (64, "KVCacheRemovedData"),
        (64, "KVCacheStoredData"),
        (8, "KVCacheRemovedData"),
    ]


def test_removals_that_are_left_come_with_the_flush_window_by_window() -> None:
    manager = KVCacheEventManager(10)
    for block_id, window in ((1, 64), (2, 8), (3, 64)):
        manager.enqueue_removed_event(make_block(block_id, 10 * block_id), window)
    assert read(manager) == [(0, 8, KVCacheRemovedData([20])), (1, 64, KVCacheRemovedData([10, 30]))]


@pytest.mark.parametrize("flush_each", [False, True])
def test_oldest_events_are_dropped_and_counted(flush_each: bool) -> None:
    manager = KVCacheEventManager(3)
    for index in range(8):
        manager.enqueue_created_event((index, 0), 64)
        if flush_each:
            manager.flush()
    assert [event_id for event_id, _, _ in read(manager)] == [5, 6, 7]
    assert manager.num_dropped_events == 5
    assert manager.max_kv_event_entries == 3
    assert manager.next_event_id == 8


def test_rank_is_written_into_events_and_the_gatherer_decides_what_is_read() -> None:
    seen: list[list[KVCacheEvent]] = []

    def gather(batch: list[KVCacheEvent]) -> list[list[KVCacheEvent]]:
        seen.append(batch)
        return [batch, [event._replace(attention_dp_rank=1) for event in batch]]

    manager = KVCacheEventManager(10, attention_dp_rank=0, gather=gather)
    manager.enqueue_created_event((1, 0), 64)
    manager.flush()
    manager.flush()  # every rank takes part in every flush
    assert [len(batch) for batch in seen] == [1, 0]
    assert [event.attention_dp_rank for event in manager.get_events()] == [0, 1]


@pytest.mark.parametrize("size", [0, -1])
def test_buffer_has_room_for_one_event_at_least(size: int) -> None:
    with pytest.raises(ConfigurationError, match=f"event buffer size is {size}"):
        KVCacheEventManager(size)


# -- waiting ---------------------------------------------------------------------------------------


def test_reader_that_waits_is_woken_by_a_flush() -> None:
    manager = make_kv_cache_manager(event_manager=KVCacheEventManager(100))
    thread, results = run_in_thread(lambda: manager.get_latest_events(NEVER_MS))
    serve(manager, make_request(1, range(9)))
    assert results == []  # nothing is handed over before the flush
    manager.flush_iteration_events()
    join(thread)
    assert [event.event_id for event in results[0]] == [0, 1]


def test_reader_does_not_wait_for_what_is_there() -> None:
    manager = make_kv_cache_manager(event_manager=KVCacheEventManager(100))
    manager.flush_iteration_events()
    thread, results = run_in_thread(lambda: manager.get_latest_events(NEVER_MS))
    join(thread)
    assert len(results[0]) == 1


@pytest.mark.parametrize("timeout_ms", [None, 0, 1])
def test_reader_gets_nothing_when_the_time_is_over(timeout_ms: float | None) -> None:
    manager = make_kv_cache_manager(event_manager=KVCacheEventManager(100))
    thread, results = run_in_thread(lambda: manager.get_latest_events(timeout_ms))
    join(thread)
    assert results == [[]]


def test_empty_flush_wakes_nobody_and_a_waiting_reader_does_not_hinder_the_manager() -> None:
    manager = make_kv_cache_manager(event_manager=KVCacheEventManager(100))
    manager.flush_iteration_events()
    manager.get_latest_events(0)
    thread, results = run_in_thread(lambda: manager.get_latest_events(NEVER_MS))
    for _ in range(10):
        manager.flush_iteration_events()
    serve(manager, make_request(1, [1, 2, 3]))
    assert results == []
    assert thread.is_alive()
    manager.flush_iteration_events()
    join(thread)
    assert len(results[0]) == 1


def test_reader_in_another_thread_misses_nothing() -> None:
    manager = make_kv_cache_manager(8, event_manager=KVCacheEventManager(100_000))
    seen: list[KVCacheEvent] = []
    is_done = threading.Event()

    def read() -> None:
        is_last = False
        while not is_last:
            is_last = is_done.is_set()
            seen.extend(manager.get_latest_events(5))

    thread, _ = run_in_thread(read)
    for index in range(300):
        serve(manager, make_request(index, [index % 7, index % 3, *range(index % 5)]))
        manager.flush_iteration_events()
    is_done.set()
    join(thread)
    assert [event.event_id for event in seen] == list(range(len(seen)))
    consumer = KVCacheEventConsumer()
    consumer.apply(seen)
    blocks = manager.block_manager.window_block_managers[64].matcher.list_blocks()
    assert set(consumer.get_tree(64).blocks) == {block.hash for block in blocks}


# -- the bounded buffer ----------------------------------------------------------------------------


@pytest.mark.parametrize("flush_every", [50, 10_000])
def test_ten_thousand_stores_without_reading_keep_the_newest(flush_every: int) -> None:
    events = KVCacheEventManager(50)
    manager = make_kv_cache_manager(event_manager=events)
    for index in range(10_000):
        serve(manager, make_request(index, [index, 0]))
        if index % flush_every == 0:
            manager.flush_iteration_events()
        assert len(events._event_queue) + len(events._events) <= 2 * 50
    manager.flush_iteration_events()
    kept = manager.get_latest_events(0)
    assert [event.event_id for event in kept] == list(range(events.next_event_id - 50, events.next_event_id))
    assert events.num_dropped_events == events.next_event_id - 50
    consumer = KVCacheEventConsumer()
    consumer.apply(kept)
    assert consumer.gaps[0].num_missing == events.num_dropped_events
    assert consumer.needs_resync


# -- what is reported, and in which order --------------------------------------------------------------


def test_removals_are_merged_and_come_before_the_next_store() -> None:
    manager = make_kv_cache_manager(3, event_manager=KVCacheEventManager(100))
    for request in (make_request(1, range(11)), make_request(2, range(20, 31))):
        manager.remove_sequence(request.request_id, finish_prompt(add(manager, request)))
    manager.flush_iteration_events()
    _, first, removed, second = manager.get_latest_events(0)
    assert isinstance(first.data, KVCacheStoredData)
    assert isinstance(removed.data, KVCacheRemovedData)
    assert isinstance(second.data, KVCacheStoredData)
    stored = [block.block_hash for block in first.data.blocks]
    assert sorted(removed.data.block_hashes) == sorted(stored)
    assert removed.data.block_hashes == stored[::-1]  # the deepest first


def test_blocks_that_were_never_cached_cause_no_event() -> None:
    manager = make_kv_cache_manager(4, event_manager=KVCacheEventManager(100))
    decode(manager, add(manager, make_request(1, range(12))), range(4))
    manager.remove_sequence(1)
    add(manager, make_request(2, range(20, 34)))
    manager.flush_iteration_events()
    assert [event.event_id for event in manager.get_latest_events(0)] == [0]  # created


# -- switched off ----------------------------------------------------------------------------------


def test_without_events_nothing_is_kept_and_readers_are_told() -> None:
    manager = make_kv_cache_manager()
    for index in range(200):
        serve(manager, make_request(index, [index, 1, 2, 3, 4]))
        manager.flush_iteration_events()
    with pytest.raises(InvalidInputError, match="events are off"):
        manager.get_latest_events(0)
    with pytest.raises(InvalidInputError, match="events are off"):
        manager.get_cached_block_events()
    blocks = manager.block_manager.window_block_managers[64].block_objects()
    assert all(isinstance(block.hash_link, tuple) for block in blocks)  # not even hashes are computed
