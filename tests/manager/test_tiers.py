"""Tiers are a tuple of block counts, warm to cold: two of them move blocks, and nothing but one limit counts them."""

from __future__ import annotations

import pytest

from tests.builders import make_event_manager, make_kv_cache_manager, make_request, prefill
from trtkv.common import PLACEHOLDER_LEVEL
from trtkv.errors import ConfigurationError, UnknownIdError
from trtkv.eviction.eviction_policy import get_cache_level
from trtkv.inspection.invariants import check_invariants
from trtkv.inspection.picture import draw
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records import cache_settings
from trtkv.records.kv_cache_index import get_level, get_slot, is_primary, make_index, to_int32


def make_manager(*counts: int, **options: object) -> KVCacheManager:
    return make_kv_cache_manager(windows={64: counts}, **options)  # type: ignore[dict-item]


def test_index_of_two_tiers_has_the_bits_of_the_original() -> None:
    assert [make_index(5), make_index(5, 1), make_index(5, 2)] == [5, 5 + 2**31, 5 + 2**32]
    assert to_int32(make_index(5, 1)) == 5 - 2**31
    for level in range(4):
        index = make_index(7, level)
        assert (get_level(index), get_slot(index), is_primary(index)) == (level, 7, level == 0)


def test_primary_blocks_alone_are_enough() -> None:
    one, two = make_manager(6), make_manager(6, 0)
    assert one.window_sizes_metadata == two.window_sizes_metadata
    assert one.get_iteration_stats() == two.get_iteration_stats()


@pytest.mark.parametrize("counts", [(), (6, 4, 3), 6])
def test_other_numbers_of_tiers_are_refused(counts: object) -> None:
    with pytest.raises(ConfigurationError, match=r"for window 64; give \(primary, secondary\) blocks"):
        make_kv_cache_manager(windows={64: counts})  # type: ignore[dict-item]


@pytest.mark.parametrize(("counts", "name"), [((0, 4), "0 primary"), ((6, -1), "-1 secondary")])
def test_counts_of_tiers_are_checked(counts: tuple[int, ...], name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"window 64 has {name} blocks"):
        make_manager(*counts)


def test_nothing_but_the_limit_counts_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_settings, "_MAX_TIERS", 3)
    events = make_event_manager()
    manager = make_manager(6, 4, 3, event_manager=events)
    window = manager.block_manager.window_block_managers[64]
    blocks = [window.get_block_by_id(block_id) for block_id in range(13)]
    assert [get_cache_level(block) for block in blocks] == [0] * 6 + [1] * 4 + [2] * 3
    assert [get_slot(block.memory_pool_block_index) for block in blocks] == [*range(6), *range(4), *range(3)]
    with pytest.raises(UnknownIdError, match="ids run from 0 to 12"):
        window.get_block_by_id(13)
    assert [level for level, _, _ in window.eviction_policy.free_queues()] == [0, 1, 2]
    assert window.eviction_policy.levels()[PLACEHOLDER_LEVEL].level == PLACEHOLDER_LEVEL
    for request_id in range(4):
        request = prefill(manager, make_request(request_id, range(100 * request_id, 100 * request_id + 9)))
        manager.remove_sequence(request_id, request)
        check_invariants(manager)
    assert manager.block_manager.count_evictable_blocks() == {64: (5, 3, 0)}
    assert "free, tier 2: 10..12" in draw(manager)
    assert [pool.blocks_per_tier for pool in manager.block_manager.pools] == [(6, 4, 3)]
    events.flush()
    assert events.get_events()[0].data.num_blocks_per_cache_level == (6, 4, 3)  # type: ignore[union-attr]


def test_memory_of_each_tier_is_allocated_and_shown() -> None:
    torch = pytest.importorskip("torch")
    from trtkv.common import DataType
    from trtkv.errors import InvalidInputError
    from trtkv.pools.kv_cache_block_pool import create_data_pool
    from trtkv.pools.pool_tensors import PoolTensors, view_block

    pool = create_data_pool(1, 2, 1, 8, 4, DataType.HALF, 64, (3, 0, 2))
    PoolTensors([pool], [(0, 0)]).allocate_pools()
    assert [None if tensor is None else tuple(tensor.shape) for tensor in pool.tensors] == [
        (3, 1, 2, 32),
        None,
        (2, 1, 2, 32),
    ]
    view_block(pool, make_index(1, 2)).fill_(3.0)
    assert torch.equal(pool.tensors[2][1], torch.full((1, 2, 32), 3.0, dtype=torch.half))
    for level in (1, 3):
        with pytest.raises(InvalidInputError, match="it has 0 "):
            view_block(pool, make_index(0, level))
