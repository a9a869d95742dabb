"""PrefixTree: strings of symbols as a tree whose edges are runs; knows nothing of requests or caches.

Strings are given by their owner's number and loaded again when a run has to be compared, so the tree holds numbers
only: two edges at most for each string and one for each cut, however long it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkv.errors import check

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Edge:
    """Symbols ``start``..``end`` - 1 of every string that passes here; ``owner`` is one of them."""

    __slots__ = ("children", "end", "owner", "parent", "start")

    def __init__(self, owner: int, start: int, end: int, parent: Edge | None) -> None:
        self.owner = owner
        self.start = start
        self.end = end
        self.parent = parent
        self.children: dict[int, Edge] = {}
        """By their first symbol."""

    def __len__(self) -> int:
        return self.end - self.start


class PrefixTree:
    """Strings inserted one after the other, numbered 0, 1, 2, ...; ``load`` gives the symbols of one again."""

    def __init__(self, load: Callable[[int], NDArray[Any]]) -> None:
        self.root = Edge(-1, 0, 0, None)
        self._load = load
        self._last: list[Edge] = []

    def insert(self, symbols: NDArray[Any], cuts: Iterable[int] = ()) -> int:
        """Add the next string; returns the length of its longest prefix that was there before.

        Edges end at its end and at each of ``cuts``, positions from 0 to its length.
        """
        owner = len(self._last)
        edge, depth = self._descend(symbols)
        if depth < len(symbols):
            edge = self._add(Edge(owner, depth, len(symbols), edge), int(symbols[depth]))
        self._last.append(edge)
        for cut in sorted(cuts, reverse=True):
            self._cut(owner, cut)
        return depth

    def path(self, owner: int) -> list[Edge]:
        """Edges of a string from the root on; they cover it exactly."""
        edges = []
        edge: Edge | None = self._last[owner]
        while edge is not None and edge.parent is not None:
            edges.append(edge)
            edge = edge.parent
        edges.reverse()
        return edges

    def edges(self) -> list[Edge]:
        """All edges, parents before children."""
        found: list[Edge] = []
        pending = list(self.root.children.values())
        while pending:
            edge = pending.pop()
            found.append(edge)
            pending.extend(edge.children.values())
        return found

    def _descend(self, symbols: NDArray[Any]) -> tuple[Edge, int]:
        """The edge at whose end the string leaves the tree, made by a split if need be, and the depth there."""
        edge, depth = self.root, 0
        while depth < len(symbols):
            child = edge.children.get(int(symbols[depth]))
            if child is None:
                break
            depth += self._num_equal(child, symbols)
            if depth < child.end:
                return self._split(child, depth), depth
            edge = child
        return edge, depth

    def _num_equal(self, edge: Edge, symbols: NDArray[Any]) -> int:
        start, end = edge.start, min(edge.end, len(symbols))
        differs = self._load(edge.owner)[start:end] != symbols[start:end]
        first = int(np.argmax(differs)) if differs.size else 0
        return first if differs.size and differs[first] else end - start

    def _split(self, edge: Edge, depth: int) -> Edge:
        """Cut an edge in two; returns the upper part, the object itself becomes the lower one."""
        check(edge.start < depth < edge.end and edge.parent is not None, "an edge can only be split inside")
        parent = edge.parent
        symbols = self._load(edge.owner)
        upper = Edge(edge.owner, edge.start, depth, parent)
        if parent is not None:
            parent.children[int(symbols[edge.start])] = upper
        upper.children[int(symbols[depth])] = edge
        edge.parent = upper
        edge.start = depth
        return upper

    def _add(self, edge: Edge, symbol: int) -> Edge:
        if edge.parent is not None:
            edge.parent.children[symbol] = edge
        return edge

    def _cut(self, owner: int, depth: int) -> None:
        edge: Edge | None = self._last[owner]
        while edge is not None and edge.start > depth:
            edge = edge.parent
        if edge is not None and edge.start < depth < edge.end:
            self._split(edge, depth)
