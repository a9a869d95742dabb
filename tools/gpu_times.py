"""Times of the kernels on a GPU, without the time in which the host prepares and launches them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

FIRST_SLEEP_CYCLES = 20_000_000
"""About 10 ms of a GPU."""
NUM_ATTEMPTS = 6


@dataclass
class Timing:
    """One measured operation beside the floor it can be held against."""

    name: str
    microseconds: float
    """On the device alone."""
    floor_microseconds: float
    """An empty kernel, or torch's copy of the same bytes."""
    gigabytes_per_second: float | None = None
    host_microseconds: float | None = None
    """Of one call of the public function, before the device has done anything."""


def measure(function: Callable[[], object], num_calls: int = 200, cuda: Any = None) -> float:
    """Microseconds per call on the device alone.

    The calls are queued behind a kernel that keeps the device busy for longer than the host needs to queue them, so
    the device then runs them one after the other without waiting for the host. Whether that was so is looked at: the
    event before the first call must not have taken place when the last call has been queued. Otherwise it is done
    again with a longer sleep and fewer calls. ``function`` must not wait for the device.
    """
    if cuda is None:
        import torch

        cuda = torch.cuda
    for _ in range(10):
        function()
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    cycles = FIRST_SLEEP_CYCLES
    for _ in range(NUM_ATTEMPTS):
        cuda.synchronize()
        cuda._sleep(cycles)
        start.record()
        for _ in range(num_calls):
            function()
        end.record()
        was_ahead = not start.query()
        cuda.synchronize()
        if was_ahead:
            return float(start.elapsed_time(end)) * 1000 / num_calls
        cycles, num_calls = 2 * cycles, max(10, num_calls // 2)
    raise RuntimeError(f"the host cannot queue {num_calls} calls while the device sleeps; a call waits for the device")


def measure_host(function: Callable[[], object], num_calls: int = 50, cuda: Any = None) -> float:
    """Microseconds of the host per call, the device's work not waited for."""
    if cuda is None:
        import torch

        cuda = torch.cuda
    cuda.synchronize()
    start = time.perf_counter()
    for _ in range(num_calls):
        function()
    seconds = time.perf_counter() - start
    cuda.synchronize()
    return seconds * 1e6 / num_calls


def measure_launch_floor() -> float:
    """Microseconds of a kernel that does nothing."""
    import cupy
    import torch

    from trtkv.kernels._loader import adopt_stream

    kernel = cupy.RawKernel('extern "C" __global__ void nothing(int* p) {}', "nothing")
    stream = torch.cuda.current_stream()

    def launch() -> None:
        with adopt_stream(cupy, stream, torch.cuda.current_device()):
            kernel((1,), (32,), (np.uint64(0),))

    return measure(launch)


def measure_all() -> Iterator[Timing]:
    """Times of the three kernels and of host transfers."""
    floor = measure_launch_floor()
    yield Timing("empty kernel", floor, floor)
    yield from measure_tables(floor)
    yield from measure_copies()


def measure_tables(floor: float) -> Iterator[Timing]:
    """Offset table of 256 x 1,024 blocks when 4 or all rows grow, and the page table of the same batch."""
    import torch

    from trtkv.kernels.block_offsets import make_offset_rule, scatter_block_offsets
    from trtkv.kernels.page_table import build_page_table, create_page_table

    rows, width = 256, 1024
    table = torch.zeros((1, rows, 2, width), dtype=torch.int32, device="cuda")
    rules = torch.tensor([[*make_offset_rule(0, 32, 2, False, False), 0]], dtype=torch.int32, device="cuda")
    for growing, length in ((4, 1), (rows, 1), (rows, width)):
        runs = torch.tensor([[0, row, 0, row * length] for row in range(growing)], dtype=torch.int32, device="cuda")
        slots = torch.arange(growing * length, dtype=torch.int32, device="cuda")

        def scatter(runs: torch.Tensor = runs, slots: torch.Tensor = slots, length: int = length) -> None:
            scatter_block_offsets(table, runs, slots, rules, length)

        name = f"offsets: {growing} rows x {length} blocks"
        yield Timing(name, measure(scatter), floor, host_microseconds=measure_host(scatter))
    lens = torch.full((rows,), width * 32, dtype=torch.int32, device="cuda")
    out = create_page_table(rows, width, "cuda")

    def build() -> None:
        build_page_table(out, table[0, :, 0], lens, 32)

    yield Timing("page table: 256 rows", measure(build), floor, host_microseconds=measure_host(build))


def measure_copies() -> Iterator[Timing]:
    """Copies of whole and partial blocks of 4 MiB, beside torch's copy of as many bytes."""
    import torch

    from trtkv.kernels._loader import resolve_launcher
    from trtkv.kernels.block_copy import copy_blocks, plan_copy
    from trtkv.kernels.copy_job import BlockLayout, CopyJob
    from trtkv.kernels.staging_ring import StagingRing

    layers, heads, tokens, head_bytes = 32, 8, 32, 256
    row = tokens * head_bytes
    layout = BlockLayout(layers * 2, heads, head_bytes, row, layers * 2 * heads * row, heads * row, 256)
    pool = torch.zeros(layout.pool_bytes, dtype=torch.uint8, device="cuda")
    staging = StagingRing("cuda")
    launcher = resolve_launcher(None, pool.device)
    if launcher is None:
        raise RuntimeError(f"no kernel runs on {pool.device}")
    for num_jobs, num_tokens in ((1, tokens), (1, 7), (16, tokens), (16, 7), (128, tokens)):
        jobs = [CopyJob(i, 128 + i, num_tokens) for i in range(num_jobs)]
        moved = sum(layout.num_copied_bytes(job.num_tokens) for job in jobs)
        on_device = torch.tensor([[*job, 0] for job in jobs], dtype=torch.int32, device="cuda")
        plan = plan_copy(pool, pool, on_device, num_jobs, layout, layout)
        copy = measure(lambda: launcher(plan), 50)  # noqa: B023 - called at once
        plain = measure(lambda: pool[pool.numel() // 2 :][:moved].copy_(pool[:moved]), 50)  # noqa: B023 - called at once
        host = measure_host(lambda: copy_blocks(pool, pool, jobs, layout, layout, staging))  # noqa: B023 - called at once
        yield Timing(f"copy: {num_jobs} blocks, {num_tokens} tokens", copy, plain, 2 * moved / copy / 1000, host)
    block = layout.slot_stride
    on_host = torch.zeros(block, dtype=torch.uint8, pin_memory=True)
    for name, function in (
        ("offload: 4 MiB to pinned memory", lambda: on_host.copy_(pool[:block], non_blocking=True)),
        ("onboard: 4 MiB from pinned memory", lambda: pool[:block].copy_(on_host, non_blocking=True)),
    ):
        microseconds = measure(function, 50)
        yield Timing(name, microseconds, microseconds, block / microseconds / 1000)


def print_timings(timings: list[Timing]) -> None:
    """A table."""
    print(f"{'operation':38}{'device us':>10}{'floor us':>10}{'ratio':>8}{'host us':>9}{'GB/s':>9}")
    for timing in timings:
        speed = "" if timing.gigabytes_per_second is None else f"{timing.gigabytes_per_second:9.0f}"
        host = "" if timing.host_microseconds is None else f"{timing.host_microseconds:.1f}"
        ratio = timing.microseconds / timing.floor_microseconds
        print(
            f"{timing.name:38}{timing.microseconds:10.2f}{timing.floor_microseconds:10.2f}{ratio:8.2f}{host:>9}{speed}"
        )
