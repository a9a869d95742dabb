"""Handing events over: waiting and waking, the bounded buffer, what a switched-off stream costs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from trtkv import KVCacheManager, LlmRequest
from trtkv.errors import ConfigurationError, InvalidInputError
from trtkv.events.kv_cache_event_consumer import KVCacheEventConsumer
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.events.kv_cache_events import KVCacheEvent, KVCacheRemovedData, KVCacheStoredData
from trtkv.records.llm_request import LlmRequestState

JOIN_S = 60
NEVER_MS = 3_600_000
"""A timeout that no test lives to see: a call that returns within JOIN_S was woken."""


def run_in_thread(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    return thread, results


def join(thread: threading.Thread) -> None:
    thread.join(JOIN_S)
    assert not thread.is_alive(), "the reader was not woken"


def make_manager(events: KVCacheEventManager | None, num_blocks: int = 16) -> KVCacheManager:
    return KVCacheManager.from_arguments(
        [1], 4, 4, {64: (num_blocks, 0)}, 4, 1, [64], max_sequence_length=64, event_manager=events
    )


def serve(manager: KVCacheManager, request_id: int, tokens: list[int]) -> None:
    request = LlmRequest(request_id, tokens, 4)
    manager.add_sequence_batch([(request_id, len(tokens), 1)], [request])
    request.set_context_current_position(len(tokens))
    request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
    manager.remove_sequence(request_id, request)


# -- waiting ---------------------------------------------------------------------------------------


def test_reader_that_waits_is_woken_by_a_flush() -> None:
    manager = make_manager(KVCacheEventManager(100))
    thread, results = run_in_thread(lambda: manager.get_latest_events(NEVER_MS))
    serve(manager, 1, list(range(9)))
    assert results == []  # nothing is handed over before the flush
    manager.flush_iteration_events()
    join(thread)
    assert [event.event_id for event in results[0]] == [0, 1]


def test_reader_does_not_wait_for_what_is_there() -> None:
    manager = make_manager(KVCacheEventManager(100))
    manager.flush_iteration_events()
    thread, results = run_in_thread(lambda: manager.get_latest_events(NEVER_MS))
    join(thread)
    assert len(results[0]) == 1


@pytest.mark.parametrize("timeout_ms", [None, 0, 1])
def test_reader_gets_nothing_when_the_time_is_over(timeout_ms: float | None) -> None:
    manager = make_manager(KVCacheEventManager(100))
    thread, results = run_in_thread(lambda: manager.get_latest_events(timeout_ms))
    join(thread)
    assert results == [[]]


def test_empty_flush_wakes_nobody_and_a_waiting_reader_does_not_hinder_the_manager() -> None:
    manager = make_manager(KVCacheEventManager(100))
    manager.flush_iteration_events()
    manager.get_latest_events(0)
    thread, results = run_in_thread(lambda: manager.get_latest_events(NEVER_MS))
    for _ in range(10):
        manager.flush_iteration_events()
    serve(manager, 1, [1, 2, 3])
    assert results == []
    assert thread.is_alive()
    manager.flush_iteration_events()
    join(thread)
    assert len(results[0]) == 1


def test_reader_in_another_thread_misses_nothing() -> None:
    manager = make_manager(KVCacheEventManager(100_000), 8)
    seen: list[KVCacheEvent] = []
    is_done = threading.Event()

    def read() -> None:
        is_last = False
        while not is_last:
            is_last = is_done.is_set()
            seen.extend(manager.get_latest_events(5))

    thread, _ = run_in_thread(read)
    for index in range(300):
        serve(manager, index, [index % 7, index % 3, *range(index % 5)])
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
    manager = make_manager(events)
    for index in range(10_000):
        serve(manager, index, [index, 0])
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


def test_a_buffer_without_room_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="size is 0"):
        KVCacheEventManager(0)


# -- what is reported, and in which order --------------------------------------------------------------


def test_removals_are_merged_and_come_before_the_next_store() -> None:
    manager = make_manager(KVCacheEventManager(100), 3)
    serve(manager, 1, list(range(11)))
    serve(manager, 2, list(range(20, 31)))
    manager.flush_iteration_events()
    _, first, removed, second = manager.get_latest_events(0)
    assert isinstance(first.data, KVCacheStoredData)
    assert isinstance(removed.data, KVCacheRemovedData)
    assert isinstance(second.data, KVCacheStoredData)
    stored = [block.block_hash for block in first.data.blocks]
    assert sorted(removed.data.block_hashes) == sorted(stored)
    assert removed.data.block_hashes == stored[::-1]  # the deepest first


def test_blocks_that_were_never_cached_cause_no_event() -> None:
    manager = make_manager(KVCacheEventManager(100), 4)
    request = LlmRequest(1, list(range(12)), 8)
    manager.add_sequence_batch([(1, 12, 1)], [request])
    for token in range(4):
        manager.add_token(1)
        request.add_new_token(token)
    manager.remove_sequence(1)
    manager.add_sequence_batch([(2, 14, 1)], [LlmRequest(2, list(range(20, 34)), 8)])
    manager.flush_iteration_events()
    assert [event.event_id for event in manager.get_latest_events(0)] == [0]  # created


# -- switched off ----------------------------------------------------------------------------------


def test_without_events_nothing_is_kept_and_readers_are_told() -> None:
    manager = make_manager(None)
    for index in range(200):
        serve(manager, index, [index, 1, 2, 3, 4])
        manager.flush_iteration_events()
    with pytest.raises(InvalidInputError, match="events are off"):
        manager.get_latest_events(0)
    with pytest.raises(InvalidInputError, match="events are off"):
        manager.get_cached_block_events()
    blocks = manager.block_manager.window_block_managers[64].block_objects()
    assert all(isinstance(block._hash, tuple) for block in blocks)  # not even hashes are computed
