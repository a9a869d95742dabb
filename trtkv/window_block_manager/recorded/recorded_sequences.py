"""RecordedSequenceBlocks: growing, shrinking and replacing as recorded."""

from __future__ import annotations

from trtkv.blocks.generation_request import GenerationRequest, SequenceWindow
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.errors import check
from trtkv.window_block_manager.sequences import SequenceBlocks


class RecordedSequenceBlocks(SequenceBlocks):
    """Blocks of sequences as recorded."""

    def ends_block(self, num_tokens: int) -> bool:
        """Lengths count modulo the window."""
        window_size = self._settings.window_size
        return super().ends_block(num_tokens % window_size if window_size > 0 else num_tokens)

    def _release_last_placeholder(self, window: SequenceWindow) -> None:
        """Only a placeholder can go."""
        block = window.held[-2] if len(window.held) >= 2 else None
        check(block is None or block.is_placeholder, "the block before the live state is not a placeholder")
        super()._release_last_placeholder(window)

    def _write_live_slot(self, window: SequenceWindow) -> None:
        """The table keeps its entry."""

    def _is_replaceable(self, sequence: GenerationRequest, window: SequenceWindow, block_idx: int) -> bool:
        """It is not asked."""
        return True

    def _check_room_to_replace(self, entries: list[KVCacheBlock], block_idx: int) -> None:
        """It is asked after the shared blocks were let go."""

    def _index_before(self, window: SequenceWindow, first: int, beam_width: int) -> int:
        """The last entry, wherever the replaced one stands."""
        return len(window.held) - beam_width
