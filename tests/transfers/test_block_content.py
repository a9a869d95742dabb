"""Programs whose memory is looked at after every operation, with each copy engine; and the same ids without memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the memory is a torch tensor")

from tests.kernels.host_launcher import find_compiler, launch_on_host  # noqa: E402
from tests.transfers.memory_program import CorruptMemoryError, run_program  # noqa: E402
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool  # noqa: E402
from trtkv.transfers.copy_engine import BlockCopy, CopyEngine  # noqa: E402
from trtkv.transfers.cupy_copy_engine import CupyCopyEngine  # noqa: E402
from trtkv.transfers.file_copy_engine import FileCopyEngine  # noqa: E402
from trtkv.transfers.torch_copy_engine import TorchCopyEngine  # noqa: E402

NUM_PROGRAMS = 30


@pytest.mark.parametrize(
    "make_engine", [TorchCopyEngine, lambda: CupyCopyEngine("reference")], ids=["torch", "batched"]
)
def test_every_position_holds_what_its_tokens_ask_for(make_engine: Callable[[], CopyEngine]) -> None:
    counts: Counter[str] = Counter()
    for seed in range(NUM_PROGRAMS):
        counts += run_program(seed, make_engine()).counts
    assert set(counts) == {"reused tokens", "rewound", "refused", "front blocks removed"}


@pytest.mark.skipif(find_compiler() is None, reason="no host C++ compiler to build the kernels with")
def test_memory_is_right_with_copies_made_by_the_kernel() -> None:
    for seed in range(NUM_PROGRAMS):
        run_program(seed, CupyCopyEngine(launch_on_host))


def test_memory_is_right_with_blocks_in_files(tmp_path: Path) -> None:
    num_written = num_read = 0
    for seed in range(NUM_PROGRAMS):
        engine = FileCopyEngine()
        run_program(seed, engine, tmp_path)
        engine.close()
        num_written += engine.num_files_written
        num_read += engine.num_files_read
    assert num_written > num_read > 5
    assert list(tmp_path.iterdir()) == []


def test_ids_and_slots_are_the_same_without_memory() -> None:
    for seed in range(NUM_PROGRAMS):
        assert run_program(seed, TorchCopyEngine()).ids == run_program(seed).ids


class BrokenEngine(TorchCopyEngine):
    """Leaves out copies of one kind, or the last token of partial ones."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self._fault = fault

    def copy_block(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        if copy.kind == self._fault or (self._fault == "last token" and copy.num_tokens == 1):
            return 0
        if self._fault == "last token":
            copy = copy._replace(num_tokens=max(0, copy.num_tokens - 1))
        return super().copy_block(copy, pools)


@pytest.mark.parametrize("fault", ["copy", "offload", "onboard", "last token"])
def test_a_broken_engine_is_noticed(fault: str) -> None:
    num_noticed = 0
    for seed in range(NUM_PROGRAMS):
        try:
            run_program(seed, BrokenEngine(fault))
        except CorruptMemoryError:
            num_noticed += 1
    assert num_noticed >= 3
