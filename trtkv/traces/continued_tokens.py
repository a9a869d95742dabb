"""ContinuedTokens: a prompt that is another request's prompt and output, and what a row adds to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkv.traces.outputs import output_tokens
from trtkv.traces.trace import TokenSource, TraceRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ContinuedTokens:
    """Tokens of the predecessor's prompt, then of its whole output, then of the row itself."""

    __slots__ = ("block_size", "has_consecutive_tokens", "own", "own_length", "predecessor")

    def __init__(self, predecessor: TraceRequest, own: TokenSource, own_length: int) -> None:
        self.predecessor = predecessor
        self.own = own
        self.own_length = own_length
        self.block_size: int | None = getattr(own, "block_size", None)
        self.has_consecutive_tokens = own.has_consecutive_tokens

    def expand(self, num_tokens: int) -> NDArray[np.int32]:
        """The first ``num_tokens`` tokens. Walks back turn by turn: a session may have more turns than calls nest."""
        parts: list[NDArray[np.int32]] = []
        source: TokenSource = self
        length = num_tokens
        while isinstance(source, ContinuedTokens):
            before = source.predecessor
            parts += [source.own.expand(source.own_length), output_tokens(before)]
            source, length = before.source, before.input_length
        parts.append(source.expand(length))
        return np.concatenate(parts[::-1])[:num_tokens]
