"""Checks kernels and copy engines on a GPU: equality with the references, compute-sanitizer, times. Under 4 minutes.

Needs torch with CUDA, NumPy and CuPy; without them or without a GPU it says so and exits with 0. The check of the
executor needs pydantic and transformers too, and is left out without them. Exit code 1 when something differs, when a
part raises, and when compute-sanitizer reports an error or does not come to its end.

Run: ``python tools/gpu_check.py [--no-sanitizer] [--json FILE]``
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import random
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    import torch

    from tools.gpu_times import Timing
    from trtkv.kernels.kernel_launch import Backend
    from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool

NUM_ROUNDS = 40
ROUNDS_AT_ONCE = 4
"""A check looks at the clock after so many rounds."""
CHECKS_S = 80.0
"""Seconds for all checks; a check that is slower than its share does fewer rounds and says how many."""
SANITIZER_S = 45.0
"""Seconds for each tool of compute-sanitizer."""
TIMES_S = 40.0
"""Seconds after which no further time is measured."""
PIP_NAMES = {"cupy": "cupy-cuda12x (or cupy-cuda13x)"}


# -- equality -----------------------------------------------------------------------------------------


def check_block_copy(device: str, backend: Backend, seed: int, num_rounds: int) -> None:
    """Random layouts and jobs, within one pool and between two."""
    import torch

    from trtkv.kernels.block_copy import copy_blocks
    from trtkv.kernels.copy_job import BlockLayout, CopyJob
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


def check_graph_capture(device: str, backend: Backend, seed: int, num_rounds: int) -> None:
    """A page table in a CUDA graph, replayed while the offset table below it changes; called directly on a CPU."""
    import torch

    from trtkv.kernels.block_offsets import make_offset_rule
    from trtkv.kernels.offset_table import DeviceOffsetTable
    from trtkv.kernels.page_table import build_page_table, create_page_table

    rng = random.Random(seed)
    rows, width, tokens, slots = 5, 150, 16, 1000
    rule = make_offset_rule(0, 3, 2, False, False)
    tables = [DeviceOffsetTable([rule], [slots], rows, width, place, used) for place, used in places(device, backend)]
    outs = [create_page_table(rows, width, place) for place, _ in places(device, backend)]
    lens = [torch.zeros(rows, dtype=torch.int32, device=place) for place, _ in places(device, backend)]

    def build(index: int) -> None:
        used = (backend, "reference")[index]
        build_page_table(outs[index], tables[index].table[0, :, 0], lens[index], tokens, None, 6, backend=used)

    build(0)  # compiles, which a capture must not
    graph = None
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            build(0)
    for _ in range(num_rounds):
        for row in range(rows):
            values = [rng.randrange(slots) for _ in range(rng.randint(1, width))]
            for table, length in zip(tables, lens, strict=True):
                table.set_row(0, row, values)
                length[row] = tokens * len(values)
        for table in tables:
            table.flush()
        build(1)
        graph.replay() if graph else build(0)
        num_pages = int(outs[1].kv_indptr[-1])
        expect_equal(outs[0].kv_indptr, outs[1].kv_indptr, "kv_indptr of a graph")
        expect_equal(outs[0].kv_indices[:num_pages], outs[1].kv_indices[:num_pages], "kv_indices of a graph")


def places(device: str, backend: Backend) -> tuple[tuple[str, Backend], tuple[str, Backend]]:
    """Where the kernels run, and where the reference does."""
    return (device, backend), ("cpu", "reference")


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
    "graph capture": check_graph_capture,
    "copy engines": check_copy_engines,
    "executor": check_executor,
}
NEEDS = {"executor": ("pydantic", "transformers")}
"""Packages that a check needs besides those of the others."""


def run_checks(
    device: str,
    backend: Backend,
    num_rounds: int,
    seconds: float = math.inf,
    names: Collection[str] = CHECKS,
    clock: Callable[[], float] = time.monotonic,
) -> list[str]:
    """Names of the checks that failed; each result is printed. Checks share the seconds; each does some rounds."""
    failed = []
    for name in names:
        if missing := find_missing(NEEDS.get(name, ())):
            print(f"left out  {name:16} {advise(missing)}", flush=True)
            continue
        start, done = clock(), 0
        try:
            while done < num_rounds and (not done or clock() - start < seconds / len(names)):
                CHECKS[name](device, backend, 1 + done, min(ROUNDS_AT_ONCE, num_rounds - done))
                done += min(ROUNDS_AT_ONCE, num_rounds - done)
            print(f"equal     {name:16} {done} of {num_rounds} rounds {clock() - start:6.1f} s", flush=True)
        except Exception as error:  # every check is to be run
            print(f"DIFFERENT {name:16} {error}", flush=True)
            failed.append(name)
    return failed


# -- the whole ----------------------------------------------------------------------------------------


def find_missing(packages: Collection[str]) -> list[str]:
    """Those that cannot be imported."""
    missing = []
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError:
            missing.append(package)
    return missing


def advise(missing: Collection[str]) -> str:
    """What to install."""
    return f"needs {', '.join(missing)}: pip install {' '.join(PIP_NAMES.get(name, name) for name in missing)}"


def why_not() -> str | None:
    """None where everything needed is there, else what is missing."""
    if missing := find_missing(("torch", "numpy")):
        return advise(missing)
    import torch

    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    if missing := find_missing(("cupy",)):
        return advise(missing)
    return None


def measure_times(seconds: float, clock: Callable[[], float] = time.monotonic) -> list[Timing]:
    """What can be measured in so many seconds, as a printed table."""
    from tools.gpu_times import measure_all, print_timings

    start, timings = clock(), []
    for timing in measure_all():
        timings.append(timing)
        if clock() - start > seconds:
            print(f"no further times: {seconds:.0f} s are over")
            break
    print_timings(timings)
    return timings


def main() -> int:
    """Run all parts."""
    from tools.arguments import output_file
    from tools.sanitizer import FINISHED, run_sanitizer

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--no-sanitizer", action="store_true")
    parser.add_argument("--sanitized", action="store_true", help="small checks only, as run under compute-sanitizer")
    parser.add_argument("--json", type=output_file, help="write the times to this file")
    arguments = parser.parse_args()
    if reason := why_not():
        print(f"nothing to check here: {reason}")
        return 0
    if arguments.sanitized:
        failed = run_checks("cuda", None, 3, SANITIZER_S / 2, [name for name in CHECKS if name not in NEEDS])
        print(FINISHED)
        return int(bool(failed))
    import torch

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    failed = run_checks("cuda", None, NUM_ROUNDS, CHECKS_S)
    if not arguments.no_sanitizer:
        failed += run_sanitizer([sys.executable, __file__, "--sanitized"], SANITIZER_S)
    timings = measure_times(TIMES_S)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(timing) for timing in timings], indent=1))
    print("not all is well: " + ", ".join(failed) if failed else "all equal")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
