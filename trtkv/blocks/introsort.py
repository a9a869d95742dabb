"""The order in which the reference's sort leaves equal elements.

A C++ sort may put equal elements in any order. The one that the reference was built with keeps their order up to 16
elements and moves them in a fixed pattern when there are more; ``introsort`` repeats that pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MOST_SORTED_STABLY: Final = 16
"""Elements up to which the order of equal ones stays; longer parts are divided, shorter ones sorted by insertion."""

Pairs = list[tuple[int, int]]
"""(rank, index of the element); only ranks are compared."""


def introsort(ranks: Sequence[int]) -> list[int]:
    """Indices of the elements by rank, smallest first, equal ones where the reference's sort puts them."""
    pairs = [(rank, index) for index, rank in enumerate(ranks)]
    pending = [(0, len(pairs), 2 * (len(pairs).bit_length() - 1))]
    while pending:
        first, last, depth = pending.pop()
        while last - first > MOST_SORTED_STABLY:
            if not depth:
                pairs[first:last] = _heap_sort(pairs[first:last])
                break
            depth -= 1
            cut = _divide(pairs, first, last)
            pending.append((cut, last, depth))
            last = cut
    # The insertion sort at the end never moves an element past an equal one.
    return [index for _, index in sorted(pairs, key=_rank_of)]


def _rank_of(pair: tuple[int, int]) -> int:
    return pair[0]


def _divide(pairs: Pairs, first: int, last: int) -> int:
    """Part the elements around the median of three of them, which goes to the front; returns the border."""
    median = _index_of_median(pairs, first + 1, first + (last - first) // 2, last - 1)
    pairs[first], pairs[median] = pairs[median], pairs[first]
    pivot = pairs[first][0]
    left, right = first + 1, last - 1
    while True:
        while pairs[left][0] < pivot:
            left += 1
        while pivot < pairs[right][0]:
            right -= 1
        if left >= right:
            return left
        pairs[left], pairs[right] = pairs[right], pairs[left]
        left += 1
        right -= 1


def _index_of_median(pairs: Pairs, second: int, middle: int, end: int) -> int:
    """The one of three places whose rank is between the others; which of equal ones follows from the comparisons."""
    if pairs[second][0] < pairs[middle][0]:
        if pairs[middle][0] < pairs[end][0]:
            return middle
        return end if pairs[second][0] < pairs[end][0] else second
    if pairs[second][0] < pairs[end][0]:
        return second
    return end if pairs[middle][0] < pairs[end][0] else middle


def _heap_sort(pairs: Pairs) -> Pairs:
    """Sort a part that could not be divided evenly, with a heap whose largest element is in front."""
    heap = list(pairs)
    for parent in range((len(heap) - 2) // 2, -1, -1):
        _sift(heap, parent, len(heap), heap[parent])
    for end in range(len(heap) - 1, 0, -1):
        moved = heap[end]
        heap[end] = heap[0]
        _sift(heap, 0, end, moved)
    return heap


def _sift(heap: Pairs, top: int, size: int, moved: tuple[int, int]) -> None:
    """Move the hole at ``top`` down past larger children to a leaf, then ``moved`` up from there to its place."""
    hole = top
    while 2 * hole + 2 < size:
        child = 2 * hole + 2
        if heap[child][0] < heap[child - 1][0]:
            child -= 1
        heap[hole] = heap[child]
        hole = child
    if 2 * hole + 2 == size:  # an only child
        heap[hole] = heap[size - 1]
        hole = size - 1
    while hole > top and heap[(hole - 1) // 2][0] < moved[0]:
        heap[hole] = heap[(hole - 1) // 2]
        hole = (hole - 1) // 2
    heap[hole] = moved
