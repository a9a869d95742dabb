"""PrefixRenamer: new names for the tokens of a trace that keep which prompts begin alike, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkv.common import MAX_INT32
from trtkv.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class _Edge:
    """A run of tokens, and the node that it leads to."""

    __slots__ = ("edges", "start", "tokens")

    def __init__(self, tokens: NDArray[np.int32], start: int) -> None:
        self.tokens = tokens
        self.start = start
        """New name of the first token; the others count up from it."""
        self.edges: dict[int, _Edge] = {}
        """What follows, by the first token."""


class PrefixRenamer:
    """Renames sequences of tokens so that two of them begin alike for as many tokens as before.

    A token's new name depends on all tokens before it: equal tokens in different places have different names, so that
    nothing can be told from how often a token occurs. Names count up from 0 in order of first appearance.
    """

    def __init__(self) -> None:
        self._root = _Edge(np.empty(0, dtype=np.int32), 0)
        self._num_names = 0

    def rename(self, tokens: NDArray[np.int32]) -> NDArray[np.int64]:
        """New names of a sequence. Raises InvalidInputError when more than 31 bits would be needed."""
        parts: list[NDArray[np.int64]] = []
        node, position = self._root, 0
        while position < len(tokens):
            edge = node.edges.get(int(tokens[position]))
            if edge is None:
                parts.append(self._add(node, tokens[position:]))
                break
            rest = tokens[position : position + len(edge.tokens)]
            length = _common_length(edge.tokens, rest)
            parts.append(np.arange(edge.start, edge.start + length, dtype=np.int64))
            position += length
            if length < len(edge.tokens) and position < len(tokens):
                _split(edge, length)
            node = edge
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def _add(self, node: _Edge, tokens: NDArray[np.int32]) -> NDArray[np.int64]:
        start = self._num_names
        if start + len(tokens) > MAX_INT32:
            raise InvalidInputError("the trace has more than 2^31 different prefixes; read fewer rows (--limit)")
        self._num_names += len(tokens)
        node.edges[int(tokens[0])] = _Edge(tokens, start)
        return np.arange(start, self._num_names, dtype=np.int64)


def _common_length(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    length = min(len(one), len(other))
    differ = one[:length] != other[:length]
    return int(differ.argmax()) if differ.any() else length


def _split(edge: _Edge, length: int) -> None:
    """Cut a run after this many tokens."""
    rest = _Edge(edge.tokens[length:], edge.start + length)
    rest.edges = edge.edges
    edge.tokens, edge.edges = edge.tokens[:length], {int(rest.tokens[0]): rest}
