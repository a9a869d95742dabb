"""RecordedBlockReplacer: shared blocks are replaced as recorded."""

from __future__ import annotations

from trtkv.blocks.generation_request import GenerationRequest, SequenceWindow
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.window_block_manager.replacing import BlockReplacer


class RecordedBlockReplacer(BlockReplacer):
    """Replaces blocks without asking beforehand."""

    def _is_replaceable(self, sequence: GenerationRequest, window: SequenceWindow, block_idx: int) -> bool:
        """It is not asked."""
        return True

    def _check_room_to_replace(self, entries: list[KVCacheBlock], block_idx: int) -> None:
        """It is asked after the shared blocks were let go."""

    def _index_before(self, window: SequenceWindow, first: int, beam_width: int) -> int:
        """The last entry, wherever the replaced one stands."""
        return len(window.held) - beam_width

    def _write_slots(self, window: SequenceWindow, beam_width: int, block_idx: int) -> None:
        """The caller does."""
