"""Checks kernels and copy engines on a GPU: equality with the references, compute-sanitizer, times. Under 4 minutes.

Needs torch with CUDA and CuPy; without a GPU it says so and exits with 0. Exit code 1 when something differs, when
compute-sanitizer reports an error, or when a part raises.

Run: ``python tools/gpu_check.py [--no-sanitizer] [--json FILE]``
"""

from __future__ import annotations

import argparse
import glob
import importlib.util
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    import torch

    from trtkv.kernels.kernel_launch import Backend
    from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool

SANITIZER_TIMEOUT_S = 100


@dataclass
class Timing:
    """One measured operation beside the floor it can be held against."""

    name: str
    microseconds: float
    floor_microseconds: float
    """Launch of an empty kernel, or torch's copy of the same bytes."""
    gigabytes_per_second: float | None = None


# -- equality -----------------------------------------------------------------------------------------


def check_block_copy(device: str, backend: Backend, seed: int, num_rounds: int) -> None:
    """Random layouts and jobs, within one pool and between two."""
    import torch

    from trtkv.kernels.block_copy import BlockLayout, CopyJob, copy_blocks
    from trtkv.kernels.staging_ring import StagingRing

    rng = random.Random(seed)
    for _ in range(num_rounds):
        pieces, rows, tokens = rng.randint(1, 6), rng.randint(1, 5), rng.choice([1, 3, 16, 64])
        token_bytes = rng.choice([1, 7, 12, 16, 80, 132, 256])
        row = tokens * token_bytes
        slots = 8
        layout = BlockLayout(pieces, rows, token_bytes, row, pieces * rows * row, rows * row, slots)
        if rng.random() < 0.5:  # layers first
            layout = layout._replace(slot_stride=rows * row, piece_stride=slots * rows * row)
        start = rng.choice([0, 0, 1, 4, 8])  # pools that do not begin at a multiple of 16
        memory = [torch.randint(0, 256, (start + layout.pool_bytes,), dtype=torch.uint8) for _ in range(2)]
        on_device = [tensor.to(device)[start:] for tensor in memory]
        expected = [tensor.clone()[start:] for tensor in memory]
        jobs = [CopyJob(rng.randrange(slots), rng.randrange(slots), rng.randint(1, tokens)) for _ in range(20)]
        jobs = [job for job in jobs if job.src_slot != job.dst_slot]
        source = rng.randrange(2)
        copy_blocks(on_device[0], on_device[source], jobs, layout, layout, StagingRing(device), backend)
        copy_blocks(expected[0], expected[source], jobs, layout, layout, StagingRing("cpu"), "reference")
        expect_equal(on_device[0], expected[0], f"copy_blocks {layout} {jobs}")


def check_offset_table(device: str, backend: Backend, seed: int, num_rounds: int) -> None:
    """Random steps on a table of several windows and pools."""
    from trtkv.kernels.block_offsets import make_offset_rule
    from trtkv.kernels.offset_table import DeviceOffsetTable
    from trtkv.records.kv_cache_index import NULL_ENTRY

    rng = random.Random(seed)
    rules = [
        make_offset_rule(0, 3, 2, False, False),
        make_offset_rule(1, 4, 1, False, True),
        make_offset_rule(1, 6, 1, True, True),
        make_offset_rule(0, 5, 2, False, False),
    ]
    rows, width, slots = 17, 333, 1000
    table = DeviceOffsetTable(rules, [slots, slots], rows, width, device, backend)
    expected = DeviceOffsetTable(rules, [slots, slots], rows, width, "cpu", "reference")
    for _ in range(num_rounds):
        for _ in range(rng.randint(0, 8)):
            window, row, first = rng.randrange(2), rng.randrange(rows), rng.randrange(width)
            length = rng.randint(0, width - first)
            values = [NULL_ENTRY if rng.random() < 0.1 else rng.randrange(slots) for _ in range(length)]
            table.set_row(window, row, values, first)
            expected.set_row(window, row, values, first)
        table.flush()  # many in a row without waiting: a staging buffer written too early would show
        expected.flush()
    expect_equal(table.table, expected.table, "offset table")


def check_page_table(device: str, backend: Backend, seed: int, num_rounds: int) -> None:
    """Random lengths, among them 0 and block boundaries."""
    import torch

    from trtkv.kernels.page_table import build_page_table, create_page_table

    rng = random.Random(seed)
    for _ in range(num_rounds):
        rows, width, tokens = rng.choice([1, 5, 128, 300]), rng.choice([1, 9, 200]), rng.choice([1, 16, 32])
        block_table = torch.randint(0, 100_000, (rows, width), dtype=torch.int32)
        lens = [rng.choice([0, 1, tokens * width, rng.randint(0, tokens * width)]) for _ in range(rows)]
        front = [rng.randint(0, -(-length // tokens)) for length in lens]
        inputs = [torch.tensor(values, dtype=torch.int32) for values in (lens, front)]
        out, expected = create_page_table(rows, width, device), create_page_table(rows, width, "cpu")
        build_page_table(
            out, block_table.to(device), inputs[0].to(device), tokens, inputs[1].to(device), 6, 1, backend=backend
        )
        build_page_table(expected, block_table, inputs[0], tokens, inputs[1], 6, 1, backend="reference")
        num_pages = int(expected.kv_indptr[-1])
        expect_equal(out.kv_indptr, expected.kv_indptr, "kv_indptr")
        expect_equal(out.kv_last_page_len, expected.kv_last_page_len, "kv_last_page_len")
        expect_equal(out.kv_indices[:num_pages], expected.kv_indices[:num_pages], "kv_indices")


def check_copy_engines(device: str, backend: Backend, seed: int, num_rounds: int) -> None:
    """Random offloads, onboardings and copies of four kinds of pools against the same on the CPU."""
    import torch

    from trtkv.common import KvCacheTransferMode
    from trtkv.records.kv_cache_index import is_primary, make_index
    from trtkv.transfers.copy_engine import BlockCopy
    from trtkv.transfers.cupy_copy_engine import CupyCopyEngine
    from trtkv.transfers.torch_copy_engine import TorchCopyEngine

    indices = [make_index(slot) for slot in range(6)] + [make_index(slot, True) for slot in range(4)]
    for number, (engine, layout) in enumerate(
        (engine, layout)
        for engine in (TorchCopyEngine(), TorchCopyEngine(join_every_copy=False), CupyCopyEngine(backend))
        for layout in ("HND", "NHD")
    ):
        rng = random.Random(seed + number)
        pools, expected = make_filled_pools(device, layout, seed), make_filled_pools("cpu", layout, seed)
        reference = TorchCopyEngine()
        for _ in range(10 * num_rounds):
            src = rng.choice(indices)
            dst = rng.choice([i for i in indices if i != src and (is_primary(i) or is_primary(src))])
            num_tokens = rng.choice([0, 1, 3, 4]) if is_primary(dst) else 0
            copy = BlockCopy("copy", 0, src, dst, 0, 1, num_tokens, KvCacheTransferMode.DRAM, "")
            for group, twins in zip(pools, expected, strict=True):
                engine.copy_block(copy._replace(window_size=group[0].window_size), group)
                reference.copy_block(copy, twins)
        engine.sync_transfers()
        for group, twins in zip(pools, expected, strict=True):
            for pool, twin in zip(group, twins, strict=True):
                for tensor, other in ((pool.primary, twin.primary), (pool.secondary, twin.secondary)):
                    if tensor is None or other is None:
                        raise RuntimeError("a pool has no memory")
                    if tensor.device.type == "cpu" and device != "cpu":
                        torch.cuda.synchronize()
                    expect_equal(tensor.view(torch.uint8), other.view(torch.uint8), f"{type(engine).__name__} {layout}")


def check_executor(device: str, backend: Backend, seed: int, num_rounds: int) -> None:
    """A small model over paged memory in double precision: the same tokens as on the CPU."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from trtkv.executor.executor import PyTorchExecutor
    from trtkv.executor.executor_config import ExecutorConfig, create_kv_cache_manager
    from trtkv.executor.model_spec import read_model_spec
    from trtkv.transfers.cupy_copy_engine import CupyCopyEngine
    from trtkv.transfers.torch_copy_engine import TorchCopyEngine

    outputs = []
    for place, used, engine in (
        ("cpu", "reference", TorchCopyEngine()),
        (device, backend, TorchCopyEngine()),
        (device, backend, CupyCopyEngine(backend)),
    ):
        torch.manual_seed(seed)
        rng = random.Random(seed)
        sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
        model = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=97)).double()
        config = ExecutorConfig(
            max_sequence_length=64,
            num_primary_blocks=24,
            num_secondary_blocks=16,
            tokens_per_block=4,
            max_batch_size=4,
            chunk_unit_size=8,
            max_num_tokens=24,
            device=place,
        )
        manager = create_kv_cache_manager(read_model_spec(model), config, engine)
        executor = PyTorchExecutor(model, manager, config, backend=used)
        prompts: list[list[int]] = [[]]
        results: list[int] = []
        for _ in range(num_rounds):
            for _ in range(4):
                start = rng.choice(prompts)
                prompt = [*start[: rng.randint(0, len(start))], *(rng.randrange(97) for _ in range(rng.randint(1, 9)))]
                prompts.append(prompt[:50])
                executor.submit(prompt[:50], rng.randint(1, 12))
            results += (token for result in executor.run().values() for token in result.token_ids[0])
        outputs.append(torch.tensor(results))
        expect_equal(outputs[-1], outputs[0], f"tokens on {place} with {type(engine).__name__}")


def make_filled_pools(device: str, layout: str, seed: int) -> list[list[KVCacheBlockPool]]:
    """Pools of four windows: plain, odd bytes, NVFP4 with scales, recurrent; filled with the same random bytes."""
    import torch

    from trtkv.common import DataType
    from trtkv.pools.kv_cache_block_pool import create_block_scale_pool, create_data_pool, create_recurrent_state_pool
    from trtkv.pools.pool_tensors import PoolTensors

    groups = [
        [
            create_data_pool(3, 2, 2, 64, 4, DataType.HALF, 1, (6, 4)),
            create_data_pool(2, 2, 1, 64, 4, DataType.BF16, 1, (6, 4)),
        ],
        [create_data_pool(3, 2, 3, 7, 4, DataType.INT8, 2, (6, 4))],
        [create_data_pool(3, 2, 2, 64, 4, DataType.NVFP4, 3, (6, 4))],
        [create_recurrent_state_pool(3, 48, 4, DataType.FLOAT, 4, (6, 4))],
    ]
    groups[2].append(create_block_scale_pool(groups[2][0]))
    generator = torch.Generator().manual_seed(seed)
    for group in groups:
        PoolTensors(group, []).allocate_pools(device, layout)
        for pool in group:
            for tensor in (pool.primary, pool.secondary):
                if tensor is None:
                    raise RuntimeError("a pool has no memory")
                raw = tensor.view(torch.uint8)
                raw.copy_(torch.randint(0, 256, raw.shape, generator=generator, dtype=torch.uint8))
    return groups


def expect_equal(actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    """Raise unless both hold the same."""
    import torch

    if not torch.equal(actual.cpu(), expected):
        places = (actual.cpu() != expected).nonzero()
        raise RuntimeError(f"{what}: {len(places)} places differ, the first at {places[0].tolist()}")


CHECKS: dict[str, Callable[[str, Backend, int, int], None]] = {
    "block copy": check_block_copy,
    "offset table": check_offset_table,
    "page table": check_page_table,
    "copy engines": check_copy_engines,
}
if importlib.util.find_spec("transformers"):
    CHECKS["executor"] = check_executor


def run_checks(device: str, backend: Backend, num_rounds: int) -> list[str]:
    """Names of the checks that failed; each result is printed."""
    failed = []
    for name, check in CHECKS.items():
        start = time.perf_counter()
        try:
            check(device, backend, 1, num_rounds)
            print(f"equal     {name:16} {time.perf_counter() - start:6.1f} s", flush=True)
        except Exception as error:  # every check is to be run
            print(f"DIFFERENT {name:16} {error}", flush=True)
            failed.append(name)
    return failed


# -- compute-sanitizer ----------------------------------------------------------------------------------


def run_sanitizer() -> bool | None:
    """Whether compute-sanitizer finds nothing; None where it is not installed."""
    program = shutil.which("compute-sanitizer") or next(iter(glob.glob("/usr/local/cuda*/bin/compute-sanitizer")), None)
    if program is None:
        print("compute-sanitizer is not installed: left out")
        return None
    clean = True
    for tool in ("memcheck", "racecheck"):
        command = [program, f"--tool={tool}", "--error-exitcode=9", sys.executable, __file__, "--sanitized"]
        try:
            result = subprocess.run(
                command, capture_output=True, text=True, timeout=SANITIZER_TIMEOUT_S / 2, check=False
            )
        except subprocess.TimeoutExpired:
            print(f"compute-sanitizer {tool}: not finished in {SANITIZER_TIMEOUT_S / 2:.0f} s")
            continue
        print(f"compute-sanitizer {tool}: {'clean' if result.returncode == 0 else 'ERRORS'}")
        if result.returncode:
            print(result.stdout[-4000:], result.stderr[-2000:])
            clean = False
    return clean


# -- times --------------------------------------------------------------------------------------------


def measure(function: Callable[[], object], num_calls: int = 200) -> float:
    """Microseconds per call on the device, many calls queued at once."""
    import torch

    for _ in range(10):
        function()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(num_calls):
        function()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1000 / num_calls


def measure_launch_floor() -> float:
    """Microseconds per launch of a kernel that does nothing."""
    import cupy
    import torch

    kernel = cupy.RawKernel('extern "C" __global__ void nothing(int* p) {}', "nothing")
    stream = torch.cuda.current_stream()

    def launch() -> None:
        with cupy.cuda.ExternalStream(stream.cuda_stream):
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
        name = f"offsets: {growing} rows x {length} blocks"
        yield Timing(name, measure(lambda: scatter_block_offsets(table, runs, slots, rules, length)), floor)  # noqa: B023 - called at once
    lens = torch.full((rows,), width * 32, dtype=torch.int32, device="cuda")
    out = create_page_table(rows, width, "cuda")
    yield Timing("page table: 256 rows", measure(lambda: build_page_table(out, table[0, :, 0], lens, 32)), floor)


def measure_copies() -> Iterator[Timing]:
    """Copies of whole and partial blocks of 4 MiB, beside torch's copy of as many bytes."""
    import torch

    from trtkv.kernels.block_copy import BlockLayout, CopyJob, copy_blocks
    from trtkv.kernels.staging_ring import StagingRing

    layers, heads, tokens, head_bytes = 32, 8, 32, 256
    row = tokens * head_bytes
    layout = BlockLayout(layers * 2, heads, head_bytes, row, layers * 2 * heads * row, heads * row, 256)
    pool = torch.zeros(layout.pool_bytes, dtype=torch.uint8, device="cuda")
    staging = StagingRing("cuda")
    for num_jobs, num_tokens in ((1, tokens), (1, 7), (16, tokens), (16, 7), (128, tokens)):
        jobs = [CopyJob(i, 128 + i, num_tokens) for i in range(num_jobs)]
        moved = sum(layout.num_copied_bytes(job.num_tokens) for job in jobs)
        copy = measure(lambda: copy_blocks(pool, pool, jobs, layout, layout, staging), 50)  # noqa: B023 - called at once
        plain = measure(lambda: pool[pool.numel() // 2 :][:moved].copy_(pool[:moved]), 50)  # noqa: B023 - called at once
        yield Timing(f"copy: {num_jobs} blocks, {num_tokens} tokens", copy, plain, 2 * moved / copy / 1000)
    block = layout.slot_stride
    host = torch.zeros(block, dtype=torch.uint8, pin_memory=True)
    for name, function in (
        ("offload: 4 MiB to pinned memory", lambda: host.copy_(pool[:block], non_blocking=True)),
        ("onboard: 4 MiB from pinned memory", lambda: pool[:block].copy_(host, non_blocking=True)),
    ):
        microseconds = measure(function, 50)
        yield Timing(name, microseconds, microseconds, block / microseconds / 1000)


def print_timings(timings: list[Timing]) -> None:
    """A table."""
    print(f"{'operation':38}{'us':>10}{'floor us':>10}{'ratio':>8}{'GB/s':>9}")
    for timing in timings:
        speed = "" if timing.gigabytes_per_second is None else f"{timing.gigabytes_per_second:9.0f}"
        ratio = timing.microseconds / timing.floor_microseconds
        print(f"{timing.name:38}{timing.microseconds:10.2f}{timing.floor_microseconds:10.2f}{ratio:8.2f}{speed}")


def why_not() -> str | None:
    """None where everything needed is there, else what is missing."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    try:
        import cupy  # noqa: F401 - only whether it can be
    except ImportError:
        return "CuPy is not installed (pip install cupy-cuda12x or cupy-cuda13x)"
    return None


def main() -> int:
    """Run all parts."""
    from tools.arguments import output_file

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-sanitizer", action="store_true")
    parser.add_argument("--sanitized", action="store_true", help="small checks only, as run under compute-sanitizer")
    parser.add_argument("--json", type=output_file, help="write the times to this file")
    arguments = parser.parse_args()
    if reason := why_not():
        print(f"nothing to check here: {reason}")
        return 0
    if arguments.sanitized:
        return int(bool(run_checks("cuda", None, 3)))
    import torch

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    failed = run_checks("cuda", None, 40)
    is_clean = None if arguments.no_sanitizer else run_sanitizer()
    timings = list(measure_all())
    print_timings(timings)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(timing) for timing in timings], indent=1))
    print("failed: " + ", ".join(failed) if failed else "all equal")
    return int(bool(failed) or is_clean is False)


if __name__ == "__main__":
    sys.exit(main())
