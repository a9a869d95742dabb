"""Prompts and stored sequences as strings of symbols: single tokens, or numbers of whole blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from xxhash import xxh3_128_digest

from trtkv.errors import InvalidInputError
from trtkv.traces.outputs import output_tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trtkv.traces.trace import KeyConstraints, TraceRequest

TokenString = Callable[["TraceRequest"], "NDArray[np.int32]"]

_NUM_LOADED = 64
"""Token strings kept at hand; a tree compares with few others in turn."""


def prompt_tokens(request: TraceRequest) -> NDArray[np.int32]:
    """The prompt alone."""
    return request.tokens()


def stored_tokens(request: TraceRequest) -> NDArray[np.int32]:
    """What a finished request leaves in a cache: prompt and generated tokens but the last one."""
    generated = output_tokens(request)[:-1]
    return np.concatenate((request.tokens(), generated)) if len(generated) else request.tokens()


class ConstraintNumbers:
    """Numbers for what tells equal tokens apart: 0 for nothing, the others in order of first appearance."""

    def __init__(self) -> None:
        self._numbers: dict[KeyConstraints | None, int] = {None: 0}

    def number(self, request: TraceRequest) -> int:
        """The number of a request's constraints."""
        return self._numbers.setdefault(request.constraints, len(self._numbers))


class TokenSymbols:
    """Each token is a symbol; strings are made when they are needed, the last few are kept.

    Tokens under different salts or LoRA ids are different symbols.
    """

    def __init__(self, requests: Sequence[TraceRequest], tokens: TokenString) -> None:
        self._requests = requests
        self._tokens = tokens
        self._constraints = ConstraintNumbers()
        self._loaded: OrderedDict[int, NDArray[Any]] = OrderedDict()

    def load(self, position: int) -> NDArray[Any]:
        """Symbols of the request at a position of the sequence."""
        found = self._loaded.get(position)
        if found is None:
            found = self._loaded[position] = self._make(self._requests[position])
            if len(self._loaded) > _NUM_LOADED:
                self._loaded.popitem(last=False)
        else:
            self._loaded.move_to_end(position)
        return found

    def _make(self, request: TraceRequest) -> NDArray[Any]:
        tokens, number = self._tokens(request), self._constraints.number(request)
        return tokens.astype(np.int64) + (number << 32) if number else tokens


class BlockSymbols:
    """Each block of tokens is a symbol, numbered by its content in order of first appearance.

    Content is told apart by a 128-bit digest. ``partial``: the tokens after the last full block are a symbol too,
    equal only to a rest of the same length and tokens.
    """

    def __init__(
        self, requests: Sequence[TraceRequest], tokens: TokenString, tokens_per_block: int, *, partial: bool = False
    ) -> None:
        if tokens_per_block < 1:
            raise InvalidInputError(f"tokens_per_block is {tokens_per_block}; give at least 1")
        self._requests = requests
        self._tokens = tokens
        self._tokens_per_block = tokens_per_block
        self._partial = partial
        self._constraints = ConstraintNumbers()
        self._numbers: dict[tuple[int, bytes], int] = {}
        self._strings: dict[int, NDArray[Any]] = {}

    def load(self, position: int) -> NDArray[Any]:
        """Symbols of the request at a position of the sequence."""
        found = self._strings.get(position)
        if found is None:
            found = self._strings[position] = self._number(self._requests[position])
        return found

    def _number(self, request: TraceRequest) -> NDArray[Any]:
        tokens, constraints = self._tokens(request), self._constraints.number(request)
        width = self._tokens_per_block * 4
        data = tokens.astype("<i4", copy=False).tobytes()
        if not self._partial:
            data = data[: len(data) // width * width]
        numbers = self._numbers
        digests = (xxh3_128_digest(data[start : start + width]) for start in range(0, len(data), width))
        symbols = [numbers.setdefault((constraints, digest), len(numbers)) for digest in digests]
        return np.array(symbols, dtype=np.int64)
