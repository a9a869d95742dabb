"""The parts of a window together: blocks by id, counts, long keys, fast paths against their slow twins."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import (
    add,
    block_ids,
    make_kv_cache_manager,
    make_linear_attention,
    make_request,
    prefill,
    serve,
)
from tests.snapshot import describe_window, find_changes
from trtkv.common import PLACEHOLDER_BLOCK_ID, RECURRENT_STATES
from trtkv.errors import UnknownIdError
from trtkv.inspection.invariants import check_invariants
from trtkv.keys.block_key import BlockKey
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.window_block_manager import WindowBlockManager


def window_of(manager: KVCacheManager, window: int = 64) -> WindowBlockManager:
    return manager.block_manager.window_block_managers[window]


# -- blocks -----------------------------------------------------------------------------------------


def test_blocks_are_made_when_they_are_asked_for_and_keep_their_place() -> None:
    window = window_of(make_kv_cache_manager(5000, 4))
    assert window.block_objects() == []
    block = window.get_block_by_id(1500)
    assert window.get_block_by_id(1500) is block
    assert [b.block_id for b in window.block_objects()] == list(range(1501))
    window.get_block_by_id(1501)
    assert [b.block_id for b in window.block_objects()] == list(range(1501 + 1024))
    host = window.get_block_by_id(5001)
    assert (host.is_primary, host.memory_pool_block_index & 0xFF) == (False, 1)
    assert window.eviction_policy.free_queues() == [(0, 35, list(range(5000))), (1, 35, [5000, 5001, 5002, 5003])]


def test_looking_at_a_block_does_not_change_who_is_next() -> None:
    manager = make_kv_cache_manager(8)
    window_of(manager).get_block_by_id(6)
    add(manager, make_request(1, 9))
    assert block_ids(manager, 1) == [0, 1, 2]
    check_invariants(manager)


@pytest.mark.parametrize("block_id", [12, -1, -2, PLACEHOLDER_BLOCK_ID])
def test_ids_that_are_not_there_are_named(block_id: int) -> None:
    window = window_of(make_kv_cache_manager(8, 4))
    with pytest.raises(UnknownIdError, match=f"window 64 has no block {block_id}; ids run from 0 to 11"):
        window.get_block_by_id(block_id)


def test_placeholders_of_a_recurrent_window_have_ids_below_minus_one() -> None:
    manager = make_kv_cache_manager(
        windows={64: (8, 0), RECURRENT_STATES: (4, 0)},
        linear_attention_metadata=make_linear_attention(num_placeholder_blocks=3),
        enable_partial_reuse=False,
    )
    window = window_of(manager, RECURRENT_STATES)
    assert [window.get_block_by_id(i).is_placeholder for i in (-2, -3, -4)] == [True] * 3
    with pytest.raises(UnknownIdError):
        window.get_block_by_id(-5)
    assert window.settings.num_placeholder_blocks == 3


def test_counts_are_those_of_the_levels() -> None:
    manager = make_kv_cache_manager(8, 4)
    window = window_of(manager)
    add(manager, make_request(1, 9))
    settings = window.settings
    assert (settings.num_primary_blocks, settings.num_secondary_blocks, settings.max_num_blocks) == (8, 4, 12)
    assert (window.num_free_blocks, window.num_free_secondary_blocks, window.num_allocated_blocks) == (5, 4, 7)
    assert (settings.window_size, settings.is_swa, settings.is_recurrent_state) == (64, False, False)


def test_window_as_wide_as_the_longest_sequence_does_not_slide() -> None:
    manager = make_kv_cache_manager(windows={64: (8, 0), 63: (8, 0), 100: (8, 0)})
    assert [window_of(manager, size).settings.is_swa for size in (63, 64, 100)] == [True, False, False]


# -- long keys --------------------------------------------------------------------------------------


def test_long_key_is_cut_into_blocks() -> None:
    manager = make_kv_cache_manager()
    prefill(manager, make_request(1, 13))
    window = window_of(manager)

    def find(*tokens: int) -> int | None:
        block = window.matcher.find_blocks_in_reuse_tree_by_block_key(BlockKey(tokens).packed)
        return None if block is None else block.block_id

    assert [find(*range(1, n + 1)) for n in (0, 4, 8, 10, 12, 13)] == [-1, 0, 1, 2, 2, None]
    assert find(1, 2, 3, 4, 9) is None


def test_long_key_repeats_its_constraints_on_every_block() -> None:
    manager = make_kv_cache_manager()
    options: dict[str, Any] = {"cache_salt": "s", "lora_task_id": 3, "input_token_extra_ids": list(range(13))}
    prefill(manager, make_request(1, 13, **options))
    window = window_of(manager)
    for length, expected in ((8, 1), (9, 2), (12, 2)):
        key = BlockKey(tuple(range(1, length + 1)), tuple(range(length)), 3, "s").packed
        block = window.matcher.find_blocks_in_reuse_tree_by_block_key(key)
        assert block is not None
        assert block.block_id == expected
    find = window.matcher.find_blocks_in_reuse_tree_by_block_key
    assert find(BlockKey(tuple(range(1, 9)), None, 3, "s").packed) is None
    root = find(BlockKey((), (), 3, "s").packed)
    assert root is window.matcher.root_block


# -- making blocks -------------------------------------------------------------------------------------


def test_blocks_made_beforehand_change_nothing_but_the_time() -> None:
    managers = [make_kv_cache_manager(12, 4, preallocate_blocks=choice) for choice in (False, True)]
    assert [len(window_of(manager).block_objects()) for manager in managers] == [0, 16]
    for manager in managers:
        serve(manager, make_request(1, 13))
        serve(manager, make_request(2, [7] * 30))
        check_invariants(manager)
    assert not find_changes(*(describe_window(window_of(manager)) for manager in managers))
