"""RecordedSequenceBlocks: growing and shrinking as recorded."""

from __future__ import annotations

from trtkv.blocks.generation_request import SequenceWindow
from trtkv.window_block_manager.sequences import SequenceBlocks


class RecordedSequenceBlocks(SequenceBlocks):
    """Blocks of sequences as recorded."""

    def _blank_entry(self, window: SequenceWindow, block_idx: int) -> None:
        """It keeps its slot."""

    def ends_block(self, num_tokens: int) -> bool:
        """Lengths count modulo the window."""
        return super().ends_block(num_tokens % self._settings.window_size)
