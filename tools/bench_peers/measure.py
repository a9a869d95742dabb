"""One measurement of one system in this process: ``python measure.py SPEC``, SPEC and answer are JSON.

The answer is one line on standard output. Times are microseconds a request (or an operation), split into add,
store, decode and remove. Making tokens and bringing them into a system's form is outside the times; making the
request, hashing or key building is inside. What a system frees is deleted outside the times as well.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections import deque
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from bench_peers.system import Pool, System
from bench_peers.tokens import generated, read_rows, unique

_BATCH = 50
"""Requests whose tokens are made at a time."""

_LONGEST = 200_000


class Spec(NamedTuple):
    """What to measure."""

    system: str
    variant: str
    case: str
    tokens_per_block: int = 64
    capacity_tokens: int = 30_000_000
    live: int = 64
    requests: int = 2000
    trace: str = ""
    size: int = 0
    """Prompt tokens, sequences, cached blocks or children, as the case says."""
    operations: int = 30
    clock: str = "cpu"
    collect_garbage: bool = True
    freeze: bool = False
    """Whether what exists before the first request is taken out of the collector's sight, as some servers do."""

    @property
    def pool(self) -> Pool:
        """The cache to build."""
        return Pool(self.tokens_per_block, self.capacity_tokens, self.live, max(_LONGEST, 2 * self.size))


Answer = dict[str, Any]


def measure(spec: Spec) -> Answer:
    """Run the case."""
    make = import_module(f"bench_peers.{spec.system}_system").BenchSystem
    if not spec.collect_garbage:
        gc.disable()
    clock = process_time if spec.clock == "cpu" else perf_counter
    answer: Answer = CASES[spec.case](spec, lambda pool: make(pool, spec.variant), clock)
    return answer


MakeSystem = Callable[[Pool], System]
Clock = Callable[[], float]


def _settle(spec: Spec) -> None:
    """Leave nothing to the collector that was there before the first request."""
    gc.collect()
    if spec.freeze:
        gc.freeze()


class _Split:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.add = self.store = self.decode = self.remove = 0.0

    def to_answer(self, count: int) -> Answer:
        return {phase: seconds / count * 1e6 for phase, seconds in vars(self).items()}


def trace(spec: Spec, make: MakeSystem, clock: Clock) -> Answer:
    """The first requests of a trace, ``live`` at a time: the oldest goes when one more has come."""
    rows = read_rows(Path(spec.trace), spec.requests)
    system = make(spec.pool)
    live: deque[Any] = deque()
    split = _Split()
    found = prompt_tokens = decoded = 0
    _settle(spec)
    for first in range(0, len(rows), _BATCH):
        batch = [
            (first + offset, system.prepare(row.prompt()), generated(first + offset, row.output_length))
            for offset, row in enumerate(rows[first : first + _BATCH])
        ]
        freed = []
        for request_id, prompt, output in batch:
            start = clock()
            handle, num_found = system.add(request_id, prompt)
            added = clock()
            system.store(handle)
            stored = clock()
            system.decode(handle, output)
            end = clock()
            live.append(handle)
            if len(live) > spec.live - (spec.live == 1):
                oldest = live.popleft()
                before = clock()
                system.free(oldest)
                split.remove += clock() - before
                freed.append(oldest)
            split.add += added - start
            split.store += stored - added
            split.decode += end - stored
            found += num_found
            prompt_tokens += len(prompt)
            decoded += len(output)
        del batch, freed, handle, prompt, output
    answer = split.to_answer(len(rows))
    return answer | {"found_tokens": found, "prompt_tokens": prompt_tokens, "decoded_tokens": decoded}


def _add_and_free(system: System, request_id: int, prompt: Any, clock: Clock, split: _Split) -> tuple[float, int]:
    """One prompt in and out; seconds, and the tokens found."""
    start = clock()
    handle, found = system.add(request_id, prompt)
    added = clock()
    system.store(handle)
    stored = clock()
    system.free(handle)
    end = clock()
    split.add += added - start
    split.store += stored - added
    split.remove += end - stored
    return end - start, found


def _operations(system: System, prompts: Any, clock: Clock, spec: Spec) -> tuple[Answer, list[int]]:
    """Median and mean split of ``spec.operations`` times adding and freeing a prompt."""
    split, seconds, found, count = _Split(), [], [], spec.operations
    _settle(spec)
    for number in range(count):
        prompt = system.prepare(prompts(number))
        elapsed, num_found = _add_and_free(system, 1_000 + number, prompt, clock, split)
        seconds.append(elapsed)
        found.append(num_found)
    return split.to_answer(count) | {"total": median(seconds) * 1e6}, found


def cached_prompt(spec: Spec, make: MakeSystem, clock: Clock) -> Answer:
    """A prompt of ``size`` tokens that is in the cache: add, store and free."""
    system = make(spec.pool)
    tokens = unique(1, spec.size)
    for request_id in range(3):
        _add_and_free(system, request_id, system.prepare(tokens), clock, _Split())
    answer, found = _operations(system, lambda number: tokens, clock, spec)
    if min(found) < spec.size - spec.tokens_per_block:
        raise SystemExit(f"only {min(found)} of {spec.size} cached tokens were found")
    return answer


def new_prompt(spec: Spec, make: MakeSystem, clock: Clock) -> Answer:
    """A prompt of ``size`` tokens of which nothing is in the cache: add, store and free."""
    system = make(spec.pool)
    answer, found = _operations(system, lambda number: unique(number + 1, spec.size), clock, spec)
    if any(found):
        raise SystemExit("a new prompt was found in the cache")
    return answer


def decode_step(spec: Spec, make: MakeSystem, clock: Clock) -> Answer:
    """One more token for each of ``size`` sequences of 1,000 tokens, several blocks long."""
    system = make(spec.pool)
    handles = [system.add(number, system.prepare(unique(number, 1000)))[0] for number in range(spec.size)]
    for handle in handles:
        system.store(handle)
    _settle(spec)
    seconds = []
    for step in range(8 * spec.tokens_per_block):
        tokens = generated(step, spec.size)
        start = clock()
        system.decode_step(handles, tokens)
        seconds.append(clock() - start)
    mean = sum(seconds) / len(seconds) * 1e6
    return {"decode": mean, "total": mean, "median_step": median(seconds) * 1e6}


def tree_size(spec: Spec, make: MakeSystem, clock: Clock) -> Answer:
    """``cached_prompt`` of 8,192 tokens beside ``size`` other cached blocks."""
    system = make(spec.pool)
    length = 128 * spec.tokens_per_block
    for number in range(spec.size // 128):
        _add_and_free(system, number, system.prepare(unique(number + 2, length)), clock, _Split())
    tokens = unique(1, length)
    _add_and_free(system, 0, system.prepare(tokens), clock, _Split())
    return _operations(system, lambda number: tokens, clock, spec)[0]


def siblings(spec: Spec, make: MakeSystem, clock: Clock) -> Answer:
    """A new prompt of four blocks below a root that has ``size`` children; all first tokens differ."""
    return _siblings(spec, make, clock, first_token=None)


def siblings_after_bos(spec: Spec, make: MakeSystem, clock: Clock) -> Answer:
    """As ``siblings``, all prompts with the same first token, as a tokenizer gives."""
    return _siblings(spec, make, clock, first_token=1)


def _siblings(spec: Spec, make: MakeSystem, clock: Clock, first_token: int | None) -> Answer:
    system = make(spec.pool)
    width = spec.tokens_per_block

    def prompt(number: int, length: int) -> Any:
        tokens = unique(number + 1, length)
        if first_token is not None:
            tokens[0] = first_token
        return tokens

    for number in range(spec.size):  # two blocks each: a lone one would be taken over by the next prompt
        _add_and_free(system, number, system.prepare(prompt(number, 2 * width + 1)), clock, _Split())
    first = 2 * spec.size + 1
    return _operations(system, lambda number: prompt(first + number, 4 * width), clock, spec)[0]


def memory(spec: Spec, make: MakeSystem, clock: Clock) -> Answer:
    """Bytes: per block of an unused pool, per token cached in it, and per token of a pool full of cached ones."""
    warm = make(spec.pool._replace(capacity_tokens=100 * spec.tokens_per_block))
    before = _resident_bytes()
    system = make(spec.pool)
    at_rest = (_resident_bytes() - before) / (spec.capacity_tokens // spec.tokens_per_block)
    length = 256 * spec.tokens_per_block
    num_prompts = spec.size // length
    used = make(spec.pool)
    before = _resident_bytes()
    _cache_prompts(used, range(num_prompts), length, clock)
    cached = (_resident_bytes() - before) / (num_prompts * length)
    before = _resident_bytes()
    full = make(spec.pool._replace(capacity_tokens=num_prompts * length))
    _cache_prompts(full, range(num_prompts, 2 * num_prompts), length, clock)
    in_full_pool = (_resident_bytes() - before) / (num_prompts * length)
    del warm, system, used, full
    return {"bytes_per_block": at_rest, "bytes_per_cached_token": cached, "bytes_per_token_of_full_pool": in_full_pool}


def _cache_prompts(system: System, numbers: range, length: int, clock: Clock) -> None:
    for number in numbers:
        _add_and_free(system, number, system.prepare(unique(number, length)), clock, _Split())


def _resident_bytes() -> int:
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def event_hash(spec: Spec, make: MakeSystem, clock: Clock) -> Answer:
    """Chain hash of a prompt of ``size`` tokens, from its block keys."""
    from trtkv.keys.key_hash import hash_key_chain

    make(spec.pool)
    data = np.arange(spec.size, dtype=np.int32).tobytes()
    width = 4 * spec.tokens_per_block
    keys = [data[start : start + width] for start in range(0, len(data), width)]
    seconds = []
    for _ in range(spec.operations):
        start = clock()
        hash_key_chain(keys)
        seconds.append(clock() - start)
    return {"total": median(seconds) * 1e6}


CASES: dict[str, Callable[[Spec, MakeSystem, Clock], Answer]] = {
    case.__name__: case
    for case in (
        trace,
        cached_prompt,
        new_prompt,
        decode_step,
        tree_size,
        siblings,
        siblings_after_bos,
        memory,
        event_hash,
    )
}


def main() -> None:
    """Measure and answer; leaves without tearing the system down."""
    answer = measure(Spec(**json.loads(sys.argv[1])))
    print(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
