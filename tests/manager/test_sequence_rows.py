"""Whoever reads the blocks of a sequence reads the same row of slots."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.builders import add, make_kv_cache_manager, make_linear_attention, make_request
from trtkv import KVCacheManager, LlmRequest
from trtkv.common import RECURRENT_STATES
from trtkv.executor.model_spec import ModelSpec
from trtkv.executor.paged_kv_cache import PagedKvCache
from trtkv.exporters.page_tables import export_block_table
from trtkv.inspection.invariants import check_invariants
from trtkv.resource_manager.kv_cache_resource_manager import KVCacheResourceManager


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
