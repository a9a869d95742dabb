"""SequenceGrowth: tokens behind a sequence, one by one or in rounds, and the way back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from trtkv.blocks.generation_request import GenerationRequest, find_sequence
from trtkv.checks import check_integer
from trtkv.common import RequestId
from trtkv.errors import InvalidInputError
from trtkv.manager.block_manager import BlockManager
from trtkv.window_block_manager import WindowBlockManager


class SequenceGrowth:
    """Makes sequences longer and shorter; blocks come and go with their tokens.

    ``sequences`` is the manager's live map, ``max_num_tokens`` what block tables have columns for. Whoever calls
    holds the manager's lock.
    """

    def __init__(
        self,
        block_manager: BlockManager,
        sequences: Mapping[RequestId, GenerationRequest],
        *,
        max_num_tokens: int,
    ) -> None:
        self._windows = list(block_manager.window_block_managers.values())
        self._sequences = sequences
        self._tokens_per_block = block_manager.settings.tokens_per_block
        self._max_num_tokens = max_num_tokens
        self.period = 1 if any(manager.settings.is_swa for manager in self._windows) else self._tokens_per_block
        """Blocks may come or go at lengths that are ``phase`` modulo this; at others a token only counts.

        With a sliding window that is any length, as a long prompt leaves it only once tokens are added.
        """
        self.phase = 1 % self.period

    def grow(self, sequence: GenerationRequest) -> None:
        """One more token where a window may take or let go of a block."""
        self._check_length(sequence)
        for manager in self._windows:
            manager.sequences.check_can_add_token(sequence)
        sequence.num_tokens += 1
        for index, manager in enumerate(self._windows):
            try:
                manager.sequences.adjust_blocks_if_needed(sequence)
            except Exception:  # a copy engine failed
                sequence.num_tokens -= 1
                manager.sequences.drop_unfinished_block(sequence)
                self._drop_position(sequence, self._windows[:index])
                raise

    def _check_length(self, sequence: GenerationRequest) -> None:
        if sequence.num_tokens >= self._max_num_tokens:
            raise InvalidInputError(
                f"request {sequence.request_id} has {sequence.num_tokens} tokens, as many as block tables hold; "
                "end it or raise max_sequence_length"
            )

    def add_tokens(self, request_ids: Iterable[RequestId]) -> None:
        """One more token for each sequence, in order: for all, or, where one fails, for none."""
        self._add_round(self._get_sequences(request_ids))

    def add_token_rounds(self, request_ids: Iterable[RequestId], num_rounds: int) -> None:
        """``add_tokens(request_ids)`` this many times; the rounds before a failing one stay."""
        sequences = self._get_sequences(request_ids)
        for _ in range(num_rounds):
            self._add_round(sequences)

    def _add_round(self, sequences: list[GenerationRequest]) -> None:
        """One more token for each: first where a token only counts, then where blocks may come or go."""
        period, phase = self.period, self.phase
        growing: list[GenerationRequest] = []
        for sequence in sequences:
            num_tokens = sequence.num_tokens + 1
            if num_tokens % period == phase:
                growing.append(sequence)
            else:
                sequence.num_tokens = num_tokens
        if growing:
            self._grow_all(growing, sequences)

    def _grow_all(self, growing: list[GenerationRequest], sequences: list[GenerationRequest]) -> None:
        num_done = 0
        try:
            if len(set(growing)) == len(growing):  # the blocks of one that grows twice are counted as it grows
                self._check_can_grow(growing)
            for sequence in growing:
                self.grow(sequence)
                num_done += 1
        except Exception:
            for sequence in reversed(growing[:num_done]):
                self._take_back_token(sequence)
            counted = Counter(sequences)
            counted.subtract(growing)
            for sequence, num_tokens in counted.items():
                sequence.num_tokens -= num_tokens
            raise

    def _check_can_grow(self, sequences: list[GenerationRequest]) -> None:
        """Raise, before anything is evicted, if one of these sequences would not find its blocks at its turn."""
        for sequence in sequences:
            self._check_length(sequence)
        for manager in self._windows:
            manager.sequences.check_can_add_tokens(sequences)

    def _get_sequences(self, request_ids: Iterable[RequestId]) -> list[GenerationRequest]:
        request_ids = list(request_ids)
        try:
            return list(map(self._sequences.__getitem__, request_ids))
        except KeyError:
            return [find_sequence(self._sequences, request_id) for request_id in request_ids]  # names the unknown one

    def _take_back_token(self, sequence: GenerationRequest) -> None:
        """Drop a token just added, with the block that came for it; what slid out or was evicted stays so."""
        sequence.num_tokens -= 1
        self._drop_position(sequence, self._windows)

    def _drop_position(self, sequence: GenerationRequest, windows: Iterable[WindowBlockManager]) -> None:
        if not sequence.num_tokens % self._tokens_per_block:
            for manager in windows:
                manager.sequences.drop_last_position(sequence)

    def rewind(self, sequence: GenerationRequest, num_tokens: int) -> None:
        """Drop the last tokens of a sequence, with blocks no longer needed."""
        self._check_can_rewind(sequence, num_tokens)
        for _ in range(num_tokens):
            self._remove_token(sequence)
        if num_tokens:
            for manager in self._windows:
                manager.sequences.detach_rewound_block(sequence)

    def _check_can_rewind(self, sequence: GenerationRequest, num_tokens: int) -> None:
        check_integer("rewind_lengths", num_tokens)
        if not 0 <= num_tokens <= sequence.num_tokens:
            raise InvalidInputError(
                f"request {sequence.request_id} has {sequence.num_tokens} tokens and cannot be rewound by {num_tokens}"
            )
        _check_one_beam(sequence)
        for manager in self._windows:
            manager.sequences.check_can_rewind(sequence, num_tokens)

    def _remove_token(self, sequence: GenerationRequest) -> None:
        """C++: removeToken."""
        if sequence.num_tokens == 0:
            return
        _check_one_beam(sequence)
        sequence.num_tokens -= 1
        for manager in self._windows:
            if manager.sequences.ends_block(sequence.num_tokens):
                manager.sequences.release_last_block(sequence)


def _check_one_beam(sequence: GenerationRequest) -> None:
    if sequence.beam_width != 1:
        raise InvalidInputError(
            f"request {sequence.request_id} has {sequence.beam_width} beams; only one beam can be rewound"
        )
