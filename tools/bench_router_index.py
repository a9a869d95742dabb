"""A router's index at size: time of look-ups and events a second, next to Dynamo's RadixTree where it is installed.

Run: ``python tools/bench_router_index.py [--workers 16] [--blocks 1000000] [--lookups 2000] [--clock cpu]
[--json FILE]``.

Blocks of 64 tokens in chains of the length of a prompt, each on a random share of the workers. A look-up asks for a
prompt of 12,000 tokens, its hashes at hand, of which some worker holds between one half and all. Events are stored
events of ten blocks; a churn of one removal and one store follows. Dynamo gets the same events and look-ups through
its Python binding: JSON bytes, and a list of hashes. Times are those of the wall.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.arguments import at_least, output_file, run_tool
from trtkv.errors import check
from trtkv.events.kv_cache_events import (
    KVCacheCreatedData,
    KVCacheEvent,
    KVCacheRemovedData,
    KVCacheStoredBlockData,
    KVCacheStoredData,
)
from trtkv.events.router_index import RouterIndex

TOKENS_PER_BLOCK: Final = 64
PROMPT_BLOCKS: Final = 12_000 // TOKENS_PER_BLOCK
BLOCKS_AN_EVENT: Final = 10
WINDOW: Final = 1 << 20
CLOCKS: Final = {"cpu": time.process_time, "wall": time.perf_counter}


class Stored(NamedTuple):
    """A run of blocks that a worker stores."""

    worker: int
    parent: int | None
    hashes: Sequence[int]


class Work(NamedTuple):
    """What is put into an index, and what is asked of it."""

    chains: list[list[int]]
    held: list[list[tuple[int, int]]]
    """(worker, blocks) by chain."""


def make_work(num_workers: int, num_blocks: int, rng: random.Random) -> Work:
    """Chains on one to four workers each, the first of them with at least half, until the blocks are used up."""
    chains, held = [], []
    while num_blocks > 0:
        chain = [rng.getrandbits(63) for _ in range(PROMPT_BLOCKS)]
        most = min(num_blocks, PROMPT_BLOCKS)
        workers = rng.sample(range(num_workers), min(num_workers, rng.randint(1, 4)))
        depths = [rng.randint(most // 2 + 1, most), *(rng.randint(1, most) for _ in workers[1:])]
        num_blocks -= max(depths)
        chains.append(chain)
        held.append(list(zip(workers, depths, strict=True)))
    return Work(chains, held)


def list_stores(work: Work) -> Iterator[Stored]:
    """The stored events of the work, chain by chain."""
    for chain, held in zip(work.chains, work.held, strict=True):
        for worker, depth in held:
            for start in range(0, depth, BLOCKS_AN_EVENT):
                parent = chain[start - 1] if start else None
                yield Stored(worker, parent, chain[start : min(start + BLOCKS_AN_EVENT, depth)])


class OurSubject:
    """RouterIndex; a worker's events are numbered as its manager does."""

    name = "trtkv"

    def __init__(self, num_workers: int) -> None:
        self.index = RouterIndex(TOKENS_PER_BLOCK)
        self._next = [1] * num_workers
        for worker in range(num_workers):
            self.index.apply(worker, [KVCacheEvent(0, KVCacheCreatedData((1, 0)), WINDOW)])

    def _number(self, worker: int, data: Any) -> tuple[int, list[KVCacheEvent]]:
        self._next[worker] += 1
        return worker, [KVCacheEvent(self._next[worker] - 1, data, WINDOW)]

    def make_stored(self, stored: Stored) -> tuple[int, list[KVCacheEvent]]:
        """An event that stores a run of blocks."""
        blocks = [KVCacheStoredBlockData(block_hash, b"", 0, 35) for block_hash in stored.hashes]
        return self._number(stored.worker, KVCacheStoredData(stored.parent, blocks))

    def make_removed(self, worker: int, hashes: Sequence[int]) -> tuple[int, list[KVCacheEvent]]:
        """An event that removes blocks."""
        return self._number(worker, KVCacheRemovedData(list(hashes)))

    def apply(self, event: tuple[int, list[KVCacheEvent]]) -> None:
        """Take an event."""
        self.index.apply(*event)

    def find(self, chain: Sequence[int]) -> dict[int, int]:
        """Worker -> leading blocks."""
        return {int(str(name.worker)): tokens // TOKENS_PER_BLOCK for name, tokens in self.index.find(chain).items()}

    def ask(self, chain: Sequence[int]) -> object:
        """The look-up alone."""
        return self.index.find(chain)


class DynamoSubject:
    """Dynamo's RadixTree; one hash serves as that of the block and of its tokens."""

    name = "Dynamo RadixTree"

    def __init__(self, num_workers: int) -> None:
        from dynamo._core import RadixTree

        self.tree = RadixTree()
        self._next = 0

    def _pack(self, worker: int, data: dict[str, Any]) -> tuple[int, bytes]:
        self._next += 1
        return worker, json.dumps({"event_id": self._next, "data": data, "dp_rank": 0}).encode()

    def make_stored(self, stored: Stored) -> tuple[int, bytes]:
        """An event that stores a run of blocks."""
        blocks = [{"block_hash": block_hash, "tokens_hash": block_hash} for block_hash in stored.hashes]
        return self._pack(stored.worker, {"stored": {"parent_hash": stored.parent, "blocks": blocks}})

    def make_removed(self, worker: int, hashes: Sequence[int]) -> tuple[int, bytes]:
        """An event that removes blocks."""
        return self._pack(worker, {"removed": {"block_hashes": list(hashes)}})

    def apply(self, event: tuple[int, bytes]) -> None:
        """Take an event."""
        self.tree.apply_event(*event)

    def find(self, chain: Sequence[int]) -> dict[int, int]:
        """Worker -> leading blocks."""
        return {worker: count for (worker, _), count in self.tree.find_matches(chain).scores.items()}

    def ask(self, chain: Sequence[int]) -> object:
        """The look-up alone."""
        return self.tree.find_matches(chain).scores


def measure(
    subject: Any, work: Work, num_lookups: int, rng: random.Random, clock: Callable[[], float]
) -> dict[str, Any]:
    """Fill, look up, churn; checks the answers on the way."""

    def spend(call: Callable[[Any], object], argument: Any) -> float:
        start = clock()
        call(argument)
        return clock() - start

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    spent, num_events = 0.0, 0
    for stored in list_stores(work):
        spent += spend(subject.apply, subject.make_stored(stored))
        num_events += 1
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    whole = [index for index, held in enumerate(work.held) if held[0][1] > PROMPT_BLOCKS // 2]
    asked = [rng.choice(whole) for _ in range(num_lookups)]
    for index in asked[:100]:
        check(subject.find(work.chains[index]) == dict(work.held[index]), f"{subject.name} gives a wrong answer")
    gc.collect()
    times = sorted(spend(subject.ask, work.chains[index]) * 1e3 for index in asked)
    churn = 0.0
    for index in asked:
        worker, depth = work.held[index][0]
        last = work.chains[index][depth - 1]
        parent = work.chains[index][depth - 2] if depth > 1 else None
        churn += spend(subject.apply, subject.make_removed(worker, [last]))
        churn += spend(subject.apply, subject.make_stored(Stored(worker, parent, [last])))
    return {
        "subject": subject.name,
        "lookup_median_ms": median(times),
        "lookup_p99_ms": quantiles(times, n=100)[98] if len(times) > 1 else times[0],
        "stored_events_per_s": num_events / spent,
        "stored_blocks_per_s": sum(depth for held in work.held for _, depth in held) / spent,
        "churn_events_per_s": 2 * num_lookups / churn,
        "peak_memory_mb": grown / 1024,
    }


def main() -> int:
    """Measure what is installed and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=at_least(1), default=16)
    parser.add_argument("--blocks", type=at_least(PROMPT_BLOCKS), default=1_000_000, help="different ones, together")
    parser.add_argument("--lookups", type=at_least(1), default=2000)
    parser.add_argument("--clock", choices=CLOCKS, default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=output_file, help="write the rows here")
    options = parser.parse_args()
    work = make_work(options.workers, options.blocks, random.Random(options.seed))
    rows = []
    for kind in (OurSubject, DynamoSubject):
        try:
            subject = kind(options.workers)
        except ImportError:
            print(f"{kind.name}: not measured; ai-dynamo-runtime is not installed")
            continue
        row = measure(subject, work, options.lookups, random.Random(options.seed), CLOCKS[options.clock])
        rows.append(row)
        print(
            f"{row['subject']}: look-up of {PROMPT_BLOCKS} blocks median {row['lookup_median_ms']:.3f} ms, "
            f"p99 {row['lookup_p99_ms']:.3f} ms; {row['stored_events_per_s']:,.0f} stored events a second "
            f"({row['stored_blocks_per_s']:,.0f} blocks), {row['churn_events_per_s']:,.0f} small events a second; "
            f"{row['peak_memory_mb']:,.0f} MB more at the peak"
        )
        del subject
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    run_tool(main)
