"""Caches reduced to their rule, one request at a time: what published hit rates were counted with.

They know blocks only by number (trtkv.traces.prefixes.path_ids), have no tree, no reference counts and no second
request, and serve to check numbers that others publish, not to predict a server.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from trtkv.checks import check_integer
from trtkv.common import ceil_div
from trtkv.errors import InvalidInputError

if TYPE_CHECKING:
    from trtkv.traces.trace import TraceRequest

Prompt = Sequence[int]


class CacheHits(NamedTuple):
    """Blocks found and asked for."""

    hits: int
    blocks: int
    rejected: int = 0
    """Requests larger than the cache; they count among neither."""


class SequentialRules(NamedTuple):
    """Variants of sequential_hits."""

    full_blocks_only: bool = False
    """A started last block takes a place and is never found."""
    keep_last_token: bool = False
    """The last token is always computed, so at most (prompt - 1) // block of the blocks are found."""
    hold_output: bool = False
    """A request also takes places for its output."""


def sequential_hits(
    requests: Sequence[TraceRequest],
    prompts: Sequence[Prompt],
    capacity: int,
    tokens_per_block: int,
    rules: SequentialRules,
) -> CacheHits:
    """Least recently used blocks go; a request finds first, then takes what it lacks, and gives back deepest first.

    ``prompts`` are the path_ids of the requests, started last blocks included, which count as asked for too.
    ``capacity`` is in blocks.
    """
    _check_capacity(capacity)
    cache: OrderedDict[int, None] = OrderedDict()
    hits = blocks = rejected = 0
    for request, ids in zip(requests, prompts, strict=True):
        output = request.output_length if rules.hold_output else 0
        num_places = ceil_div(request.input_length + output, tokens_per_block)
        if num_places > capacity:
            rejected += 1
            continue
        stored = ids[: request.input_length // tokens_per_block] if rules.full_blocks_only else ids
        limit = (request.input_length - rules.keep_last_token) // tokens_per_block if _has_limit(rules) else len(ids)
        found = _num_found(stored[:limit], cache)
        for block in stored[:found]:
            del cache[block]
        while len(cache) > capacity - num_places:
            cache.popitem(last=False)
        for block in reversed(stored):
            cache.pop(block, None)
            cache[block] = None
        hits += found
        blocks += len(ids)
    return CacheHits(hits, blocks, rejected)


def _has_limit(rules: SequentialRules) -> bool:
    return rules.keep_last_token or rules.full_blocks_only


def _num_found(ids: Sequence[int], cache: OrderedDict[int, None]) -> int:
    return next((i for i, block in enumerate(ids) if block not in cache), len(ids))


def lru_access_hits(prompts: Sequence[Prompt], capacity: int) -> CacheHits:
    """Single blocks in prompt order, each found or brought in by itself; the least recently used one goes."""
    _check_capacity(capacity)
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for ids in prompts:
        for block in ids:
            if block in cache:
                hits += 1
                cache.move_to_end(block)
            else:
                if len(cache) >= capacity:
                    cache.popitem(last=False)
                cache[block] = None
    return CacheHits(hits, sum(map(len, prompts)))


def fifo_access_hits(prompts: Sequence[Prompt], capacity: int) -> CacheHits:
    """As lru_access_hits, but the block that was brought in first goes."""
    _check_capacity(capacity)
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for ids in prompts:
        for block in ids:
            if block in cache:
                hits += 1
                continue
            if len(cache) >= capacity:
                cache.popitem(last=False)
            cache[block] = None
    return CacheHits(hits, sum(map(len, prompts)))


def lfu_access_hits(prompts: Sequence[Prompt], capacity: int) -> CacheHits:
    """As lru_access_hits, but the block with the fewest uses since it came in goes, of equals the least recent one."""
    _check_capacity(capacity)
    uses: dict[int, tuple[int, int]] = {}
    queue: list[tuple[int, int, int]] = []
    hits = clock = 0
    for ids in prompts:
        for block in ids:
            clock += 1
            count, _ = uses.get(block, (0, 0))
            hits += count > 0
            if not count and len(uses) >= capacity:
                _drop_least_used(uses, queue)
            uses[block] = (count + 1, clock)
            heapq.heappush(queue, (count + 1, clock, block))
    return CacheHits(hits, sum(map(len, prompts)))


def _drop_least_used(uses: dict[int, tuple[int, int]], queue: list[tuple[int, int, int]]) -> None:
    while True:
        count, clock, block = heapq.heappop(queue)
        if uses.get(block) == (count, clock):
            del uses[block]
            return


ACCESS_POLICIES: Final[dict[str, Callable[[Sequence[Prompt], int], CacheHits]]] = {
    "lru": lru_access_hits,
    "lfu": lfu_access_hits,
    "fifo": fifo_access_hits,
}


def _check_capacity(capacity: int) -> None:
    if check_integer("capacity", capacity) < 1:
        raise InvalidInputError(f"capacity is {capacity} blocks; give at least 1")
