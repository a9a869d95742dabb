"""NodeLinks: which nodes of a KeyHistory stand in the manager's tree now, with or without a block."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from trtkv.errors import check

if TYPE_CHECKING:
    from trtkv.replay.causes.key_history import KeyHistory


class NodeLinks:
    """Counts, for each node, its blocks over all windows and its children that stand in the tree.

    A node of the tree lives as long as it has one of these, so a count above 0 means that it is there.
    """

    def __init__(self, history: KeyHistory) -> None:
        self._parents = history.parents
        self._counts = array("i", [1])  # the root is always there

    def exists(self, node: int) -> bool:
        """Whether a node stands in the tree. Unknown ones do not."""
        return 0 <= node < len(self._counts) and self._counts[node] > 0

    def count(self, node: int) -> int:
        """Blocks at a node and existing children below it."""
        return self._counts[node] if node < len(self._counts) else 0

    def add(self, node: int) -> None:
        """A block has come to a node; nodes above it come into being with it."""
        missing = node + 1 - len(self._counts)
        if missing > 0:
            self._counts.frombytes(bytes(4 * missing))
        while node >= 0:
            self._counts[node] += 1
            if self._counts[node] > 1:
                return
            node = self._parents[node]

    def remove(self, node: int) -> None:
        """A block has left a node; nodes left empty go."""
        while node >= 0:
            check(self._counts[node] > 0, "a block leaves a node that is not in the tree")
            self._counts[node] -= 1
            if self._counts[node]:
                return
            node = self._parents[node]
