"""Collecting events: ids, the place of removals, and how flushes hand them over."""

from __future__ import annotations

import pytest

from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.errors import ConfigurationError
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


def make_block(block_id: int, block_hash: int, is_secondary: bool = False) -> KVCacheBlock:
    block = KVCacheBlock(block_id, make_index(block_id, is_secondary))
    block.set_block_key(BlockKey((block_id,)).packed, is_full=False)
    block.set_hash(block_hash)
    return block


def read(manager: KVCacheEventManager) -> list[tuple[int, int, object]]:
    manager.flush()
    return [(event.event_id, event.window_size, event.data) for event in manager.get_events()]


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
    block.set_priority(60)
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


def test_reader_sees_flushed_events_only() -> None:
    manager = KVCacheEventManager(10)
    manager.enqueue_created_event((1, 0), 64)
    assert manager.get_events() == []
    manager.flush()
    assert len(manager.get_events()) == 1


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
