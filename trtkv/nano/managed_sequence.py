"""ManagedSequence: what a block manager asks of a sequence, so that others than ours can be managed."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Protocol

from trtkv.nano.hashing import pack_tokens


class ManagedSequence(Protocol):
    """The part of nano-vllm's Sequence that its BlockManager reads and writes, and whether the sequence has ended.

    It must be hashable by identity and weakly referenceable, as objects of ordinary classes are.
    """

    block_table: list[int]
    num_cached_tokens: int

    @property
    def seq_id(self) -> int:
        """Names it in messages."""

    @property
    def block_size(self) -> int:
        """Tokens in a block."""

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens."""

    @property
    def num_scheduled_tokens(self) -> int:
        """Tokens being computed in this step."""

    @property
    def num_blocks(self) -> int:
        """Blocks its tokens need."""

    @property
    def is_finished(self) -> bool:
        """Whether it will never be allocated again."""

    def __getitem__(self, key: slice, /) -> Iterable[int]:
        """Some of its tokens, which are only ever appended to."""


def read_tokens(seq: ManagedSequence, start: int, end: int) -> array[int]:
    """Tokens ``start`` to ``end - 1`` as a new array. An int64 array ``seq.tokens`` is read without making a list."""
    tokens = getattr(seq, "tokens", None)
    return tokens[start:end] if isinstance(tokens, array) else pack_tokens(seq[start:end])
