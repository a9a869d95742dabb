"""Rows 40 to 45 of docs/users_rows.md: events from which a router can rebuild the tree."""

from __future__ import annotations

import itertools
import json
import threading

import pytest

from tests.builders import WINDOW, make_event_manager, make_kv_cache_manager, make_request
from tests.users.serving import admit, compute, decode, serve
from trtkv.errors import InvalidInputError
from trtkv.events.kv_cache_event_consumer import KVCacheEventConsumer
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.events.kv_cache_events import KVCacheCreatedData, KVCacheRemovedData, KVCacheStoredData, KVCacheUpdatedData
from trtkv.exporters.trtllm_json import events_to_dicts
from trtkv.exporters.vllm_events import BlockStored, VllmEventTranslator
from trtkv.exporters.zmq_event_publisher import EventMessage, read_message
from trtkv.keys.key_builder import build_block_keys
from trtkv.keys.key_hash import hash_block_key
from trtkv.keys.packed_key import num_key_tokens
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest
from trtkv.records.retention_config import KvCacheRetentionConfig, TokenRangeRetentionConfig


def read_into(consumer: KVCacheEventConsumer, manager: KVCacheManager) -> None:
    manager.flush_iteration_events()
    consumer.apply(manager.get_latest_events(0))


def estimate_overlap(consumer: KVCacheEventConsumer, request: LlmRequest, tokens_per_block: int) -> float:
    """What a router expects to be cached of a prompt: leading full blocks known / all full blocks."""
    hashes = [0]
    for key in build_block_keys(request, tokens_per_block, request.prompt_len, False):
        hashes.append(hash_block_key(key, hashes[-1]))
    return consumer.get_tree(WINDOW).count_cached_prefix(hashes[1:]) / (len(hashes) - 1)


def test_row_40_a_router_recognises_a_prompt_that_comes_again() -> None:
    """A repeated prompt is estimated at a twelfth of its real overlap, as parents are not named."""
    manager = make_kv_cache_manager(64, event_manager=make_event_manager(), max_sequence_length=WINDOW)
    consumer = KVCacheEventConsumer()
    for index in range(3):
        serve(manager, index, [index] * 3 + list(range(50)))
        read_into(consumer, manager)
        assert estimate_overlap(consumer, make_request(9, [index] * 3 + list(range(50))), 4) > 0.9
    assert estimate_overlap(consumer, make_request(9, range(50)), 4) == 0.0
    tree = consumer.get_tree(WINDOW)
    parents = [block.parent_hash for block in tree.blocks.values()]
    assert parents.count(None) == 3
    assert all(parent is None or parent in tree.blocks for parent in parents)


def test_row_40_the_block_size_can_be_read_from_the_events() -> None:
    """Router and worker cut prompts into blocks of different sizes, and nobody notices."""
    manager = make_kv_cache_manager(16, tokens_per_block=8, event_manager=make_event_manager())
    serve(manager, 1, 41)
    manager.flush_iteration_events()
    events = manager.get_latest_events(0)
    sizes = {
        num_key_tokens(block.block_key)
        for event in events
        if isinstance(event.data, KVCacheStoredData)
        for block in event.data.blocks
    }
    assert sizes == {8}
    consumer = KVCacheEventConsumer()
    consumer.apply(events)
    assert estimate_overlap(consumer, make_request(2, 41), 8) == 1.0
    assert estimate_overlap(consumer, make_request(2, 41), 4) == 0.0
    wire = VllmEventTranslator(8, [WINDOW]).translate(events)[None]
    assert {event.block_size for event in wire if isinstance(event, BlockStored)} == {8}


def test_row_41_events_of_several_windows_are_told_apart() -> None:
    """Two windows report the same hashes, and a listener cannot say which of them holds a block."""
    manager = make_kv_cache_manager(windows={WINDOW: (16, 0), 8: (6, 0)}, event_manager=make_event_manager())
    consumer = KVCacheEventConsumer()
    serve(manager, 1, 21)
    read_into(consumer, manager)
    assert set(consumer.windows) == {WINDOW, 8}
    assert len(consumer.get_tree(WINDOW).blocks) == 5
    serve(manager, 2, range(50, 71))  # the narrow window's pool is too small for both
    read_into(consumer, manager)
    assert len(consumer.get_tree(WINDOW).blocks) == 10
    assert 0 < len(consumer.get_tree(8).blocks) <= 6


def test_row_41_an_update_of_one_field_can_be_written() -> None:
    """A block moves without changing its priority, and writing the event fails on the missing value."""
    manager = make_kv_cache_manager(4, 4, event_manager=make_event_manager(), secondary_offload_min_priority=0)
    serve(manager, 1, 9)
    serve(manager, 2, range(50, 66))
    high = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 90)])
    serve(manager, 3, 9, kv_cache_retention_config=high)
    manager.flush_iteration_events()
    events = manager.get_latest_events(0)
    updates = [event.data for event in events if isinstance(event.data, KVCacheUpdatedData)]
    assert any(data.cache_level is not None and data.priority is None for data in updates)
    assert any(data.cache_level is None and data.priority is not None for data in updates)
    values = [value["data"] for value in json.loads(json.dumps(events_to_dicts(events)))]
    assert sum(value["type"] == "updated" for value in values) == len(updates)


def test_row_42_an_overflow_leaves_a_hole_that_can_be_seen() -> None:
    """The buffer overflows in silence, or grows without end when nobody reads."""
    manager = make_kv_cache_manager(8, event_manager=KVCacheEventManager(16))
    for index in range(2000):
        serve(manager, index, [index, 1, 2, 3, 4, 5])
        manager.flush_iteration_events()
    events = manager.get_latest_events(0)
    assert len(events) == 16
    consumer = KVCacheEventConsumer()
    consumer.apply(events)
    assert consumer.gaps[0].first_missing_id == 0
    assert consumer.gaps[0].num_missing == events[0].event_id > 2000
    consumer.resync(manager.get_cached_block_events())
    blocks = manager.block_manager.window_block_managers[WINDOW].matcher.list_blocks()
    assert set(consumer.get_tree(WINDOW).blocks) == {block.hash for block in blocks}


def test_row_42_a_block_that_was_never_cached_is_never_mentioned() -> None:
    """Recycling blocks that were in use, but not cached, sends removals for hashes nobody has heard of."""
    manager = make_kv_cache_manager(4, event_manager=make_event_manager())
    for index in range(5):
        request = make_request(index, range(20 * index, 20 * index + 7))
        admit(manager, request)
        compute(manager, request)
        decode(manager, request, range(4))
        manager.remove_sequence(index)  # without the request, so nothing is stored
    manager.flush_iteration_events()
    assert [type(event.data) for event in manager.get_latest_events(0)] == [KVCacheCreatedData]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_row_43_blocks_of_a_chain_may_go_in_any_order(order: tuple[int, ...]) -> None:
    """A listener breaks when a block goes after its ancestor, or when it is told of one it does not know."""
    manager = make_kv_cache_manager(8, event_manager=make_event_manager())
    consumer = KVCacheEventConsumer()
    serve(manager, 1, [*range(12), 0])
    read_into(consumer, manager)
    window = manager.block_manager.window_block_managers[WINDOW]
    blocks = window.matcher.list_blocks()
    for index in order:
        window.claimer.remove_from_tree(blocks[index])
        read_into(consumer, manager)
        assert set(consumer.get_tree(WINDOW).blocks) == {block.hash for block in window.matcher.list_blocks()}
    assert consumer.num_unknown_blocks == 0
    before = dict(consumer.get_tree(WINDOW).blocks)
    serve(manager, 2, [*range(12), 0])  # the same hashes again
    read_into(consumer, manager)
    assert before == {}
    assert consumer.get_tree(WINDOW).count_cached_prefix([block.hash for block in blocks]) == 3


def test_row_43_eviction_starts_at_the_end_of_a_chain() -> None:
    """Ancestors go first, and everything below them is lost for nothing."""
    manager = make_kv_cache_manager(4, event_manager=make_event_manager())
    serve(manager, 1, [*range(12), 0])
    hashes = [b.hash for b in manager.block_manager.window_block_managers[WINDOW].matcher.list_blocks()]
    for index in range(3):
        admit(manager, make_request(10 + index, [50 + index]))
    manager.flush_iteration_events()
    removed = [
        value
        for event in manager.get_latest_events(0)
        if isinstance(event.data, KVCacheRemovedData)
        for value in event.data.block_hashes
    ]
    assert removed == [hashes[2], hashes[1]]
    assert manager.probe_prefix_match_length(make_request(2, [*range(12), 0])) == 4


def test_row_44_numbers_of_messages_show_a_gap() -> None:
    """Answers to a replay have another layout than published messages, and a lost one is not noticed."""
    number = (7).to_bytes(8, "big", signed=True)
    for frames in ([b"topic", number, b"x"], [b"", number, b"x"], [b"", b"topic", number, b"x"]):
        assert read_message(frames) == EventMessage(7, b"x")
    manager = make_kv_cache_manager(8, event_manager=make_event_manager())
    for index in range(20):
        serve(manager, index, [index, 1, 2, 3, 4])
    manager.flush_iteration_events()
    events = manager.get_latest_events(0)
    assert [event.event_id for event in events] == list(range(len(events)))
    consumer = KVCacheEventConsumer()
    consumer.apply(events[:4] + events[6:])
    assert consumer.needs_resync


def test_row_45_events_are_handed_over_as_soon_as_there_are_any() -> None:
    """A reader polls with a sleep, so that events come late; or nothing ever comes, as events are off by default."""
    manager = make_kv_cache_manager(8, event_manager=make_event_manager())
    manager.flush_iteration_events()
    assert [type(event.data) for event in manager.get_latest_events(0)] == [KVCacheCreatedData]
    assert manager.get_latest_events(0) == []
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(len(manager.get_latest_events(3_600_000))), daemon=True)
    thread.start()
    serve(manager, 1, 9)
    manager.flush_iteration_events()
    thread.join(60)
    assert results == [1]
    with pytest.raises(InvalidInputError, match=r"events are off.*event_buffer_max_size"):
        make_kv_cache_manager(8).get_latest_events(0)
