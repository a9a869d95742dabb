"""Tokens for blocks that a trace only names: equal names give equal tokens, others differ in their first token."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from trtkv.checks import check_integer
from trtkv.common import MAX_INT32, ceil_div
from trtkv.errors import InvalidInputError, TraceFormatError
from trtkv.traces.rows import RowFaultError
from trtkv.traces.trace import HashIdTokens, TokenSource

if TYPE_CHECKING:
    from numpy.typing import NDArray


class CutBlockTokens:
    """Like HashIdTokens, but each block gives only its first tokens, this many."""

    __slots__ = ("block_size", "ids", "lengths")

    has_consecutive_tokens = True

    def __init__(self, ids: array[int], lengths: array[int], block_size: int) -> None:
        self.ids = ids
        self.lengths = lengths
        self.block_size = block_size

    def expand(self, num_tokens: int) -> NDArray[np.int32]:
        """The first ``num_tokens`` tokens."""
        ids = np.frombuffer(self.ids, dtype=np.int64)
        lengths = np.frombuffer(self.lengths, dtype=np.int64)
        ends = np.cumsum(lengths)
        offsets = np.arange(int(ends[-1]), dtype=np.int64) - np.repeat(ends - lengths, lengths)
        tokens = np.repeat(ids * self.block_size, lengths) + offsets
        return cast("NDArray[np.int32]", tokens[:num_tokens].astype(np.int32))


class BlockNames:
    """Numbers 0, 1, 2, ... for names in order of first appearance, and the tokens made from them.

    One instance serves a whole trace. Token j of number n is ``block_size * n + j``, which has to fit 32 bits.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._num_nameless = 0
        self._block_size: int | None = None

    @property
    def block_size(self) -> int | None:
        """Tokens of a block, once it is known."""
        return self._block_size

    def check_block_size(self, block_size: int) -> None:
        """Fix the block size by the first row; a row with another one is at fault."""
        if self._block_size not in (None, block_size):
            raise RowFaultError(f"block size is {block_size}, but it was {self._block_size} in rows before")

    def tokens(self, names: Iterable[Hashable], input_length: int, block_size: int) -> TokenSource:
        """Tokens of a prompt whose blocks have these names, the last one possibly cut.

        Tokens after the named blocks have no identity: they are found in no other prompt. To be called for rows that
        are kept only.
        """
        self.check_block_size(block_size)
        self._block_size = block_size
        numbers = self._number(names)
        for _ in range(len(numbers), ceil_div(input_length, block_size)):
            numbers.append(self._nameless())
        self._check_room()
        return HashIdTokens(numbers, block_size)

    def cut_tokens(self, names: Iterable[Hashable], lengths: Sequence[int], rest: int, block_size: int) -> TokenSource:
        """Tokens of a prompt of blocks of different lengths, and ``rest`` tokens without identity behind them."""
        self.check_block_size(block_size)
        self._block_size = block_size
        numbers, all_lengths = self._number(names), array("q", lengths)
        for start in range(0, rest, block_size):
            numbers.append(self._nameless())
            all_lengths.append(min(block_size, rest - start))
        self._check_room()
        return CutBlockTokens(numbers, all_lengths, block_size)

    def _number(self, names: Iterable[Hashable]) -> array[int]:
        numbers = self._numbers
        return array("q", [numbers.setdefault(name, len(numbers)) for name in names])

    def _nameless(self) -> int:
        self._num_nameless += 1
        return self._numbers.setdefault(("nameless", self._num_nameless), len(self._numbers))

    def _check_room(self) -> None:
        if self._block_size is not None and len(self._numbers) * self._block_size > MAX_INT32 + 1:
            raise TraceFormatError(
                f"the trace has more than {(MAX_INT32 + 1) // self._block_size} different blocks, whose tokens do not "
                "fit 32 bits at this block size; replay fewer rows (--limit)"
            )


def checked_block_size(block_size: int) -> int:
    """A block size given by the user. Raises InvalidInputError unless it is positive and fits 32 bits."""
    if not 1 <= check_integer("block size", block_size) <= MAX_INT32:
        raise InvalidInputError(f"block size is {block_size}; give the tokens per hash id, at least 1")
    return block_size


def check_id_count(num_ids: int, input_length: int, block_size: int, key: str, *, full_only: bool) -> None:
    """Ids have to name every block of the prompt, or, if ``full_only`` is allowed, every full one."""
    num_blocks, num_full = ceil_div(input_length, block_size), input_length // block_size
    if num_ids == num_blocks or (full_only and num_ids == num_full):
        return
    needed = f"{num_full} or {num_blocks}" if full_only and num_full != num_blocks else f"{num_blocks}"
    raise RowFaultError(
        f"{key} holds {num_ids} ids, but {input_length} prompt tokens in blocks of {block_size} need {needed}"
    )
