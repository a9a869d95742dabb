"""CupyCopyEngine: the contract of copy engines, with the kernel run on the CPU and with the reference."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the engine moves torch tensors")

from tests.contracts.copy_engine import CopyEngineContract, fill, make_copy, make_pools, read  # noqa: E402
from tests.kernels.host_launcher import find_compiler, launch_on_host  # noqa: E402
from trtkv.kernels.kernel_launch import KernelLaunch  # noqa: E402
from trtkv.records.kv_cache_index import make_index  # noqa: E402
from trtkv.transfers.cupy_copy_engine import CupyCopyEngine  # noqa: E402


@pytest.mark.skipif(find_compiler() is None, reason="no host C++ compiler to build the kernels with")
class TestCupyCopyEngineWithKernel(CopyEngineContract):
    def make_engine(self) -> CupyCopyEngine:
        return CupyCopyEngine(launch_on_host)


class TestCupyCopyEngineWithReference(CopyEngineContract):
    def make_engine(self) -> CupyCopyEngine:
        return CupyCopyEngine("reference")


def test_copies_of_a_step_share_one_launch_per_pool() -> None:
    launches: list[KernelLaunch] = []
    engine, pools = CupyCopyEngine(launches.append), make_pools("plain")
    for src, dst in ((0, 3), (1, 4), (2, 5)):
        engine.copy_block(make_copy(make_index(src), make_index(dst), 2), pools)
    assert launches == []
    engine.sync_transfers()
    assert [plan.grid for plan in launches] == [(6 * 1, 3, 1), (6 * 3, 3, 1)]
    engine.sync_transfers()
    assert len(launches) == 2


def test_a_transfer_to_the_host_sees_the_copies_before_it() -> None:
    engine, pools = CupyCopyEngine("reference"), make_pools("plain")
    fill(pools, 1)
    wanted = [read(pool, make_index(0)) for pool in pools]
    engine.copy_block(make_copy(make_index(0), make_index(1)), pools)
    engine.copy_block(make_copy(make_index(1), make_index(2, True)), pools)
    assert all(torch.equal(read(pool, make_index(2, True)), block) for pool, block in zip(pools, wanted, strict=True))


def test_copies_that_could_not_be_launched_stay_waiting() -> None:
    launches: list[KernelLaunch] = []

    def launch(plan: KernelLaunch) -> None:
        if len(launches) == 1 and not failed:
            failed.append(plan)
            raise RuntimeError("the device is busy")
        launches.append(plan)

    failed: list[KernelLaunch] = []
    engine, pools = CupyCopyEngine(launch), make_pools("plain")
    engine.copy_block(make_copy(make_index(0), make_index(3), 2), pools)
    with pytest.raises(RuntimeError, match="busy"):
        engine.sync_transfers()
    engine.copy_block(make_copy(make_index(1), make_index(4), 2), pools[:1])
    engine.sync_transfers()
    assert [plan.grid[1] for plan in launches] == [1, 1, 1]  # the first pool's copy is not made again
    assert failed[0].grid == launches[1].grid
    engine.sync_transfers()
    assert len(launches) == 3
