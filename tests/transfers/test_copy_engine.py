"""Engines that move nothing, and the manager that issues and counts transfers."""

from __future__ import annotations

import pytest

from tests.builders import add, make_kv_cache_manager, make_request, serve
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import DataType, KvCacheTransferMode
from trtkv.pools.kv_cache_block_pool import create_data_pool
from trtkv.records.kv_cache_index import make_index
from trtkv.transfers.copy_engine import COPY, OFFLOAD, ONBOARD, BlockCopy, NullCopyEngine, RecordingCopyEngine
from trtkv.transfers.kv_cache_transfer_manager import KVCacheTransferManager

POOLS = [create_data_pool(3, 2, heads, 8, 4, DataType.HALF, 64, (10, 5)) for heads in (1, 2)]
BLOCK_BYTES = sum(3 * 2 * heads * 8 * 4 * 2 for heads in (1, 2))


def test_engine_that_moves_nothing_says_what_a_whole_block_takes() -> None:
    copy = BlockCopy(COPY, 64, 0, 1, 0, 1, 2, KvCacheTransferMode.DRAM, "")
    engine = NullCopyEngine()
    assert engine.copy_block(copy, POOLS) == BLOCK_BYTES
    engine.sync_transfers()
    engine.sync_with_buffer_manager()


def test_recording_engine_keeps_transfers_in_order() -> None:
    engine = RecordingCopyEngine()
    copies = [BlockCopy(COPY, 64, i, i + 1, i, i + 1, 0, KvCacheTransferMode.DRAM, "") for i in range(3)]
    for copy in copies:
        assert engine.copy_block(copy, POOLS) == BLOCK_BYTES
    assert engine.copies == copies


def test_direction_follows_from_the_levels() -> None:
    engine = RecordingCopyEngine()
    manager = KVCacheTransferManager(64, engine)
    primary, other, secondary = KVCacheBlock(1, 1), KVCacheBlock(2, 2), KVCacheBlock(9, make_index(3, True))
    manager.onboard(secondary, primary, POOLS, 0, KvCacheTransferMode.GDS, "/tmp/x")
    manager.onboard(other, primary, POOLS, 3)
    manager.offload(primary, secondary, POOLS)
    assert engine.copies == [
        BlockCopy(ONBOARD, 64, make_index(3, True), 1, 9, 1, 0, KvCacheTransferMode.GDS, "/tmp/x"),
        BlockCopy(COPY, 64, 2, 1, 2, 1, 3, KvCacheTransferMode.DRAM, ""),
        BlockCopy(OFFLOAD, 64, 1, make_index(3, True), 1, 9, 0, KvCacheTransferMode.DRAM, ""),
    ]
    stats = manager.get_and_reset_transfer_stats()
    assert (stats.onboard_blocks, stats.intra_device_copy_blocks, stats.offload_blocks) == (1, 1, 1)
    assert stats.onboard_bytes == stats.intra_device_copy_bytes == stats.offload_bytes == BLOCK_BYTES
    assert manager.get_and_reset_transfer_stats().offload_blocks == 0


def test_transfers_are_ordered_with_the_work_around_them() -> None:
    calls: list[str] = []

    class Engine(NullCopyEngine):
        def sync_with_buffer_manager(self) -> None:
            calls.append("buffer manager")

        def sync_transfers(self) -> None:
            calls.append("transfers")

    manager = make_kv_cache_manager(windows={64: (4, 0), 8: (4, 0)}, copy_engine=Engine())
    manager.sync_transfer_manager_with_buffer_manager()
    manager.refresh_blocks()
    assert calls == ["buffer manager"] * 2 + ["transfers"] * 2


@pytest.mark.parametrize(
    ("mode", "directory", "expected"),
    [
        (KvCacheTransferMode.DRAM, "", KvCacheTransferMode.DRAM),
        (KvCacheTransferMode.GDS, "", KvCacheTransferMode.DRAM),  # without a directory admission stays in memory
        (KvCacheTransferMode.GDS, "/tmp/x", KvCacheTransferMode.GDS),
    ],
)
def test_mode_of_a_request_travels_with_its_transfers(
    mode: KvCacheTransferMode, directory: str, expected: KvCacheTransferMode
) -> None:
    from trtkv.records.retention_config import KvCacheRetentionConfig

    engine = RecordingCopyEngine()
    manager = make_kv_cache_manager(4, 8, copy_engine=engine)
    serve(manager, make_request(1, [1] * 13))
    retention = KvCacheRetentionConfig(transfer_mode=mode, directory=directory)
    add(manager, make_request(2, [2] * 13, kv_cache_retention_config=retention))
    assert {copy.mode for copy in engine.copies if copy.kind == OFFLOAD} == {expected}
