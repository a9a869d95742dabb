"""Offset tables: what copyBlockOffsets and getBlockOffsetsOfBatch write, for every layout of pools."""

from __future__ import annotations

import numpy as np
import pytest

from tests.builders import add, finish_prompt, make_kv_cache_manager, make_linear_attention, make_request, prefill
from trtkv import KVCacheManager
from trtkv.common import PLACEHOLDER_BLOCK_ID, RECURRENT_STATES, CacheType, DataType
from trtkv.errors import InvalidInputError, UnknownIdError
from trtkv.records.kv_cache_index import (
    NULL_ENTRY,
    NULL_INDEX,
    SECONDARY_POOL_FLAG,
    get_slot,
    is_primary,
    make_index,
    to_int32,
)

UNSET = -77


def make_heads_manager(num_kv_heads: list[int], windows: list[int], **options) -> KVCacheManager:
    """A manager with one head count and one window per layer."""
    settings = {"tokens_per_block": 4, "max_num_sequences": 8, "max_beam_width": 3, "max_sequence_length": 64}
    return KVCacheManager.from_arguments(
        num_kv_heads,
        16,
        blocks_per_window=dict.fromkeys(windows, (16, 0)),
        max_attention_window_vec=windows,
        **(settings | options),
    )


def read_table(manager: KVCacheManager, request_id: int, num_rows: int = 1, first_row: int = 0) -> np.ndarray:
    dimensions = manager.offset_table_dimensions
    table = np.full((dimensions.num_pools, num_rows, 2, dimensions.max_blocks_per_seq), UNSET, dtype=np.int32)
    manager.copy_block_offsets(table, first_row, request_id)
    return table


def row(table: np.ndarray, pool: int, field: int, beam: int = 0) -> list[int]:
    entries = table[pool, beam, field]
    return entries[entries != UNSET].tolist()


# -- KVCacheIndex --------------------------------------------------------------------------------------


def test_an_index_keeps_slot_and_level_apart():
    for slot in (0, 1, 12345, 2**31 - 2):
        assert get_slot(make_index(slot)) == get_slot(make_index(slot, level=1)) == slot
        assert is_primary(make_index(slot))
        assert not is_primary(make_index(slot, level=1))
    assert make_index(5, level=1) == 5 + 2**31 == 5 | SECONDARY_POOL_FLAG


def test_raw_entries_are_signed_32_bit_numbers():
    assert to_int32(make_index(5)) == 5
    assert to_int32(make_index(5, level=1)) == 5 - 2**31
    assert to_int32(NULL_INDEX) == NULL_ENTRY == -1
    assert np.array([to_int32(make_index(7, level=1))], dtype=np.int32).view(np.uint32)[0] == 7 + 2**31


# -- entries -----------------------------------------------------------------------------------------------


def test_entry_is_slot_times_layers_times_two_and_one_more_for_values():
    manager = make_heads_manager([2, 2, 2], [64])
    add(manager, make_request(0, 5))
    add(manager, make_request(1, 9))
    table = read_table(manager, 1)
    slots = manager.get_cache_block_ids(1, 64)[0]
    assert slots == [2, 3, 4]
    assert row(table, 0, 0) == [2 * 3 * 2, 3 * 3 * 2, 4 * 3 * 2]
    assert row(table, 0, 1) == [2 * 3 * 2 + 1, 3 * 3 * 2 + 1, 4 * 3 * 2 + 1]


def test_keys_only_have_equal_entries_for_both_fields():
    manager = make_heads_manager([1, 1], [64], cache_type=CacheType.SELFKONLY)
    add(manager, make_request(0, 9))
    table = read_table(manager, 0)
    assert row(table, 0, 0) == row(table, 0, 1) == [0, 2, 4]


def test_every_pool_counts_its_own_layers():
    """Window 64: two layers of 1 head, one of 4; window 8: one layer of 1 head, two of 4."""
    manager = make_heads_manager([1, 4, 1, 4, 1, 4], [64, 64, 64, 8, 8, 8])
    assert [pool.num_layers for pool in manager.block_manager.pools] == [1, 2, 2, 1]
    add(manager, make_request(0, 5))
    add(manager, make_request(1, 5))
    table = read_table(manager, 1)
    for pool, num_layers in enumerate([1, 2, 2, 1]):
        assert row(table, pool, 0) == [2 * num_layers * 2, 3 * num_layers * 2]
        assert row(table, pool, 1) == [entry + 1 for entry in row(table, pool, 0)]


def test_pools_of_scales_and_index_keys_have_rows_too():
    manager = make_heads_manager(
        [2, 2],
        [64],
        dtype=DataType.NVFP4,
        enable_indexer_k_cache=True,
        indexer_k_cache_index_head_dim=128,
    )
    manager_16 = make_heads_manager([2, 2], [64], enable_indexer_k_cache=True, indexer_k_cache_index_head_dim=128)
    assert (manager.num_pools, manager_16.num_pools) == (3, 2)
    for each in (manager, manager_16):
        add(each, make_request(0, 9))
        table = read_table(each, 0)
        for pool in range(each.num_pools):
            assert row(table, pool, 0) == [0, 4, 8]


def test_states_come_layer_by_layer_so_an_entry_is_the_slot():
    manager = make_kv_cache_manager(
        windows={RECURRENT_STATES: (8, 0), 64: (16, 0)},
        enable_partial_reuse=False,
        linear_attention_metadata=make_linear_attention(),
    )
    add(manager, make_request(0, 22))
    table = read_table(manager, 0)
    assert [block_id >= 0 for block_id in manager.get_cache_block_ids(0, RECURRENT_STATES)[0]] == [
        False,
        True,
        False,
        True,
        False,
        True,
    ]
    assert row(table, 0, 0) == row(table, 0, 1) == [NULL_ENTRY, 0, NULL_ENTRY, 1, NULL_ENTRY, 2]
    assert row(table, 1, 0) == [0, 2, 4, 6, 8, 10]


def test_positions_never_loaded_have_no_entry():
    manager = make_kv_cache_manager(windows={8: (20, 0)}, enable_partial_reuse=False)
    request = prefill(manager, make_request(0, 24))
    manager.remove_sequence(0, request)
    first = manager.block_manager.get_block_by_id(0, 8)
    first.detach_from_lookup_node()
    add(manager, make_request(1, 26))
    ids = manager.get_cache_block_ids(1, 8)[0]
    assert ids[:2] == [PLACEHOLDER_BLOCK_ID, 1]
    table = read_table(manager, 1)
    assert row(table, 0, 0)[:2] == [NULL_ENTRY, 2]
    assert row(table, 0, 1)[:2] == [NULL_ENTRY, 3]


@pytest.mark.parametrize("compatibility", [True, False])
def test_positions_that_left_the_window_have_no_entry(compatibility):
    manager = make_kv_cache_manager(windows={8: (20, 0)}, compatibility=compatibility)
    add(manager, make_request(0, 12))
    before = row(read_table(manager, 0), 0, 0)
    for _ in range(4):
        manager.add_token(0)
    assert manager.sequences[0].get_num_front_blocks_removed(8) == 2
    assert row(read_table(manager, 0), 0, 0)[:3] == (before if compatibility else [-1, -1, before[2]])


def test_entries_follow_the_slot_when_blocks_change_level():
    """An onboarded block lies in another slot than its id says."""
    manager = make_kv_cache_manager(4, 4)
    request = prefill(manager, make_request(0, 9))
    manager.remove_sequence(0, request)
    other = add(manager, make_request(1, [50 + token for token in range(16)]))
    manager.remove_sequence(1)
    again = add(manager, make_request(2, 9))
    assert again.prepopulated_prompt_len == 8
    assert other.prepopulated_prompt_len == 0
    blocks = [manager.block_manager.get_block_by_id(block_id, 64) for block_id in manager.get_cache_block_ids(2, 64)[0]]
    assert all(block.is_primary for block in blocks)
    assert any(get_slot(block.memory_pool_block_index) != block.block_id for block in blocks)
    assert row(read_table(manager, 2), 0, 0) == [2 * get_slot(block.memory_pool_block_index) for block in blocks]


# -- rows ----------------------------------------------------------------------------------------------------


def test_beams_have_a_row_each():
    manager = make_heads_manager([1], [64])
    add(manager, make_request(0, 6, beam_width=3))
    table = read_table(manager, 0, num_rows=5, first_row=1)
    assert [row(table, 0, 0, beam) for beam in range(5)] == [[], [0, 2], [0, 4], [0, 6], []]


def test_the_longest_row_is_returned_and_the_rest_left_alone():
    manager = make_heads_manager([1, 1], [64, 8])
    add(manager, make_request(0, 14))
    table = np.full((2, 1, 2, 16), UNSET, dtype=np.int32)
    assert manager.copy_block_offsets(table, 0, 0) == 4
    assert (table[..., 4:] == UNSET).all()
    assert (table[..., :4] != UNSET).all()


def test_a_batch_takes_requests_of_consecutive_ids():
    manager = make_heads_manager([1], [64])
    for request_id in (3, 4, 5):
        add(manager, make_request(request_id, 6, beam_width=2))
    table = np.full((1, 6, 2, 16), UNSET, dtype=np.int32)
    manager.get_block_offsets_of_batch(table, 3, 3, 2)
    for index, request_id in enumerate((3, 4, 5)):
        own = read_table(manager, request_id, num_rows=2)
        assert np.array_equal(table[:, 2 * index : 2 * index + 2], own)


def test_a_decoding_sequence_shows_its_new_block():
    manager = make_heads_manager([1], [64])
    request = finish_prompt(add(manager, make_request(0, 8)))
    manager.add_token(request.request_id)
    assert row(read_table(manager, 0), 0, 0) == [0, 2, 4]
    manager.rewind_kv_cache(0, 1)
    assert row(read_table(manager, 0), 0, 0) == [0, 2]


def test_tensors_of_the_cpu_are_filled_in_place():
    torch = pytest.importorskip("torch")
    manager = make_heads_manager([1], [64])
    add(manager, make_request(0, 6))
    table = torch.full((1, 1, 2, 16), UNSET, dtype=torch.int32)
    assert manager.copy_block_offsets(table, 0, 0) == 2
    assert table[0, 0, :, :3].tolist() == [[0, 2, UNSET], [1, 3, UNSET]]


# -- errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dtype", "first_row"),
    [
        ((1, 2, 2, 1), np.int32, 0),  # too few columns
        ((1, 2, 2, 4), np.int32, 1),  # too few rows behind the first
        ((1, 2, 2, 4), np.int32, -1),
        ((0, 2, 2, 4), np.int32, 0),  # too few pools
        ((1, 2, 1, 4), np.int32, 0),  # no place for values
        ((2, 2, 4), np.int32, 0),
        ((1, 2, 2, 4), np.int64, 0),
    ],
)
def test_a_table_that_does_not_fit_is_left_alone(shape, dtype, first_row):
    manager = make_heads_manager([1], [64])
    add(manager, make_request(0, 6, beam_width=2))
    table = np.full(shape, UNSET, dtype=dtype)
    with pytest.raises(InvalidInputError, match="needs an int32 table of at least"):
        manager.copy_block_offsets(table, first_row, 0)
    assert (table == UNSET).all()


def test_unknown_requests_and_windows_are_named():
    manager = make_heads_manager([1], [64])
    table = np.zeros((1, 1, 2, 16), dtype=np.int32)
    with pytest.raises(UnknownIdError, match="request 7"):
        manager.copy_block_offsets(table, 0, 7)
    add(manager, make_request(0, 6))
    with pytest.raises(UnknownIdError, match="window 9"):
        manager.get_cache_block_ids(0, 9)
    with pytest.raises(UnknownIdError, match="request 7"):
        manager.get_batch_cache_block_ids([0, 7], 64)


# -- ids ------------------------------------------------------------------------------------------------------


def test_ids_are_given_per_request_and_beam_and_are_copies():
    manager = make_heads_manager([1, 1], [64, 8])
    add(manager, make_request(0, 6, beam_width=2))
    add(manager, make_request(1, 5))
    assert manager.get_batch_cache_block_ids([1, 0], 64) == [[[3, 4]], [[0, 1], [0, 2]]]
    assert manager.get_batch_cache_block_ids([0], 8) == [manager.get_cache_block_ids(0, 8)]
    manager.get_cache_block_ids(0, 64)[0].clear()
    assert manager.get_cache_block_ids(0, 64) == [[0, 1], [0, 2]]
    assert manager.get_last_block_id(1) == manager.get_cache_block_ids(1, 8)[0][-1]
