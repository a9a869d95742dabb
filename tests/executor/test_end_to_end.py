"""The proof of the whole: token for token the output of the same model without paging, with everything switched on.

208 random workloads on four model shapes: reuse, partial copies, blocks shared by requests under way, eviction, offload
and onboarding, chunks, pauses, rewound drafts, sliding windows, pools by head count, greedy and beam search. Memory
starts as NaN, so a read of anything nobody wrote shows. Counters prove that each mechanism ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.executor.reference_models import MAKERS
from tests.executor.workloads import run_workload
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool
from trtkv.transfers.copy_engine import OFFLOAD, ONBOARD, BlockCopy
from trtkv.transfers.torch_copy_engine import TorchCopyEngine

NUM_WORKLOADS = 52
MECHANISMS = [
    "copy",
    "partial",
    "offload",
    "onboard",
    "evicted",
    "num_reused_tokens",
    "num_shared_admissions",
    "num_unfinished_chunks",
    "num_paused",
    "num_accepted_draft_tokens",
    "num_rewound_tokens",
    "beam requests",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_every_token_equals_that_of_the_model_without_paging(name: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(NUM_WORKLOADS):
        outcome = run_workload(name, seed)
        assert outcome.mismatches == []
        counts += outcome.counts
    mechanisms = MECHANISMS if name == "llama" else [*MECHANISMS, "num_front_blocks_removed"]
    assert {mechanism: counts[mechanism] for mechanism in mechanisms if counts[mechanism] < 3} == {}
    assert counts["requests"] > 8 * NUM_WORKLOADS
    assert counts["tokens"] > 50 * NUM_WORKLOADS


class ShortCopy(TorchCopyEngine):
    """Broken: copies one token less of a partial match."""

    def copy_block(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        if copy.num_tokens == 1:
            return 0
        return super().copy_block(copy._replace(num_tokens=max(copy.num_tokens - 1, 0)), pools)


class NoOffload(TorchCopyEngine):
    """Broken: blocks leave the device without their content."""

    def copy_block(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        return 0 if copy.kind == OFFLOAD else super().copy_block(copy, pools)


class NoOnboard(TorchCopyEngine):
    """Broken: blocks come back without their content."""

    def copy_block(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        return 0 if copy.kind == ONBOARD else super().copy_block(copy, pools)


class FirstPoolOnly(TorchCopyEngine):
    """Broken: other pools of the block are forgotten."""

    def copy_block(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        return super().copy_block(copy, pools[:1])


class LateCopies(TorchCopyEngine):
    """Broken: copies are made three calls later, from slots that may have been written since."""

    def __init__(self) -> None:
        super().__init__()
        self._late: list[tuple[BlockCopy, Sequence[KVCacheBlockPool]]] = []

    def copy_block(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        self._late.append((copy, pools))
        if len(self._late) > 3:
            super().copy_block(*self._late.pop(0))
        return 0


FAULTS: list[tuple[str, type[TorchCopyEngine]]] = [
    ("llama", ShortCopy),
    ("gemma", ShortCopy),
    ("qwen", NoOffload),
    ("mixed heads", NoOnboard),
    ("mixed heads", FirstPoolOnly),
    ("gemma", LateCopies),
]


@pytest.mark.parametrize(("name", "engine"), FAULTS, ids=[f"{name}-{engine.__name__}" for name, engine in FAULTS])
def test_a_broken_copy_is_noticed(name: str, engine: type[TorchCopyEngine]) -> None:
    for seed in range(NUM_WORKLOADS):
        mismatches = run_workload(name, seed, engine()).mismatches
        if mismatches:
            assert "token" in mismatches[0] or "beams" in mismatches[0]
            return
    pytest.fail(f"{engine.__name__} goes unnoticed in {NUM_WORKLOADS} workloads")
