"""nano-vllm's own scheduler over trtkv's block manager, step by step beside the same scheduler over its own.

    python tools/check_nano_vllm.py FOLDER [--loads 30] [--seed 0]

FOLDER is a checkout of nano-vllm (or its package folder). Scheduler, Sequence and SamplingParams are its own; only the
block manager is replaced. After every step both must have scheduled the same, and agree on every sequence and every
block. Needs numpy and xxhash, no torch. Exit code 1 if a load differs, or if something never occurred.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.nano.original_nano_vllm import Original, find_package, load_original
from tools.arguments import at_least
from trtkv.nano import BlockManager

EOS = 7
SEQUENCE_FIELDS = (
    "token_ids",
    "num_tokens",
    "num_cached_tokens",
    "num_scheduled_tokens",
    "is_prefill",
    "is_finished",
    "block_table",
)


def draw_settings(rng: random.Random) -> dict[str, int]:
    """A scheduler's config with a pool small enough to preempt."""
    return {
        "kvcache_block_size": rng.choice((2, 4, 8)),
        "num_kvcache_blocks": rng.randint(8, 30),
        "max_num_seqs": rng.choice((2, 5, 100)),
        "max_num_batched_tokens": rng.choice((5, 16, 1000)),
        "eos": EOS,
    }


def draw_load(rng: random.Random, max_length: int) -> list[tuple[list[int], dict[str, Any]]]:
    """Prompts, many with the beginning of an earlier one, and sampling settings."""
    load: list[tuple[list[int], dict[str, Any]]] = []
    for _ in range(rng.randint(5, 40)):
        start = rng.choice(load)[0] if load and rng.random() < 0.7 else []
        prompt = start[: rng.randint(0, len(start))] + [rng.randrange(50) for _ in range(rng.randint(1, 20))]
        max_tokens = rng.randint(1, 12)
        settings = {
            "temperature": rng.uniform(0.1, 2),
            "max_tokens": max_tokens,
            "ignore_eos": rng.random() < 0.5,
        }
        load.append((prompt[: max_length - max_tokens], settings))
    return load


def describe(scheduler: Any, sequences: list[Any]) -> list[object]:
    """All that can be seen of a scheduler, its manager and its sequences."""
    manager = scheduler.block_manager
    places = {id(seq): place for place, seq in enumerate(sequences)}
    return [
        [places[id(seq)] for seq in scheduler.waiting],
        [places[id(seq)] for seq in scheduler.running],
        [[getattr(seq, name) for name in SEQUENCE_FIELDS] + [seq.status.name] for seq in sequences],
        list(manager.free_block_ids),
        set(manager.used_block_ids),
        dict(manager.hash_to_block_id),
        [(block.block_id, block.ref_count, block.hash, block.token_ids) for block in manager.blocks],
    ]


def run_load(original: Original, seed: int, counts: Counter[str]) -> str | None:
    """What differs in one load, if anything; counts what occurred."""
    rng = random.Random(seed)
    settings = draw_settings(rng)
    original.sequence.block_size = settings["kvcache_block_size"]
    load = draw_load(rng, settings["kvcache_block_size"] * settings["num_kvcache_blocks"])
    schedulers = [original.scheduler(SimpleNamespace(**settings)) for _ in range(2)]
    schedulers[1].block_manager = BlockManager(settings["num_kvcache_blocks"], settings["kvcache_block_size"])
    sequences: list[list[Any]] = [[], []]
    while load or not schedulers[0].is_finished():
        for _ in range(min(len(load), rng.randint(0 if sequences[0] else 1, 3))):
            prompt, params = load.pop()
            for scheduler, mine in zip(schedulers, sequences, strict=True):
                mine.append(original.sequence(prompt, original.sampling_params(**params)))
                scheduler.add(mine[-1])
        if schedulers[0].is_finished():
            continue
        num_waiting = len(schedulers[0].waiting)
        steps = [scheduler.schedule() for scheduler in schedulers]
        chosen = [[mine.index(seq) for seq in step[0]] for step, mine in zip(steps, sequences, strict=True)]
        if chosen[0] != chosen[1] or steps[0][1] != steps[1][1]:
            return f"step {counts['steps']}: scheduled {chosen[0]} and {chosen[1]}"
        if describe(schedulers[0], sequences[0]) != describe(schedulers[1], sequences[1]):
            return f"step {counts['steps']}: states differ after schedule()"
        is_prefill = steps[0][1]
        counts["steps"] += 1
        counts["preemptions"] += not is_prefill and len(schedulers[0].waiting) > num_waiting
        counts["cached tokens"] += sum(seq.num_cached_tokens for seq in steps[0][0]) if is_prefill else 0
        counts["cut prompts"] += is_prefill and steps[0][0][-1].status.name == "WAITING"
        tokens = [rng.randrange(10) for _ in chosen[0]]
        for scheduler, step in zip(schedulers, steps, strict=True):
            scheduler.postprocess(step[0], tokens, is_prefill)
        if describe(schedulers[0], sequences[0]) != describe(schedulers[1], sequences[1]):
            return f"step {counts['steps']}: states differ after postprocess()"
    counts["sequences"] += len(sequences[0])
    return None


def main() -> int:
    """Run all loads; print a line for each difference and the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="checkout of nano-vllm")
    parser.add_argument("--loads", type=at_least(1), default=30)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.environ["TRTKV_NANO_VLLM"] = str(arguments.folder)
    try:
        folder = find_package() or arguments.folder
    except FileNotFoundError as error:
        parser.error(str(error))
    counts: Counter[str] = Counter()
    num_different = 0
    with load_original(folder) as original:
        for seed in range(arguments.seed, arguments.seed + arguments.loads):
            difference = run_load(original, seed, counts)
            if difference:
                num_different += 1
                print(f"load {seed}: {difference}")
    print(", ".join(f"{count:,} {name}" for name, count in counts.items()))
    missing = [name for name in ("preemptions", "cached tokens", "cut prompts") if not counts[name]]
    if missing:
        print(f"never occurred: {', '.join(missing)}; run more loads")
    print(f"{arguments.loads - num_different} of {arguments.loads} loads equal")
    return int(bool(num_different or missing))


if __name__ == "__main__":
    sys.exit(main())
