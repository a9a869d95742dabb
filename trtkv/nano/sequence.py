"""One request: its tokens, its state and its block table."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from itertools import count
from typing import ClassVar, TypeAlias, overload

from trtkv.checks import check_count, check_integer
from trtkv.errors import InvalidInputError
from trtkv.nano.config import SamplingParams, SamplingSettings
from trtkv.nano.hashing import pack_tokens

SequenceState: TypeAlias = "tuple[int, int, int, int, list[int], int | list[int], int]"
"""What a worker needs: tokens, prompt tokens, cached tokens, scheduled tokens, block table, last token or (in
prefill) all tokens, block size."""


class SequenceStatus(Enum):
    """Where a sequence is in its life."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Sequence:
    """Prompt and generated tokens, counts of computed tokens, and the physical block of each logical block.

    ``token_ids`` is copied: a list, any iterable of integers, or a flat integer array. The block size is that of the
    argument or else the class attribute; ids come from ``counter`` unless given.
    """

    block_size: int = 256
    counter: ClassVar[Iterator[int]] = count()

    def __init__(
        self,
        token_ids: Iterable[int],
        sampling_params: SamplingSettings | None = None,
        *,
        block_size: int | None = None,
        seq_id: int | None = None,
    ) -> None:
        tokens = pack_tokens(token_ids)
        if not tokens:
            raise InvalidInputError("a sequence needs at least one token")
        size = type(self).block_size if block_size is None else block_size
        check_count("block_size", size, 1)
        if seq_id is not None:
            check_integer("seq_id", seq_id)
        params = SamplingParams() if sampling_params is None else SamplingParams.from_settings(sampling_params)
        self.block_size = size
        self.seq_id = next(type(self).counter) if seq_id is None else seq_id
        self.status = SequenceStatus.WAITING
        self.tokens = tokens
        """All tokens as int64; append_token is the only writer."""
        self.last_token: int = tokens[-1]
        self.num_tokens = len(tokens)
        self.num_prompt_tokens = len(tokens)
        self.num_cached_tokens = 0
        """Tokens whose keys and values are in the cache, matched ones included."""
        self.num_scheduled_tokens = 0
        """Tokens being computed in this step."""
        self.is_prefill = True
        self.block_table: list[int] = []
        self.temperature = params.temperature
        self.max_tokens = params.max_tokens
        self.ignore_eos = params.ignore_eos

    def __len__(self) -> int:
        return self.num_tokens

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> list[int]: ...
    def __getitem__(self, key: int | slice) -> int | list[int]:
        if isinstance(key, slice):
            return self.tokens[key].tolist()
        return self.tokens[key]

    @property
    def token_ids(self) -> list[int]:
        """Prompt and generated tokens as a new list."""
        return self.tokens.tolist()

    @property
    def is_finished(self) -> bool:
        """Whether its last token was generated."""
        return self.status is SequenceStatus.FINISHED

    @property
    def num_completion_tokens(self) -> int:
        """Generated tokens."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def prompt_token_ids(self) -> list[int]:
        """Tokens it came with, as a new list."""
        return self.tokens[: self.num_prompt_tokens].tolist()

    @property
    def completion_token_ids(self) -> list[int]:
        """Generated tokens, as a new list."""
        return self.tokens[self.num_prompt_tokens :].tolist()

    @property
    def num_blocks(self) -> int:
        """Blocks its tokens need, the last one possibly not full."""
        return (self.num_tokens + self.block_size - 1) // self.block_size

    @property
    def last_block_num_tokens(self) -> int:
        """Tokens in the last block, 1 to ``block_size``."""
        return self.num_tokens - (self.num_blocks - 1) * self.block_size

    def block(self, i: int) -> list[int]:
        """Tokens of logical block ``i``. Raises InvalidInputError outside 0..num_blocks - 1."""
        check_integer("logical block", i)
        if not 0 <= i < self.num_blocks:
            raise InvalidInputError(f"sequence {self.seq_id} has blocks 0..{self.num_blocks - 1}, asked for {i}")
        return self.tokens[i * self.block_size : (i + 1) * self.block_size].tolist()

    def append_token(self, token_id: int) -> None:
        """Add a generated token; needs no block yet. Raises InvalidInputError unless it is a 64-bit integer."""
        try:
            self.tokens.append(token_id)
        except (TypeError, OverflowError) as error:
            raise InvalidInputError(f"token id {token_id!r} must be an integer that fits 64 bits") from error
        self.last_token = self.tokens[-1]
        self.num_tokens += 1

    def __getstate__(self) -> SequenceState:
        """The few numbers a worker needs; all tokens in prefill, the last one alone in decode."""
        last_state: int | list[int] = self.tokens.tolist() if self.is_prefill else self.last_token
        return (
            self.num_tokens,
            self.num_prompt_tokens,
            self.num_cached_tokens,
            self.num_scheduled_tokens,
            self.block_table,
            last_state,
            self.block_size,
        )

    def __setstate__(self, state: SequenceState) -> None:
        """Restore a worker's view: no id, status or sampling settings."""
        (
            self.num_tokens,
            self.num_prompt_tokens,
            self.num_cached_tokens,
            self.num_scheduled_tokens,
            self.block_table,
            last_state,
            self.block_size,
        ) = state
        self.is_prefill = isinstance(last_state, list)
        self.tokens = array("q", last_state if isinstance(last_state, list) else ())
        self.last_token = last_state[-1] if isinstance(last_state, list) else last_state

    def __repr__(self) -> str:
        return f"Sequence({self.num_tokens} tokens, {self.num_cached_tokens} cached, blocks {self.block_table})"
