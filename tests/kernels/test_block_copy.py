"""Block copies: kernel from its .cu source, torch reference and a loop over bytes give the same memory."""

from __future__ import annotations

import itertools
import random
from typing import NamedTuple

import numpy as np
import pytest
import torch

from trtkv.errors import InvalidInputError
from trtkv.kernels.block_copy import copy_blocks, split_independent
from trtkv.kernels.copy_job import BlockLayout, CopyJob
from trtkv.kernels.kernel_launch import KernelLaunch, Launcher
from trtkv.kernels.staging_ring import StagingRing


class Shape(NamedTuple):
    layers: int
    kv: int
    heads: int
    tokens: int
    token_bytes: int  # of one head


SHAPES = [
    Shape(1, 2, 1, 4, 16),
    Shape(3, 2, 2, 8, 32),
    Shape(2, 1, 5, 4, 80),  # 16-byte units, odd head count
    Shape(2, 2, 3, 4, 12),  # 4-byte units
    Shape(2, 2, 3, 5, 7),  # no alignment at all
    Shape(1, 2, 2, 3, 1),  # one-byte heads, rows shorter than a unit
    Shape(4, 1, 1, 2, 132),  # index keys: 128 bytes and a scale
    Shape(1, 2, 2, 64, 40),
]


def make_layout(shape: Shape, num_slots: int, is_nhd: bool, layer_first: bool) -> BlockLayout:
    pieces, piece_bytes = shape.layers * shape.kv, shape.heads * shape.tokens * shape.token_bytes
    rows, token_bytes = (1, shape.heads * shape.token_bytes) if is_nhd else (shape.heads, shape.token_bytes)
    row_bytes = piece_bytes // rows
    if not layer_first:
        return BlockLayout(pieces, rows, token_bytes, row_bytes, pieces * piece_bytes, piece_bytes, num_slots)
    # One piece holds K and V of a layer when whole blocks of a layer-first pool are copied.
    assert shape.kv == 1
    return BlockLayout(pieces, rows, token_bytes, row_bytes, piece_bytes, num_slots * piece_bytes, num_slots)


def copy_by_hand(dst: bytearray, src: bytes, job: CopyJob, dst_layout: BlockLayout, src_layout: BlockLayout) -> None:
    for piece, row in itertools.product(range(dst_layout.num_pieces), range(dst_layout.rows_per_piece)):
        n = job.num_tokens * dst_layout.token_bytes
        s = job.src_slot * src_layout.slot_stride + piece * src_layout.piece_stride + row * src_layout.row_bytes
        d = job.dst_slot * dst_layout.slot_stride + piece * dst_layout.piece_stride + row * dst_layout.row_bytes
        dst[d : d + n] = src[s : s + n]


def random_pool(layout: BlockLayout, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (layout.pool_bytes,), dtype=torch.uint8, generator=generator)


def random_jobs(rng: random.Random, num_jobs: int, src: BlockLayout, dst: BlockLayout) -> list[CopyJob]:
    tokens = dst.tokens_per_row
    return [
        CopyJob(
            rng.randrange(src.num_slots), rng.randrange(dst.num_slots), rng.choice([1, tokens, rng.randint(1, tokens)])
        )
        for _ in range(num_jobs)
    ]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("is_nhd", [False, True], ids=["HND", "NHD"])
@pytest.mark.parametrize("backend_name", ["kernel", "reference"])
def test_copies_between_two_pools_equal_a_loop_over_bytes(
    shape: Shape, is_nhd: bool, backend_name: str, request: pytest.FixtureRequest
) -> None:
    backend = request.getfixturevalue("host_launcher") if backend_name == "kernel" else "reference"
    rng = random.Random(repr((shape, is_nhd)))
    for layer_first in (False, True) if shape.kv == 1 else (False,):
        dst_layout = make_layout(shape, 6, is_nhd, layer_first)
        src_layout = make_layout(shape, 9, is_nhd, layer_first)
        dst, src = random_pool(dst_layout, 1), random_pool(src_layout, 2)
        jobs = random_jobs(rng, 12, src_layout, dst_layout)
        expected = bytearray(dst.numpy().tobytes())
        for job in jobs:
            copy_by_hand(expected, src.numpy().tobytes(), job, dst_layout, src_layout)
        moved = copy_blocks(dst, src, jobs, dst_layout, src_layout, StagingRing("cpu"), backend)
        assert dst.numpy().tobytes() == bytes(expected)
        assert moved == sum(job.num_tokens for job in jobs) * shape.layers * shape.kv * shape.heads * shape.token_bytes


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("backend_name", ["kernel", "reference"])
def test_chains_within_one_pool_take_effect_in_order(
    shape: Shape, backend_name: str, request: pytest.FixtureRequest
) -> None:
    backend = request.getfixturevalue("host_launcher") if backend_name == "kernel" else "reference"
    layout = make_layout(shape, 5, False, False)
    pool = random_pool(layout, 3)
    rng = random.Random(4)
    jobs = [job for job in random_jobs(rng, 40, layout, layout) if job.src_slot != job.dst_slot]
    expected = bytearray(pool.numpy().tobytes())
    for job in jobs:
        copy_by_hand(expected, bytes(expected), job, layout, layout)
    copy_blocks(pool, pool, jobs, layout, layout, StagingRing("cpu"), backend)
    assert pool.numpy().tobytes() == bytes(expected)


@pytest.mark.parametrize(("src_offset", "dst_offset"), list(itertools.product([0, 1, 4, 8, 15], repeat=2)))
@pytest.mark.parametrize("row_bytes", [1, 15, 16, 17, 64, 100])
def test_pools_may_start_at_any_address(
    src_offset: int, dst_offset: int, row_bytes: int, host_launcher: Launcher
) -> None:
    layout = BlockLayout(2, 2, row_bytes, row_bytes, 4 * row_bytes, 2 * row_bytes, 3)
    src_memory, dst_memory = (
        random_pool(layout._replace(num_slots=9), 5),
        torch.zeros(layout.pool_bytes + 64, dtype=torch.uint8),
    )
    src = src_memory[src_offset : src_offset + layout.pool_bytes]
    dst = dst_memory[dst_offset : dst_offset + layout.pool_bytes]
    copy_blocks(dst, src, [CopyJob(2, 0, 1), CopyJob(0, 2, 1)], layout, layout, StagingRing("cpu"), host_launcher)
    slot = layout.slot_stride
    assert torch.equal(dst[:slot], src[2 * slot :])
    assert torch.equal(dst[2 * slot :], src[:slot])
    assert not dst_memory[:dst_offset].any()
    assert not dst_memory[dst_offset + layout.pool_bytes :].any()
    assert not dst[slot : 2 * slot].any()


def test_independent_jobs_share_a_launch_and_dependent_ones_do_not(host_launcher: Launcher) -> None:
    launches: list[KernelLaunch] = []

    def launcher(plan: KernelLaunch) -> None:
        launches.append(plan)
        host_launcher(plan)

    layout = make_layout(SHAPES[0], 6, False, False)
    pool = random_pool(layout, 6)
    copy_blocks(pool, pool, [CopyJob(0, 1, 4), CopyJob(2, 3, 4)], layout, layout, StagingRing("cpu"), launcher)
    assert [plan.grid[1] for plan in launches] == [2]
    launches.clear()
    copy_blocks(pool, pool, [CopyJob(0, 1, 4), CopyJob(1, 3, 4)], layout, layout, StagingRing("cpu"), launcher)
    assert [plan.grid[1] for plan in launches] == [1, 1]


def test_splitting_keeps_order_and_separates_every_clash() -> None:
    rng = random.Random(7)
    for _ in range(200):
        jobs = [CopyJob(rng.randrange(6), rng.randrange(6), 1) for _ in range(rng.randint(0, 12))]
        batches = list(split_independent(jobs, is_same_pool=True))
        assert [job for batch in batches for job in batch] == jobs
        for batch in batches:
            targets = [job.dst_slot for job in batch]
            assert len(set(targets)) == len(targets)
            assert all(a.dst_slot != b.src_slot for a, b in itertools.permutations(batch, 2))


def test_wrong_jobs_are_refused_before_anything_is_written() -> None:
    layout = make_layout(SHAPES[0], 3, False, False)
    pool = random_pool(layout, 8)
    before = pool.clone()
    for bad in (CopyJob(3, 0, 1), CopyJob(0, -1, 1), CopyJob(0, 1, 5), CopyJob(0, 1, 0)):
        with pytest.raises(InvalidInputError):
            copy_blocks(pool, pool, [CopyJob(0, 1, 4), bad], layout, layout, StagingRing("cpu"))
    with pytest.raises(InvalidInputError, match="must be contiguous and hold"):
        copy_blocks(pool[1:], pool, [CopyJob(0, 1, 4)], layout, layout, StagingRing("cpu"))
    with pytest.raises(InvalidInputError, match="cannot be copied into"):
        copy_blocks(pool, pool, [], layout, layout._replace(num_pieces=1), StagingRing("cpu"))
    assert torch.equal(pool, before)


def test_layout_gives_the_bytes_of_a_copy() -> None:
    layout = BlockLayout(4, 2, 10, 80, 640, 160, 3)
    assert layout.tokens_per_row == 8
    assert layout.pool_bytes == 3 * 640
    assert layout.num_copied_bytes(3) == 4 * 2 * 3 * 10
    assert np.int64(layout.pool_bytes) == 1920
