"""Caches reduced to their rule, against plain lists."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.replay.trace_builders import random_requests, token_request
from trtkv.errors import InvalidInputError
from trtkv.replay.bounds.simple_caches import (
    ACCESS_POLICIES,
    CacheHits,
    SequentialRules,
    fifo_access_hits,
    lfu_access_hits,
    lru_access_hits,
    sequential_hits,
)
from trtkv.traces.prefixes.path_ids import path_ids


def test_numbers_follow_prefixes_not_blocks() -> None:
    prompts = [[1, 1, 2, 2], [2, 2, 1, 1], [1, 1, 2, 2, 3], [1, 1, 2, 2, 3, 3], [1, 1, 2, 2, 3]]
    ids = path_ids([token_request(i, prompt) for i, prompt in enumerate(prompts)], 2)
    assert [list(prompt) for prompt in ids] == [[0, 1], [2, 3], [0, 1, 4], [0, 1, 5], [0, 1, 4]]
    full = path_ids([token_request(i, prompt) for i, prompt in enumerate(prompts)], 2, partial=False)
    assert [list(prompt) for prompt in full] == [[0, 1], [2, 3], [0, 1], [0, 1, 4], [0, 1]]


def slow_access_hits(prompts: list[list[int]], capacity: int, victim: Callable[[dict[int, list[int]]], int]) -> int:
    """Block -> the times at which it was used since it came in."""
    cache: dict[int, list[int]] = {}
    hits = clock = 0
    for ids in prompts:
        for block in ids:
            clock += 1
            hits += block in cache
            if block not in cache and len(cache) == capacity:
                del cache[victim(cache)]
            cache.setdefault(block, []).append(clock)
    return hits


VICTIMS: dict[str, Callable[[dict[int, list[int]]], int]] = {
    "lru": lambda cache: min(cache, key=lambda block: cache[block][-1]),
    "fifo": lambda cache: min(cache, key=lambda block: cache[block][0]),
    "lfu": lambda cache: min(cache, key=lambda block: (len(cache[block]), cache[block][-1])),
}


@pytest.mark.parametrize("policy", ACCESS_POLICIES)
@pytest.mark.parametrize("seed", range(8))
def test_access_policies_are_those_of_plain_code(policy: str, seed: int) -> None:
    rng = random.Random(seed)
    prompts = [[rng.randrange(30) for _ in range(rng.randint(1, 9))] for _ in range(60)]
    for capacity in (1, 4, 12, 40):
        found = ACCESS_POLICIES[policy](prompts, capacity)
        assert found == CacheHits(slow_access_hits(prompts, capacity, VICTIMS[policy]), sum(map(len, prompts)))


def test_policies_differ_where_they_should() -> None:
    # 1 is used often, 2 was used last, 3 came in last: the fourth block pushes out another one under each rule.
    prompts = [[1, 1, 1, 2, 3, 2], [4], [1], [2], [3]]
    assert lru_access_hits(prompts, 3).hits == 3 + 1  # 1 went, then 3, then 4: only 2 is found
    assert fifo_access_hits(prompts, 3).hits == 3 + 0  # 1 went, then 2, then 3, each just before it was asked for
    assert lfu_access_hits(prompts, 3).hits == 3 + 2  # 3 went: 1 and 2 are found


def slow_sequential_hits(requests: list, capacity: int, block: int, rules: SequentialRules) -> CacheHits:
    """The rules written out on whole prefixes: newest at the end of the list."""
    cache: list[tuple[int, ...]] = []
    hits = blocks = rejected = 0
    for request in requests:
        tokens = request.tokens().tolist()
        ends = [*range(block, len(tokens), block), len(tokens)]
        prefixes = [tuple(tokens[:end]) for end in ends]
        places = -(-(len(tokens) + (request.output_length if rules.hold_output else 0)) // block)
        if places > capacity:
            rejected += 1
            continue
        stored = [p for p in prefixes if not rules.full_blocks_only or len(p) % block == 0]
        may_be_found = [p for p in stored if not rules.keep_last_token or len(p) // block <= (len(tokens) - 1) // block]
        if rules.keep_last_token:
            may_be_found = [p for i, p in enumerate(may_be_found) if i < (len(tokens) - 1) // block]
        found = 0
        while found < len(may_be_found) and may_be_found[found] in cache:
            found += 1
        others = [p for p in cache if p not in stored[:found]]
        others = others[max(0, len(others) - (capacity - places)) :]
        cache = [p for p in others if p not in stored] + stored[::-1]
        hits += found
        blocks += len(prefixes)
    return CacheHits(hits, blocks, rejected)


@pytest.mark.parametrize(
    "rules",
    [
        SequentialRules(),
        SequentialRules(keep_last_token=True),
        SequentialRules(full_blocks_only=True, keep_last_token=True),
        SequentialRules(full_blocks_only=True, keep_last_token=True, hold_output=True),
        SequentialRules(hold_output=True),
    ],
)
@pytest.mark.parametrize("seed", range(8))
def test_sequential_cache_is_that_of_plain_code(rules: SequentialRules, seed: int) -> None:
    requests = random_requests(random.Random(seed), 60, max_output=9)
    for capacity in (8, 14, 20, 60, 1000):
        found = sequential_hits(requests, path_ids(requests, 3), capacity, 3, rules)
        assert found == slow_sequential_hits(requests, capacity, 3, rules)


@pytest.mark.parametrize(
    "call", [lambda: lru_access_hits([], 0), lambda: sequential_hits([], [], 0, 1, SequentialRules())]
)
def test_cache_without_a_block_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidInputError, match="capacity is 0 blocks"):
        call()
