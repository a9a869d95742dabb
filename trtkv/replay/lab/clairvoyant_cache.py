"""What a cache that knows the future would find: after each request it keeps the blocks whose next use is nearest."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from heapq import heappop, heappush

from trtkv.replay.lab.prefix_cache import Path


def clairvoyant_found(paths: Sequence[Path], capacity: int) -> list[int]:
    """Leading blocks found by each request, by Belady's rule on a prefix tree.

    A request may hold more than ``capacity`` while it runs; blocks that are never asked for again are dropped at once.
    """
    next_uses = _next_uses(paths)
    resident: dict[Hashable, int] = {}  # key -> next use
    farthest: list[tuple[int, int, int, Hashable]] = []
    found = []
    for now, path in enumerate(paths):
        found.append(next((i for i, key in enumerate(path) if key not in resident), len(path)))
        for depth, key in enumerate(path):
            next_use = next_uses[now][depth]
            if next_use is None:
                resident.pop(key, None)
            else:
                resident[key] = next_use
                heappush(farthest, (-next_use, -depth, now, key))
        while len(resident) > capacity:
            next_use, _, _, key = heappop(farthest)
            if resident.get(key) == -next_use:
                del resident[key]
    return found


def infinite_found(paths: Sequence[Path]) -> list[int]:
    """Leading blocks found by each request in a cache without limit."""
    seen: set[Hashable] = set()
    found = []
    for path in paths:
        found.append(next((i for i, key in enumerate(path) if key not in seen), len(path)))
        seen.update(path)
    return found


def _next_uses(paths: Sequence[Path]) -> list[list[int | None]]:
    """For each block of each request, the number of the next request that asks for it."""
    last_seen: dict[Hashable, int] = {}
    uses: list[list[int | None]] = []
    for now in range(len(paths) - 1, -1, -1):
        uses.append([last_seen.get(key) for key in paths[now]])
        last_seen.update(dict.fromkeys(paths[now], now))
    return uses[::-1]
