"""RecordedSequenceBlocks: growing and shrinking as recorded."""

from __future__ import annotations

from trtkv.blocks.generation_request import SequenceWindow
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.window_block_manager.sequences import SequenceBlocks


class RecordedSequenceBlocks(SequenceBlocks):
    """Blocks of sequences as recorded."""

    def _blank_entry(self, window: SequenceWindow, block_idx: int) -> None:
        """It keeps its slot."""

    def ends_block(self, num_tokens: int) -> bool:
        """Lengths count modulo the window."""
        return super().ends_block(num_tokens % self._settings.window_size)

    def _release_cut_off(self, block: KVCacheBlock) -> None:
        """To the front, cached or not."""
        self._policy.release_block(block, to_front=True)
