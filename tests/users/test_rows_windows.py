"""Public reports about windows and hybrid caches, tried here; the numbers are those of the reports' list."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import pytest

from tests.builders import add, finish_prompt, make_event_manager, make_kv_cache_manager, make_request, prefill
from tests.fake_memory import FakeMemory, cached_blocks
from tests.shapes.fake_server import FakeServer, check_free_counts
from trtkv import KVCacheManager, LlmRequest
from trtkv.common import DataType
from trtkv.errors import ConfigurationError, OutOfBlocksError
from trtkv.events.kv_cache_events import KVCacheStoredData, KVCacheUpdatedData
from trtkv.exporters.trtllm_json import event_from_dict, event_to_dict
from trtkv.pools.capacity_estimation import calculate_max_num_blocks, group_layers_by_window_size
from trtkv.scheduler.request_fit import check_blocks_can_ever_fit

FULL = 64
SMALL = 8


def make_server(memory: FakeMemory, **options) -> FakeServer:
    return FakeServer(make_kv_cache_manager(copy_engine=memory, **options), memory, Random(1))


def run_request(server: FakeServer, prompt: list[int], num_new: int) -> LlmRequest:
    """Admit, compute and store a prompt, generate some tokens; every read is checked."""
    (request,) = server.admit([prompt])
    server.compute_chunk(request, len(prompt))
    server.manager.store_context_blocks(request)
    for _ in range(num_new):
        assert server.decode(request)
        server.check()
    return request


def numbers(first: int, count: int) -> list[int]:
    return list(range(first, first + count))


# -- 22: reuse across windows returns blocks that are valid in one window only -----------------------------------


def test_22_the_usable_prefix_is_the_minimum_over_windows():
    memory = FakeMemory()
    server = make_server(memory, windows={SMALL: (20, 0), FULL: (20, 0)}, enable_partial_reuse=False)
    manager = server.manager
    first = run_request(server, numbers(0, 40), 1)
    server.remove(first)
    assert manager.probe_prefix_match_length(make_request(50, numbers(0, 41))) == 40

    # One block near the end goes, from the small window only: full attention alone would still offer 40 tokens.
    for tokens, block in list(cached_blocks(manager, SMALL)):
        if len(tokens) == 36:
            block.detach_from_lookup_node()
    second = run_request(server, numbers(0, 41), 12)
    assert second.prepopulated_prompt_len == 32
    assert len([i for i in manager.get_cache_block_ids(second.request_id, FULL)[0] if i < 10]) == 10
    server.remove(second)


def test_22_each_window_stores_what_it_still_holds():
    memory = FakeMemory()
    server = make_server(memory, windows={SMALL: (40, 0), FULL: (40, 0)})
    (request,) = server.admit([numbers(0, 20)])
    server.compute_chunk(request, 20)
    for _ in range(13):  # nothing is stored before the window has moved on
        server.decode(request)
    server.remove(request)
    cached = {w: sorted(len(tokens) for tokens, _ in cached_blocks(server.manager, w)) for w in (SMALL, FULL)}
    assert cached[FULL] == [4, 8, 12, 16, 20, 24, 28, 32, 33]
    assert cached[SMALL] == [28, 32, 33]


# -- 41: events of two windows cannot be told apart; an update with one changed field breaks the serialiser -------


def test_41_every_event_names_its_window_and_survives_json():
    events = make_event_manager()
    manager = make_kv_cache_manager(windows={SMALL: (6, 6), FULL: (6, 6)}, event_manager=events)
    for request_id in range(3):
        request = prefill(manager, make_request(request_id, numbers(100 * request_id, 17)))
        manager.remove_sequence(request_id, request)
    add(manager, make_request(9, numbers(0, 17)))
    manager.flush_iteration_events()
    seen = manager.get_latest_events()
    assert {event.window_size for event in seen} == {SMALL, FULL}
    for event in seen:
        assert event_from_dict(json.loads(json.dumps(event_to_dict(event)))) == event
    for window in (SMALL, FULL):
        own = [event.data for event in seen if event.window_size == window]
        stored = {block.block_hash for data in own if isinstance(data, KVCacheStoredData) for block in data.blocks}
        updates = [data for data in own if isinstance(data, KVCacheUpdatedData)]
        assert updates
        assert {update.block_hash for update in updates} <= stored
        assert all(update.cache_level is not None and update.priority is None for update in updates)


# -- 53: the hit rate of a small window collapses long before the cache is full ------------------------------------


def finished_sequence(manager: KVCacheManager, request_id: int, first_token: int, num_tokens: int) -> list[int]:
    """One prompt with one generated token, stored and removed; returns the prompt."""
    tokens = numbers(first_token, num_tokens)
    request = prefill(manager, make_request(request_id, tokens))
    request.add_new_token(7)
    manager.add_token(request_id)
    manager.remove_sequence(request_id, request)
    return tokens


def fill_up(manager: KVCacheManager, num_blocks: int) -> None:
    """Take blocks in small requests and let go of them, so that this many others are evicted."""
    for index in range(num_blocks):
        request = add(manager, make_request(1000 + index, numbers(5000 + 10 * index, 4)))
        finish_prompt(request).add_new_token(1)
        manager.store_context_blocks(request)
    for index in range(num_blocks):
        manager.remove_sequence(1000 + index)


def test_53_no_hit_is_lost_while_there_is_room():
    """A prompt of 12 blocks in a pool of 48: a quarter is used, then half, then all."""
    manager = make_kv_cache_manager(windows={SMALL: (48, 0)})
    prompt = finished_sequence(manager, 0, 0, 48)
    for taken in (0, 12, 23):
        fill_up(manager, taken)
        assert manager.probe_prefix_match_length(make_request(50, [*prompt, 1])) == 48


def test_53_blocks_inside_the_window_outlive_those_before_it():
    """Of 12 blocks the last two are inside; the ten before them go first, and no hit is lost."""
    for num_evicted in range(13):
        manager = make_kv_cache_manager(windows={SMALL: (13, 0)})
        prompt = finished_sequence(manager, 0, 0, 48)
        fill_up(manager, 1 + num_evicted)  # the first takes the block of the generated token, which is not cached
        matched = manager.probe_prefix_match_length(make_request(50, [*prompt, 1]))
        assert matched == (48 if num_evicted <= 10 else 0), num_evicted


def test_53_a_prompt_that_leaves_in_its_last_block_keeps_its_hit():
    """Partial reuse finds the common tokens of the last block; without it the block before it ends the match."""
    for partial, expected in ((True, 46), (False, 44)):
        manager = make_kv_cache_manager(windows={SMALL: (48, 0)}, enable_partial_reuse=partial)
        prompt = finished_sequence(manager, 0, 0, 48)
        fill_up(manager, 12)
        branch = [*prompt[:46], 900, 901, 902]
        assert manager.probe_prefix_match_length(make_request(50, branch)) == expected


# -- 54: slots leak, or a page too many slides out -------------------------------------------------------------------


@pytest.mark.pure
@pytest.mark.parametrize("window", [8, 7, 5])
def test_54_each_block_that_slides_out_is_released_once(window, monkeypatch):
    memory = FakeMemory()
    server = make_server(memory, windows={window: (24, 0)})
    blocks = server.manager.block_manager.window_block_managers[window]
    released: Counter[int] = Counter()
    release_block = blocks.eviction_policy.release_block

    def count_release(block, to_front=False):
        released[block.block_id] += not block.is_placeholder
        release_block(block, to_front)

    monkeypatch.setattr(blocks.eviction_policy, "release_block", count_release)
    (request,) = server.admit([numbers(0, 9)])
    server.compute_chunk(request, 9)
    taken: set[int] = set()
    while request.get_num_tokens(0) < 9 + 4 * window:
        assert server.decode(request)
        server.check()
        taken |= set(server.manager.get_cache_block_ids(request.request_id, window)[0])
        num_gone = server.manager.sequences[request.request_id].get_num_front_blocks_removed(window)
        num_tokens = server.manager.get_token_count(request.request_id)
        assert num_gone * 4 <= num_tokens - window < (num_gone + 1) * 4
        assert sum(released.values()) == num_gone
    server.remove(request)
    ids = Counter(server.manager.block_manager.window_block_managers[window].eviction_policy.free_queues()[0][2])
    assert ids == Counter(range(24))
    assert set(released.values()) <= {0, 1}
    check_free_counts(server.manager)


# -- 57: a block that slid out belongs to another sequence, and is stored as the first one's -------------------------


def test_57_a_block_that_went_to_another_sequence_is_not_stored():
    memory = FakeMemory()
    server = make_server(memory, windows={SMALL: (7, 0)})
    manager = server.manager
    (first,) = server.admit([numbers(0, 12)])
    server.compute_chunk(first, 12)
    for _ in range(4):
        server.decode(first)
    slid_out = manager.get_cache_block_ids(first.request_id, SMALL)[0][:2]
    (second,) = server.admit([numbers(500, 12)])
    server.compute_chunk(second, 12)
    assert set(slid_out) & set(manager.get_cache_block_ids(second.request_id, SMALL)[0])
    manager.store_context_blocks(first)  # keys of the first, positions of which it has let go
    server.check()
    server.remove(first)
    assert manager.probe_prefix_match_length(make_request(50, numbers(0, 9))) == 0
    manager.store_context_blocks(second)
    server.remove(second)
    server.check()


def test_57_the_recorded_behaviour_stores_it():
    manager = make_kv_cache_manager(windows={SMALL: (7, 0)}, compatibility=True)
    first = finish_prompt(add(manager, make_request(0, numbers(0, 12))))
    for token in range(5):
        manager.add_token(0)
        first.add_new_token(token)
    add(manager, make_request(1, numbers(500, 12)))
    manager.store_context_blocks(first)
    stolen = {block.block_id for _, block in cached_blocks(manager, SMALL)}
    assert stolen & set(manager.get_cache_block_ids(1, SMALL)[0])


# -- 58: memory per window is wrong with several head counts; a window that cannot hold one sequence ------------------


HEADS = [1, 4, 1, 4, 2, 2]
WINDOWS = [SMALL, SMALL, FULL, FULL, SMALL, FULL]


def share_memory(num_bytes: int, **options) -> dict[int, tuple[int, int]]:
    return calculate_max_num_blocks(
        dtype=DataType.HALF,
        num_kv_heads_per_layer=HEADS,
        size_per_head=16,
        tokens_per_block=4,
        window_size_to_layers=group_layers_by_window_size(WINDOWS, len(HEADS)),
        allotted_primary_mem_bytes=num_bytes,
        allotted_secondary_mem_bytes=0,
        kv_factor=2,
        **options,
    )


def build(blocks: dict[int, tuple[int, int]]) -> KVCacheManager:
    return KVCacheManager.from_arguments(HEADS, 16, 4, blocks, 4, 1, WINDOWS, max_sequence_length=FULL)


@pytest.mark.parametrize("shares", [None, "0.25,0.75"])
def test_58_shares_are_bytes_whatever_the_head_counts(shares):
    num_bytes = 1_000_000
    manager = build(share_memory(num_bytes, window_size_shares=shares))
    bytes_of = Counter()
    for pool in manager.block_manager.pools:
        bytes_of[pool.window_size] += pool.primary_bytes
    parts = {SMALL: 0.5, FULL: 0.5} if shares is None else {SMALL: 0.25, FULL: 0.75}
    for window, part in parts.items():
        block_bytes = sum(p.block_bytes for p in manager.block_manager.pools if p.window_size == window)
        assert 0 <= bytes_of[window] - part * num_bytes + block_bytes < 2 * block_bytes
    assert manager.get_kv_cache_stats().allocated_bytes == sum(bytes_of.values())


def test_58_a_window_without_a_block_is_refused_at_once():
    with pytest.raises(ConfigurationError, match="has 0 primary blocks; give it at least 1"):
        build(share_memory(100))


def test_58_a_window_that_cannot_hold_a_sequence_refuses_it_when_it_arrives():
    manager = build(share_memory(10_000))
    assert manager.window_sizes_metadata[FULL].allotted_primary_blocks == 3
    request = make_request(0, 20)
    with pytest.raises(OutOfBlocksError, match="the whole pool has 3"):
        check_blocks_can_ever_fit(request, manager)
    with pytest.raises(OutOfBlocksError, match="too few free blocks"):
        add(manager, request)
    assert not manager.sequences
