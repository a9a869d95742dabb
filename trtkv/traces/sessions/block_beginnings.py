"""BlockBeginnings: names of whole blocks whose first tokens are those of a started block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trtkv.traces.trace import HashIdTokens, TokenSource

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Beginning(NamedTuple):
    """A block begins with the first tokens of another name."""

    name: int
    num_tokens: int


class BlockBeginnings:
    """Facts about names, found one after the other; the first one about a name counts."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._found: dict[int, Beginning] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, name: int, beginning: Beginning) -> bool:
        """Note that a block begins with another; whether that is so from now on.

        False if the block is known to begin otherwise, or would be its own beginning. Equal names, and beginnings
        without tokens, say nothing and are true.
        """
        if name == beginning.name or not beginning.num_tokens:
            return True
        if name in self._found:
            return self._found[name] == beginning
        origin: int | None = beginning.name
        while origin is not None:
            if origin == name:
                return False
            found = self._found.get(origin)
            origin = None if found is None else found.name
        self._found[name] = beginning
        return True

    def apply(self, source: TokenSource) -> TokenSource:
        """The tokens of a prompt with all facts known; the source itself if none is about its blocks."""
        if isinstance(source, HashIdTokens) and not self._found.keys().isdisjoint(source.ids):
            return BegunTokens(source, self._found)
        return source


class BegunTokens:
    """Like HashIdTokens, where some blocks begin with the tokens of other names."""

    __slots__ = ("_beginnings", "block_size", "ids")

    has_consecutive_tokens = True

    def __init__(self, source: HashIdTokens, beginnings: Mapping[int, Beginning]) -> None:
        self.ids = source.ids
        self.block_size = source.block_size
        self._beginnings = beginnings

    def expand(self, num_tokens: int) -> NDArray[np.int32]:
        """The first ``num_tokens`` tokens."""
        size = self.block_size
        tokens = HashIdTokens(self.ids, size).expand(len(self.ids) * size)
        for place, name in enumerate(self.ids):
            if name in self._beginnings:
                self._begin(tokens[place * size : (place + 1) * size], name)
        return tokens[:num_tokens]

    def _begin(self, block: NDArray[np.int32], name: int) -> None:
        """Write beginnings, the nearest first, as a farther one covers fewer or as many tokens."""
        length = len(block)
        found = self._beginnings.get(name)
        while found is not None:
            length = min(length, found.num_tokens)
            block[:length] = found.name * self.block_size + np.arange(length)
            found = self._beginnings.get(found.name)


class TokensFrom:
    """Tokens of another source from a place on."""

    __slots__ = ("_source", "_start", "has_consecutive_tokens")

    def __init__(self, source: TokenSource, start: int) -> None:
        self._source = source
        self._start = start
        self.has_consecutive_tokens = source.has_consecutive_tokens

    def expand(self, num_tokens: int) -> NDArray[np.int32]:
        """The first ``num_tokens`` tokens."""
        return self._source.expand(self._start + num_tokens)[self._start :]
