"""All windows of a cache: their order, layers and pools, one tree, and settings that cannot work."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.builders import (
    add,
    block_ids,
    decode,
    finish_prompt,
    make_event_manager,
    make_kv_cache_manager,
    make_linear_attention,
    make_request,
    prefill,
    serve,
)
from trtkv.common import RECURRENT_STATES, CacheType, DataType
from trtkv.errors import ConfigurationError, InvalidInputError, OutOfBlocksError, UnknownIdError
from trtkv.events.kv_cache_events import KVCacheCreatedData
from trtkv.inspection.invariants import check_invariants
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.window_size_metadata import PoolConfiguration


def make_manager(**options: Any) -> KVCacheManager:
    """Six layers with two windows and two head counts."""
    settings: dict[str, Any] = {
        "num_kv_heads_per_layer": [2, 1, 1, 2, 2, 1],
        "size_per_head": 8,
        "tokens_per_block": 4,
        "blocks_per_window": {64: (10, 2), 8: (6, 1)},
        "max_num_sequences": 8,
        "max_beam_width": 2,
        "max_attention_window_vec": [64, 64, 8],
        "max_sequence_length": 64,
    }
    return KVCacheManager.from_arguments(**(settings | options))


# -- windows, layers, pools -------------------------------------------------------------------------


def test_windows_are_listed_from_the_narrowest_and_walked_with_the_widest_in_channel_0() -> None:
    manager = make_kv_cache_manager(
        windows={64: (8, 0), 8: (8, 0), RECURRENT_STATES: (4, 0)},
        linear_attention_metadata=make_linear_attention(),
        enable_partial_reuse=False,
    ).block_manager
    assert list(manager.window_block_managers) == [RECURRENT_STATES, 8, 64]
    assert [m.settings.channel for m in manager.window_block_managers.values()] == [2, 1, 0]
    assert (manager.first_window_size, manager.last_window_size) == (RECURRENT_STATES, 64)
    assert manager.is_variable_window
    trees = {id(m.matcher.tree) for m in manager.window_block_managers.values()}
    assert trees == {id(manager.lookup_tree)}


def test_layers_find_their_window_their_pool_and_their_row() -> None:
    manager = make_manager().block_manager
    assert [manager.get_layer_window_size(layer) for layer in range(6)] == [64, 64, 8, 64, 64, 8]
    assert [manager.get_layer_pool_idx(layer) for layer in range(6)] == [2, 1, 0, 2, 2, 0]
    assert [manager.get_pool_layer_idx(layer) for layer in range(6)] == [0, 0, 0, 1, 2, 1]
    assert manager.get_num_pools() == 3
    assert [(pool.window_size, pool.num_kv_heads) for pool in manager.pools] == [(8, 1), (64, 1), (64, 2)]
    assert manager.get_pool(2).num_layers == 3
    assert manager.is_variable_gqa


@pytest.mark.parametrize("layer", [-1, 6])
def test_unknown_layers_pools_and_windows_are_named(layer: int) -> None:
    manager = make_manager().block_manager
    with pytest.raises(UnknownIdError, match=f"there is no layer {layer}; layers run from 0 to 5"):
        manager.get_layer_pool_idx(layer)
    with pytest.raises(UnknownIdError, match=f"there is no pool {layer}; pools run from 0 to 2"):
        manager.get_pool(layer)
    with pytest.raises(UnknownIdError, match=r"window 5 is not managed; choose one of \[8, 64\]"):
        manager.get_window_block_manager(5)


def test_metadata_of_the_windows() -> None:
    metadata = make_manager(max_sequence_length=30).window_sizes_metadata
    narrow, wide = metadata[8], metadata[64]
    assert (narrow.allotted_primary_blocks, narrow.allotted_secondary_blocks, narrow.max_num_blocks) == (6, 1, 7)
    assert (narrow.absolute_pools_offset, narrow.num_pools) == (0, 1)
    assert (wide.absolute_pools_offset, wide.num_pools) == (1, 2)
    assert (narrow.max_token_num, narrow.max_blocks_per_seq, narrow.is_swa) == (30, 8, True)
    assert (wide.max_token_num, wide.max_blocks_per_seq, wide.is_swa) == (64, 16, False)


def test_window_may_have_its_own_head_size_and_element_type() -> None:
    manager = make_manager(pool_configurations=[PoolConfiguration(8, 16, DataType.INT8)]).block_manager
    assert manager.pool_configurations == [
        PoolConfiguration(8, 16, DataType.INT8),
        PoolConfiguration(64, 8, DataType.HALF),
    ]
    assert [pool.dtype for pool in manager.pools] == [DataType.INT8, DataType.HALF, DataType.HALF]


def test_windows_are_announced_from_the_narrowest() -> None:
    events = make_event_manager()
    manager = make_manager(event_manager=events)
    manager.flush_iteration_events()
    found = [(event.window_size, event.data) for event in manager.get_latest_events()]
    assert found == [(8, KVCacheCreatedData((6, 1))), (64, KVCacheCreatedData((10, 2)))]


# -- one tree for all -------------------------------------------------------------------------------


def test_blocks_of_all_windows_stand_at_the_same_nodes() -> None:
    manager = make_kv_cache_manager(windows={64: (8, 0), 8: (8, 0)})
    prefill(manager, make_request(1, 9))
    (first,) = manager.block_manager.lookup_tree.root.ordered_children()
    assert {channel: block.block_id for channel, block in first.values().items()} == {0: 0, 1: 0}
    check_invariants(manager)


def test_prefix_must_be_there_in_every_window() -> None:
    manager = make_kv_cache_manager(windows={64: (12, 0), 8: (12, 0)})
    serve(manager, make_request(1, 13))
    narrow = manager.block_manager.window_block_managers[8]
    last = next(b for b in narrow.matcher.list_blocks() if b.prev_block and not b.next_blocks)
    narrow.claimer.remove_from_tree(last)
    request = add(manager, make_request(2, 13))
    assert request.prepopulated_prompt_len == 8
    check_invariants(manager, {2: finish_prompt(request)})


def test_wider_window_gives_up_a_match_whose_hole_a_shorter_prefix_would_see() -> None:
    """The wide window is content with 20 tokens only (its first block is gone), the narrow one has 12."""
    manager = make_kv_cache_manager(windows={16: (16, 0), 4: (16, 0)}, max_sequence_length=64)
    serve(manager, make_request(1, 25))
    wide, narrow = (manager.block_manager.window_block_managers[window] for window in (16, 4))
    blocks = {window: manager_.matcher.list_blocks() for window, manager_ in ((16, wide), (4, narrow))}
    wide.claimer.remove_from_tree(blocks[16][0])
    for block in blocks[4][3:]:
        narrow.claimer.remove_from_tree(block)
    request = add(manager, make_request(2, 25))
    assert request.prepopulated_prompt_len == 0
    assert -(2**31) + 1 not in block_ids(manager, 2, 16)
    check_invariants(manager, {2: finish_prompt(request)})


def test_eviction_in_one_window_leaves_the_others_alone() -> None:
    manager = make_kv_cache_manager(windows={64: (16, 0), 8: (6, 0)})
    serve(manager, make_request(1, 9))
    serve(manager, make_request(2, [7] * 21))
    wide = manager.block_manager.window_block_managers[64]
    assert {tuple(b.block_key[:4]) for b in wide.matcher.list_blocks()} >= {(1, 0, 0, 0)}
    assert manager.probe_prefix_match_length(make_request(3, 9)) == 0
    check_invariants(manager)


def test_windows_need_room_each() -> None:
    manager = make_kv_cache_manager(windows={64: (8, 0), 12: (3, 0)})
    request = finish_prompt(add(manager, make_request(1, 9)))
    free = manager.num_free_blocks_per_window_size
    assert free == {12: 0, 64: 5}
    with pytest.raises(OutOfBlocksError, match="window 12 has too few free blocks"):
        add(manager, make_request(2, 4))
    decode(manager, request, [1] * 3)
    with pytest.raises(OutOfBlocksError, match="window 12 has 0 free blocks"):
        manager.add_token(1)
    assert manager.get_token_count(1) == 12
    check_invariants(manager)


def test_ids_belong_to_a_window_so_that_pins_need_one() -> None:
    manager = make_kv_cache_manager(windows={64: (8, 0), 8: (8, 0)})
    with pytest.raises(InvalidInputError, match=r"cannot be unpinned by id with windows \[8, 64\]"):
        manager.unpin_blocks_by_id([])


@pytest.mark.parametrize("windows", [{64: (16, 4), 8: (16, 0)}, {12: (16, 0), 6: (16, 0), 64: (16, 0)}])
@pytest.mark.parametrize("how", ["stored", "held", "one by one"])
def test_what_is_pinned_is_taken_back_window_by_window(windows: dict[int, tuple[int, int]], how: str) -> None:
    manager = make_kv_cache_manager(windows=windows)
    request = decode(manager, prefill(manager, make_request(1, 18)), [5] * 9)
    if how == "stored":
        pinned = manager.store_blocks_for_reuse(1, request, pin_blocks=True)
    else:
        pinned = manager.pin_blocks(1)
    manager.remove_sequence(1, request)
    by_window = {manager.max_attention_window: list(pinned), **pinned.of_other_windows}
    assert sorted(by_window) == sorted(windows)
    total = {window: blocks[0] for window, blocks in windows.items()}
    assert manager.num_free_blocks_per_window_size == {w: total[w] - len(set(by_window[w])) for w in sorted(windows)}
    if how == "one by one":
        for window, ids in by_window.items():
            for block_id in ids:
                manager.unpin_blocks_by_id([block_id], window)
    else:
        manager.unpin_blocks_by_id(pinned)
    assert manager.num_free_blocks_per_window_size == total
    with pytest.raises(InvalidInputError, match="cannot remove 1 pins"):
        manager.unpin_blocks_by_id(pinned)
    check_invariants(manager, pins={})


def test_pins_of_several_windows_are_taken_back_in_all_or_in_none() -> None:
    manager = make_kv_cache_manager(windows={64: (16, 0), 8: (16, 0)})
    prefill(manager, make_request(1, 8))
    pinned = manager.pin_blocks(1)
    manager.unpin_blocks_by_id(pinned.of_other_windows[8][:1], 8)
    with pytest.raises(InvalidInputError, match="cannot remove 1 pins"):
        manager.unpin_blocks_by_id(pinned)
    with pytest.raises(UnknownIdError, match="window 9 is not managed"):
        manager.unpin_blocks_by_id(list(pinned), 9)
    check_invariants(manager, pins={64: Counter(pinned), 8: Counter(pinned.of_other_windows[8][1:])})


# -- settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tokens_per_block": 0}, ConfigurationError, "tokens_per_block is 0"),
        ({"max_sequence_length": 0}, ConfigurationError, "max_sequence_length is 0"),
        ({"max_beam_width": 0}, ConfigurationError, "max_beam_width is 0"),
        ({"num_kv_heads_per_layer": []}, ConfigurationError, "num_kv_heads_per_layer is empty"),
        ({"max_attention_window_vec": []}, ConfigurationError, "max_attention_window_vec is empty"),
        ({"max_attention_window_vec": [64, 0]}, ConfigurationError, "attention window is 0 tokens"),
        ({"max_attention_window_vec": [-7]}, ConfigurationError, "attention window is -7 tokens"),
        ({"blocks_per_window": {64: (0, 4), 8: (6, 0)}}, ConfigurationError, "window 64 has 0 primary blocks"),
        ({"blocks_per_window": {64: (8, -1), 8: (6, 0)}}, ConfigurationError, "window 64 has -1 secondary blocks"),
        ({"blocks_per_window": {64: (8, 0)}}, UnknownIdError, "blocks_per_window has no entry for window 8"),
        ({"sink_token_length": 4}, ConfigurationError, "sink_token_length is 4"),
        ({"max_attention_window_vec": [RECURRENT_STATES]}, UnknownIdError, "has no entry for window"),
        (
            {"pool_configurations": [PoolConfiguration(8, 1, DataType.HALF)] * 2},
            ConfigurationError,
            "window 8 has two pool configurations",
        ),
        ({"linear_attention_metadata": make_linear_attention()}, ConfigurationError, "cannot be reused in part"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        make_manager(**options)


def test_connector_works_with_one_window_only() -> None:
    class Connector:
        def get_num_new_matched_tokens(self, request: object, num_computed_tokens: int) -> int:
            return 0

    with pytest.raises(ConfigurationError, match="a connector works with one window only"):
        make_manager(kv_cache_connector_manager=Connector())


def test_cache_types_are_given_by_name_too() -> None:
    manager = make_manager(cache_type="selfkonly", dtype="int8", blocks_per_window={64: (4, 0), 8: (4, 0)})
    assert manager.cache_type is CacheType.SELFKONLY
    assert not manager.cross_kv
    assert {pool.kv_factor for pool in manager.block_manager.pools} == {1}
