"""Growth as recorded."""

from __future__ import annotations

from trtkv.blocks.generation_request import GenerationRequest
from trtkv.manager.sequence_growth import SequenceGrowth


class RecordedSequenceGrowth(SequenceGrowth):
    """Nothing is checked before a sequence changes, and what is done before a failure stays."""

    def grow(self, sequence: GenerationRequest) -> None:
        """One more token where a window may take or let go of a block."""
        sequence.num_tokens += 1
        for manager in self._windows:
            manager.sequences.adjust_blocks_if_needed(sequence)

    def _add_round(self, sequences: list[GenerationRequest]) -> None:
        period, phase = self.period, self.phase
        for sequence in sequences:
            num_tokens = sequence.num_tokens + 1
            if num_tokens % period == phase:
                self.grow(sequence)
            else:
                sequence.num_tokens = num_tokens

    def rewind(self, sequence: GenerationRequest, num_tokens: int) -> None:
        """Drop the last tokens of a sequence one by one."""
        for _ in range(num_tokens):
            self._remove_token(sequence)
