"""Whoever reads the blocks of a sequence reads the same row of slots."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.builders import (
    add,
    decode,
    finish_prompt,
    make_kv_cache_manager,
    make_linear_attention,
    make_request,
    prefill,
)
from trtkv import KVCacheManager, LlmRequest
from trtkv.common import RECURRENT_STATES
from trtkv.errors import InvalidInputError
from trtkv.executor.model_spec import ModelSpec
from trtkv.executor.paged_kv_cache import PagedKvCache
from trtkv.exporters.page_tables import export_block_table
from trtkv.inspection.invariants import check_invariants
from trtkv.resource_manager.kv_cache_resource_manager import KVCacheResourceManager
from trtkv.window_block_manager.sequences import write_slot_at


def read_rows(manager: KVCacheManager, request: LlmRequest) -> dict[str, list[int]]:
    """The row of a request with one beam in the offset table, a page table, the executor's table and its batches."""
    request_id, window = request.request_id, manager.max_attention_window
    dimensions = manager.offset_table_dimensions
    table = np.zeros((dimensions.num_pools, 1, 2, dimensions.max_blocks_per_seq), np.int32)
    length = manager.copy_block_offsets(table, 0, request_id)
    pool = manager.block_manager.pools[-1]
    manager.allocate_pools()
    heads = tuple(pool.num_kv_heads for _ in range(manager.block_manager.num_layers))
    spec = ModelSpec(heads, pool.size_per_head, (None,) * len(heads), torch.float16)
    cache = PagedKvCache(manager, spec, "cpu", 1)
    cache.update_rows(request_id, [0])
    cache.offsets.flush()
    return {
        "ids": manager.get_cache_block_ids(request_id, window)[0],
        "offsets": (table[-1, 0, 0, :length] // (2 * pool.num_layers)).tolist(),
        "pages": export_block_table(manager, [request_id], window).block_table[0].tolist(),
        "executor": (cache.offsets.table[-1, 0, 0, :length] // (2 * pool.num_layers)).tolist(),
        "batches": KVCacheResourceManager(manager).get_cache_indices(request),
    }


@pytest.mark.parametrize("num_rewound", [0, 1, 2])
def test_all_rows_agree_after_a_rewind(num_rewound: int) -> None:
    manager = make_kv_cache_manager()
    request = make_request(0, list(range(7)))
    add(manager, request)
    for _ in range(2):
        manager.add_token(0)
    manager.rewind_kv_cache(0, num_rewound)
    expected = [0, 1, 2] if not num_rewound else [0, 1]
    assert set(map(tuple, read_rows(manager, request).values())) == {tuple(expected)}
    check_invariants(manager)


@pytest.mark.parametrize(
    "windows", [{64: (16, 0)}, {8: (16, 4), 64: (16, 4)}, {64: (16, 0), RECURRENT_STATES: (16, 0)}]
)
def test_rows_are_as_long_as_ids_after_any_rewind(windows: dict[int, tuple[int, int]]) -> None:
    states = make_linear_attention() if RECURRENT_STATES in windows else None
    manager = make_kv_cache_manager(windows=windows, linear_attention_metadata=states, enable_partial_reuse=False)
    manager.set_spec_decoding_budget(0, 6)
    add(manager, make_request(0, 7))
    for num_added, num_rewound in ((2, 2), (6, 5), (4, 1), (1, 5), (9, 6)):
        manager.add_tokens([0] * num_added)
        manager.rewind_kv_cache(0, num_rewound)
        for window in windows:
            rows = manager.get_sequence(0).get_rows(window)
            assert [len(row) for row in rows] == [len(ids) for ids in manager.get_cache_block_ids(0, window)]
        check_invariants(manager)


def test_a_block_given_back_by_a_rewind_has_one_owner_in_all_tables() -> None:
    manager = make_kv_cache_manager()
    first, second = make_request(0, 7), make_request(1, [50, 51, 52])
    add(manager, first)
    manager.add_tokens([0, 0])
    manager.rewind_kv_cache(0, 2)
    add(manager, second)
    assert manager.get_cache_block_ids(1, 64) == [[2]]
    for name, row in read_rows(manager, first).items():
        assert row == [0, 1], name


def test_positions_that_left_the_window_name_nobodys_slot() -> None:
    manager = make_kv_cache_manager(5, window=8, max_sequence_length=24)
    request = finish_prompt(add(manager, make_request(0, 15)))
    decode(manager, request, [1])
    others = [add(manager, make_request(number, [50 * number] * 4)) for number in (1, 2)]
    removed = manager.get_sequence(0).get_num_front_blocks_removed(8)
    assert removed == 2
    rows = read_rows(manager, request)
    ids = rows.pop("ids")
    assert set(ids[:removed]) == {manager.get_cache_block_ids(other.request_id, 8)[0][0] for other in others}
    pages = rows.pop("pages")
    assert pages == [0] * removed + ids[removed:]  # 0 is the padding asked for
    for name, row in rows.items():
        assert row == [-1] * removed + ids[removed:], name
    check_invariants(manager)


def read_table(manager: KVCacheManager) -> list[int]:
    table = np.full((1, 1, 2, 16), -9, np.int32)
    return [int(entry) for entry in table[0, 0, 0, : manager.copy_block_offsets(table, 0, 0)] // 2]


@pytest.mark.parametrize("compatibility", [True, False])
def test_tables_keep_old_entries_in_compatibility_mode_only(compatibility: bool) -> None:
    manager = make_kv_cache_manager(16, window=8, compatibility=compatibility)
    decode(manager, finish_prompt(add(manager, make_request(0, 8))), [1] * 9)
    assert read_table(manager) == ([0, 1, 2, 3, 4] if compatibility else [-1, -1, 2, 0, 1])


@pytest.mark.parametrize("writes", [True, False])
def test_a_block_on_the_host_is_refused_until_it_is_back(writes: bool) -> None:
    manager = make_kv_cache_manager(8, 4)
    request = prefill(manager, make_request(0, 12))
    claimer = manager.block_manager.get_window_block_manager(64).claimer
    claimer.offload_block(manager.block_manager.get_block_by_id(1, 64))
    if writes:
        write_slot_at(manager.get_sequence(0).get_window(64), 1, 1)
    readers = [
        lambda: read_table(manager),
        lambda: export_block_table(manager, [0], 64),
        lambda: KVCacheResourceManager(manager).get_cache_indices(request),
    ]
    for read in readers:
        with pytest.raises(InvalidInputError, match="block 1 at position 1 is on the host"):
            read()
    add(manager, make_request(2, [90]))  # into the slot that became free
    add(manager, make_request(1, 9))  # which finds the block, and brings it back to another slot
    slots = [block.memory_pool_block_index for block in manager.get_sequence(0).get_window(64).held]
    assert slots != [0, 1, 2]
    for row in read_rows(manager, request).values():
        assert row in ([0, 1, 2], slots)  # ids, or slots
    assert read_table(manager) == slots


def test_a_replaced_block_is_in_the_table_at_once() -> None:
    manager = make_kv_cache_manager()
    prefill(manager, make_request(1, 9))
    add(manager, make_request(0, 9))
    window = manager.block_manager.get_window_block_manager(64)
    window.replacer.replace_shared_block(manager.get_sequence(0), 1)
    assert read_table(manager) == manager.get_cache_block_ids(0, 64)[0]
    check_invariants(manager)
