"""Batched copies of blocks, or of their first tokens, between slots of one or two pools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from trtkv.errors import InvalidInputError
from trtkv.kernels import reference
from trtkv.kernels._loader import resolve_launcher
from trtkv.kernels.copy_job import BlockLayout, CopyJob
from trtkv.kernels.kernel_launch import Backend, KernelLaunch, pointer

if TYPE_CHECKING:
    import torch

    from trtkv.kernels.staging_ring import StagingRing

MAX_JOBS_PER_LAUNCH = 65535
"""Limit of the second grid dimension."""


def copy_blocks(
    dst: torch.Tensor,
    src: torch.Tensor,
    jobs: Sequence[CopyJob],
    dst_layout: BlockLayout,
    src_layout: BlockLayout,
    staging: StagingRing,
    backend: Backend = None,
) -> int:
    """Copy blocks into ``dst`` on the current stream and return the bytes moved; changes ``dst`` only.

    Jobs take effect as if run one after another: where one reads or writes what another has written, a new launch
    begins. ``dst`` and ``src`` are contiguous pools, possibly the same; ``src`` may be pinned host memory.
    """
    _check_pools(dst, src, dst_layout, src_layout)
    _check_jobs(jobs, dst_layout, src_layout)
    moved = sum(dst_layout.num_copied_bytes(job.num_tokens) for job in jobs)
    launcher = resolve_launcher(backend, staging.device)
    if launcher is None:
        reference.copy_blocks(_as_bytes(dst), _as_bytes(src), jobs, dst_layout, src_layout)
        return moved
    is_same_pool = dst.data_ptr() == src.data_ptr()
    for batch in split_independent(jobs, is_same_pool):
        table = np.zeros((len(batch), 4), dtype=np.int32)
        table[:, :3] = batch
        device_jobs = staging.send(table.reshape(-1))
        launcher(plan_copy(dst, src, device_jobs, len(batch), dst_layout, src_layout))
    return moved


def split_independent(jobs: Sequence[CopyJob], is_same_pool: bool) -> Iterator[list[CopyJob]]:
    """Cut jobs into runs whose members may be executed in any order."""
    batch: list[CopyJob] = []
    read: set[int] = set()
    written: set[int] = set()
    for job in jobs:
        clashes = job.dst_slot in written or (is_same_pool and (job.src_slot in written or job.dst_slot in read))
        if batch and (clashes or len(batch) == MAX_JOBS_PER_LAUNCH):
            yield batch
            batch, read, written = [], set(), set()
        batch.append(job)
        read.add(job.src_slot)
        written.add(job.dst_slot)
    if batch:
        yield batch


def plan_copy(
    dst: torch.Tensor,
    src: torch.Tensor,
    device_jobs: torch.Tensor,
    num_jobs: int,
    dst_layout: BlockLayout,
    src_layout: BlockLayout,
) -> KernelLaunch:
    """Launch for jobs that are already on the device."""
    units = -(-dst_layout.row_bytes // 16)
    threads = min(256, max(32, -(-units // 32) * 32))
    return KernelLaunch(
        "block_copy.cu",
        "copy_blocks",
        (dst_layout.num_pieces * dst_layout.rows_per_piece, num_jobs, 1),
        threads,
        (
            pointer(dst),
            pointer(src),
            pointer(device_jobs),
            np.int32(dst_layout.rows_per_piece),
            np.int64(dst_layout.token_bytes),
            np.int64(dst_layout.row_bytes),
            np.int64(dst_layout.slot_stride),
            np.int64(dst_layout.piece_stride),
            np.int64(src_layout.slot_stride),
            np.int64(src_layout.piece_stride),
        ),
    )


def _as_bytes(pool: torch.Tensor) -> torch.Tensor:
    import torch

    return pool.view(-1).view(torch.uint8)


def _check_pools(dst: torch.Tensor, src: torch.Tensor, dst_layout: BlockLayout, src_layout: BlockLayout) -> None:
    if dst_layout[:4] != src_layout[:4]:
        raise InvalidInputError(f"blocks of {src_layout} cannot be copied into blocks of {dst_layout}")
    for name, pool, layout in (("destination", dst, dst_layout), ("source", src, src_layout)):
        num_bytes = pool.numel() * pool.element_size()
        if not pool.is_contiguous() or num_bytes < layout.pool_bytes:
            raise InvalidInputError(
                f"the {name} pool must be contiguous and hold {layout.pool_bytes} bytes, it has {num_bytes}"
            )


def _check_jobs(jobs: Sequence[CopyJob], dst_layout: BlockLayout, src_layout: BlockLayout) -> None:
    for job in jobs:
        if not 0 <= job.src_slot < src_layout.num_slots:
            raise InvalidInputError(f"source slot {job.src_slot} is not in 0..{src_layout.num_slots - 1}")
        if not 0 <= job.dst_slot < dst_layout.num_slots:
            raise InvalidInputError(f"destination slot {job.dst_slot} is not in 0..{dst_layout.num_slots - 1}")
        if not 0 < job.num_tokens <= dst_layout.tokens_per_row:
            raise InvalidInputError(f"{job.num_tokens} tokens to copy, a block holds {dst_layout.tokens_per_row}")
