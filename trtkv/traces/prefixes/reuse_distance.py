"""Reuse distances of blocks: how much else was touched in between, for all capacities in one pass.

A request touches the blocks of its prompt. The reuse distance of a block is the number of blocks that were used more
recently when the next request asks for it; deeper blocks of a request count as older than shallower ones, as in a
cache that gives blocks back deepest first. A cache of C blocks that serves one request at a time holds the block
exactly if its distance is below C. The blocks of a run that was last touched by one request have consecutive distances,
so they are counted together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from trtkv.traces.prefixes.fenwick import FenwickTree
from trtkv.traces.prefixes.prefix_tree import Edge, PrefixTree

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ReuseDistances(NamedTuple):
    """Reused blocks as runs: block i of run k has distance ``starts[k] + i``, for i below ``lengths[k]``."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    num_touched: int
    """Blocks of all prompts."""
    num_distinct: int
    """Different blocks, each behind its own prefix."""

    @property
    def num_reused(self) -> int:
        """Touched blocks that were touched before: the hits of a cache without limit."""
        return int(self.lengths.sum())

    def num_hits(self, capacity: int) -> int:
        """Hits of a least-recently-used cache of this many blocks that serves one request at a time."""
        return int(np.clip(capacity - self.starts, 0, self.lengths).sum())

    def quantile(self, share: float) -> int | None:
        """Smallest distance that ``share`` of the reused blocks do not exceed; None if no block was reused."""
        wanted = max(1, int(np.ceil(share * self.num_reused)))
        if not self.num_reused:
            return None
        low, high = 0, int((self.starts + self.lengths).max())
        while low < high:
            middle = (low + high) // 2
            if self.num_hits(middle + 1) >= wanted:
                high = middle
            else:
                low = middle + 1
        return low


class WorkingSets(NamedTuple):
    """Distinct blocks touched by this many consecutive requests."""

    num_requests: int
    mean: float
    largest: int


def measure_reuse(
    tree: PrefixTree,
    num_requests: int,
    window_lengths: Sequence[int] = (),
    num_findable: Sequence[int] | None = None,
) -> tuple[ReuseDistances, list[WorkingSets]]:
    """Distances of all reused blocks, and working sets of windows of this many requests, from a finished tree.

    ``num_findable``: for each request, how many of its leading blocks it looks for; the others are touched too.
    """
    last_touch: dict[Edge, int] = {}
    blocks_by_touch = FenwickTree(num_requests)
    starts: list[int] = []
    lengths: list[int] = []
    num_touched = 0
    sums = {length: [0, 0] for length in window_lengths if 1 <= length <= num_requests}
    for position in range(num_requests):
        path = tree.path(position)
        num_blocks = path[-1].end if path else 0
        num_touched += num_blocks
        runs = _runs(path, last_touch)
        starts += [blocks_by_touch.total(touch + 1, position) for touch, _, _ in runs]
        most = num_blocks if num_findable is None else num_findable[position]
        lengths += [max(0, min(end, most) - start) for _, start, end in runs]
        for touch, start, end in runs:
            blocks_by_touch.add(touch, start - end)
        blocks_by_touch.add(position, num_blocks)
        for edge in path:
            last_touch[edge] = position
        for length, (total, largest) in sums.items():
            if position >= length - 1:
                size = blocks_by_touch.total(position - length + 1, position + 1)
                sums[length] = [total + size, max(largest, size)]
    num_distinct = sum(len(edge) for edge in last_touch)
    distances = ReuseDistances(_int64(starts), _int64(lengths), num_touched, num_distinct)
    return distances, [
        WorkingSets(length, total / (num_requests - length + 1), largest) for length, (total, largest) in sums.items()
    ]


def _runs(path: list[Edge], last_touch: dict[Edge, int]) -> list[tuple[int, int, int]]:
    """Parts of a path last touched by one request: (request, start, end), from the root on; untouched ones left out."""
    runs: list[tuple[int, int, int]] = []
    for edge in path:
        touch = last_touch.get(edge)
        if touch is None:
            break
        if runs and runs[-1][0] == touch:
            runs[-1] = (touch, runs[-1][1], edge.end)
        else:
            runs.append((touch, edge.start, edge.end))
    return runs


def _int64(numbers: list[int]) -> NDArray[np.int64]:
    return cast("NDArray[np.int64]", np.array(numbers, dtype=np.int64)) if numbers else _empty()


def _empty() -> NDArray[Any]:
    return np.empty(0, dtype=np.int64)
