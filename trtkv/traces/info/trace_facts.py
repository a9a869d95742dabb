"""What is measured of a trace: lengths, sharing between prompts, sizes of caches."""

from __future__ import annotations

from typing import NamedTuple


class Lengths(NamedTuple):
    """Distribution of a count over requests; a quantile is a value that occurred."""

    total: int
    mean: float
    min: int
    p50: int
    p90: int
    p99: int
    max: int


class SharedRun(NamedTuple):
    """Blocks ``start``..``end`` - 1 of the prompts of this many requests, after the same prefix."""

    requests: int
    start: int
    end: int


class Sharing(NamedTuple):
    """How prompts share blocks; a block is one behind its own prefix."""

    blocks: int
    """Blocks of all prompts, started last ones included."""
    distinct_blocks: int
    roots: int
    """Distinct first blocks."""
    forks: int
    """Blocks that different blocks follow."""
    deepest: int
    """Blocks of the longest prompt."""
    distinct_blocks_by_use: dict[str, int]
    """Distinct blocks by the number of requests that have them."""
    zero_hit_requests: int
    """Requests of which not one token begins an earlier prompt."""
    fully_seen_requests: int
    """Requests whose whole prompt begins an earlier one."""
    runs: list[SharedRun]
    """Those that save the most when they are kept, the best first."""


class CacheSize(NamedTuple):
    """What a least-recently-used cache finds that serves one request at a time."""

    share: float
    """Of the distinct blocks."""
    blocks: int
    hits: int
