"""TorchCopyEngine on the CPU: the contract of copy engines. On a device tools/gpu_check.py runs the same checks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the engine moves torch tensors")

from tests.contracts.copy_engine import CopyEngineContract, fill, make_copy, make_pools, read  # noqa: E402
from trtkv.records.kv_cache_index import make_index  # noqa: E402
from trtkv.transfers.torch_copy_engine import TorchCopyEngine  # noqa: E402


class TestTorchCopyEngine(CopyEngineContract):
    def make_engine(self) -> TorchCopyEngine:
        return TorchCopyEngine()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["plain", "nvfp4", "recurrent"])
def test_copies_on_a_device_stay_in_order_with_compute(kind: str) -> None:
    pools = make_pools(kind)
    fill(pools, 1)
    wanted = [read(pool, make_index(2)) for pool in pools]
    for pool in pools:
        assert pool.primary is not None
        assert pool.secondary is not None
        pool.tensors = [pool.primary.cuda(), pool.secondary.pin_memory()]
    engine = TorchCopyEngine()
    engine.copy_block(make_copy(make_index(2), make_index(1, True)), pools)
    for pool in pools:
        assert pool.primary is not None
        pool.primary.zero_()
    engine.copy_block(make_copy(make_index(1, True), make_index(3)), pools)
    engine.copy_block(make_copy(make_index(3), make_index(5)), pools)
    for pool, block in zip(pools, wanted, strict=True):
        assert torch.equal(read(pool, make_index(5)).cpu(), block)
