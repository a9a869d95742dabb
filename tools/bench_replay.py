"""Time of a replayed trace, split by kind of call: add, store, decode, remove.

Runs the manager over the whole trace, then the manager and nano-vllm's block manager in turn over its first rows.
Making tokens from hash ids is outside the times, building block keys and hashes inside.
Run: ``python tools/bench_replay.py TRACE [--block-size 512] [--tokens-per-block 64] [--capacity-tokens 30000000]
[--live 64] [--side-by-side 2000] [--repeat 3] [--no-gc] [--nano-vllm FOLDER] [--json FILE]``.
``trtkv replay`` runs without Python's cycle collector, as --no-gc does here.
FOLDER holds the package ``nanovllm`` of the original; without it the port ``trtkv.nano`` is measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from itertools import chain, count, repeat
from pathlib import Path
from statistics import median
from time import perf_counter
from types import ModuleType
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tools.arguments import at_least, existing_file, existing_folder, output_file, run_tool
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest
from trtkv.replay.closed_loop.closed_loop import ClosedLoop, ReplayManager
from trtkv.replay.config import ReplayConfig
from trtkv.traces.trace import TraceRequest
from trtkv.traces.trace_reader import read_trace

PHASES: Final = ("add", "store", "decode", "remove")


def repeat_ids(request_ids: Sequence[int], num_rounds: int) -> Iterable[int]:
    """The ids of a decode step, so many times."""
    return chain.from_iterable(repeat(request_ids, num_rounds))


class TokenByToken:
    """A KVCacheManager that is asked for every single token, as an executor does, and not for many rounds at once."""

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager
        self.add_sequence_batch = manager.add_sequence_batch
        self.store_context_blocks = manager.store_context_blocks
        self.remove_sequence = manager.remove_sequence

    def add_token_rounds(self, request_ids: Sequence[int], num_rounds: int) -> None:
        """A token for each sequence, in each round."""
        self._manager.add_tokens(repeat_ids(request_ids, num_rounds))


class NanoAdapter:
    """nano-vllm's block manager, driven like a KVCacheManager. Its sequences hash what they fill as they go."""

    def __init__(
        self, manager: Any, to_tokens: Callable[[array[int]], Any], make_sequence: Callable[[Any], Any]
    ) -> None:
        self.preparation_seconds = 0.0
        """Time of to_tokens, which only brings tokens into the form that this system takes."""
        self._manager = manager
        self._to_tokens = to_tokens
        self._make_sequence = make_sequence
        self._running: dict[int, tuple[Any, Callable[[], int]]] = {}

    def add_sequence_batch(self, infos: Sequence[tuple[int, int, int]], requests: Sequence[LlmRequest]) -> None:
        """Match and allocate each prompt."""
        for request in requests:
            sequence = self._make_sequence(self._prepared_tokens(request))
            num_cached_blocks = self._manager.can_allocate(sequence)
            if num_cached_blocks < 0:
                raise SystemExit("nano-vllm's block manager is out of blocks; give more --capacity-tokens")
            self._manager.allocate(sequence, num_cached_blocks)
            if sequence.num_cached_tokens:
                request.set_prepopulated_prompt_len(sequence.num_cached_tokens, self._manager.block_size)
            first_token = request.request_id * 1_000_003 & 0x3FFFFFFF
            self._running[request.request_id] = (sequence, count(first_token).__next__)

    def store_context_blocks(self, request: LlmRequest) -> None:
        """Register the full blocks of a prompt."""
        sequence, _ = self._running[request.request_id]
        sequence.num_scheduled_tokens = len(sequence) - sequence.num_cached_tokens
        self._register(sequence)

    def add_token_rounds(self, request_ids: Sequence[int], num_rounds: int) -> None:
        """Append a token to each sequence, and register the block that it fills."""
        manager, running = self._manager, self._running
        for request_id in repeat_ids(request_ids, num_rounds):
            sequence, next_token = running[request_id]
            sequence.append_token(next_token())
            if not manager.can_append(sequence):
                raise SystemExit("nano-vllm's block manager is out of blocks; give more --capacity-tokens")
            manager.may_append(sequence)
            sequence.num_scheduled_tokens = 1
            self._register(sequence)

    def remove_sequence(self, request_id: int, request: LlmRequest) -> None:
        """Give the blocks back."""
        sequence, _ = self._running.pop(request_id)
        self._manager.deallocate(sequence)

    def _prepared_tokens(self, request: LlmRequest) -> Any:
        start = perf_counter()
        tokens = self._to_tokens(request.get_tokens())
        self.preparation_seconds += perf_counter() - start
        return tokens

    def _register(self, sequence: Any) -> None:
        self._manager.hash_blocks(sequence)
        sequence.num_cached_tokens += sequence.num_scheduled_tokens
        sequence.num_scheduled_tokens = 0


class Measurement(NamedTuple):
    """Seconds of one run."""

    system: str
    requests: int
    seconds: dict[str, float]
    token_hit_rate: float

    @property
    def total(self) -> float:
        """Seconds of all calls."""
        return sum(self.seconds.values())


def to_int64(tokens: array[int]) -> Any:
    """Tokens as the port takes them fastest."""
    return np.frombuffer(tokens, dtype=np.int32).astype(np.int64)


MakeManager = Callable[[Sequence[TraceRequest], ReplayConfig], ReplayManager]


def make_trtkv(requests: Sequence[TraceRequest], config: ReplayConfig) -> ReplayManager:
    """The manager of a plain replay."""
    return TokenByToken(config.build_manager(requests))


def make_nano_port(requests: Sequence[TraceRequest], config: ReplayConfig) -> ReplayManager:
    """The port of nano-vllm's block manager."""
    nano = import_module("trtkv.nano")
    manager = nano.BlockManager(config.num_primary_blocks(requests), config.tokens_per_block)
    block_size = config.tokens_per_block
    return NanoAdapter(manager, to_int64, lambda tokens: nano.Sequence(tokens, block_size=block_size))


def make_nano_original(folder: Path) -> MakeManager:
    """The original, imported from a folder without running its package's own imports."""
    for name in ("nanovllm", "nanovllm.engine"):
        package = ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = package
    block_manager = import_module("nanovllm.engine.block_manager")
    sequence = import_module("nanovllm.engine.sequence")

    def make(requests: Sequence[TraceRequest], config: ReplayConfig) -> ReplayManager:
        sequence.Sequence.block_size = config.tokens_per_block
        manager = block_manager.BlockManager(config.num_primary_blocks(requests), config.tokens_per_block)
        return NanoAdapter(manager, list, sequence.Sequence)

    return make


def measure(system: str, make: MakeManager, requests: Sequence[TraceRequest], config: ReplayConfig) -> Measurement:
    """Replay once with a timer."""
    gc.collect()
    manager = make(requests, config)
    loop = ClosedLoop(
        manager,
        tokens_per_block=config.tokens_per_block,
        num_primary_blocks=config.num_primary_blocks(requests),
        live=config.live,
        num_needed_blocks=config.num_needed_blocks,
        timer=perf_counter,
    )
    loop.run(requests)
    seconds = {phase: getattr(loop.seconds, phase) for phase in PHASES}
    seconds["add"] -= getattr(manager, "preparation_seconds", 0.0)
    return Measurement(
        system, loop.counts.requests, seconds, loop.counts.prepopulated_tokens / max(1, loop.counts.prompt_tokens)
    )


def medians(runs: Sequence[Measurement]) -> Measurement:
    """Median of each phase over equal runs."""
    seconds = {phase: median(run.seconds[phase] for run in runs) for phase in PHASES}
    return runs[0]._replace(seconds=seconds)


def side_by_side(
    systems: dict[str, MakeManager], requests: Sequence[TraceRequest], config: ReplayConfig, repeat: int
) -> list[Measurement]:
    """Medians of each system; runs alternate, so that a busy machine slows all of them."""
    runs: dict[str, list[Measurement]] = {system: [] for system in systems}
    for _ in range(repeat):
        for system, make in systems.items():
            runs[system].append(measure(system, make, requests, config))
    return [medians(measurements) for measurements in runs.values()]


def to_table(measurements: Sequence[Measurement], title: str) -> Table:
    """A row per system and number of requests; phases in seconds, hits in share of prompt tokens."""
    table = Table(title=f"{title}; seconds", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("system", no_wrap=True)
    for column in ("requests", *PHASES, "total", "us/request", "hits"):
        table.add_column(column, justify="right", no_wrap=True)
    for run in measurements:
        per_request = run.total / max(1, run.requests) * 1e6
        numbers = [f"{run.seconds[phase]:.2f}" for phase in PHASES] + [f"{run.total:.2f}", f"{per_request:.0f}"]
        table.add_row(run.system, f"{run.requests:,}", *numbers, f"{100 * run.token_hit_rate:.2f} %")
    return table


def nano_systems(folder: Path | None) -> dict[str, MakeManager]:
    """What can be measured beside the manager on this machine."""
    if folder is not None:
        return {"nano-vllm": make_nano_original(folder)}
    try:
        import_module("trtkv.nano")
    except ImportError as error:
        print(f"nano-vllm's block manager is left out: {error}", file=sys.stderr)
        return {}
    return {"trtkv.nano": make_nano_port}


def parse_arguments() -> argparse.Namespace:
    """Command line of this tool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=existing_file)
    parser.add_argument("--block-size", type=at_least(1), default=None)
    parser.add_argument("--tokens-per-block", type=at_least(1), default=64)
    parser.add_argument("--capacity-tokens", type=at_least(1), default=30_000_000)
    parser.add_argument("--live", type=at_least(1), default=64)
    parser.add_argument("--side-by-side", type=at_least(1), default=2000, metavar="N", help="rows for the comparison")
    parser.add_argument("--repeat", type=at_least(1), default=3, help="runs of each system in the comparison")
    parser.add_argument("--only-side-by-side", action="store_true", help="leave out the whole trace")
    parser.add_argument("--no-gc", action="store_true", help="switch Python's cycle collector off")
    parser.add_argument("--nano-vllm", type=existing_folder, metavar="FOLDER")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="also write the numbers")
    return parser.parse_args()


def main() -> int:
    """Measure and print."""
    arguments = parse_arguments()
    if arguments.no_gc:
        gc.disable()
    requests = read_trace(arguments.trace, block_size=arguments.block_size).requests
    config = ReplayConfig(
        tokens_per_block=arguments.tokens_per_block, capacity_tokens=arguments.capacity_tokens, live=arguments.live
    )
    measurements = []
    if not arguments.only_side_by_side:
        measurements.append(measure("trtkv", make_trtkv, requests, config))
    systems = {"trtkv": make_trtkv, **nano_systems(arguments.nano_vllm)}
    measurements += side_by_side(systems, requests[: arguments.side_by_side], config, arguments.repeat)
    title = (
        f"{arguments.trace.name}, {config.tokens_per_block} tokens a block, "
        f"{config.capacity_tokens:,} tokens, {config.live} live"
    )
    Console().print(to_table(measurements, title))
    if arguments.json:
        arguments.json.write_text(json.dumps([run._asdict() for run in measurements], indent=2) + "\n")
    return 0


if __name__ == "__main__":
    run_tool(main)
