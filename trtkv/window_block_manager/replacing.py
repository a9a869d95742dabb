"""BlockReplacer: blocks of their own for sequences that share one."""

from __future__ import annotations

from trtkv.blocks.generation_request import GenerationRequest, SequenceWindow
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import PRIMARY_LEVEL
from trtkv.errors import OutOfBlocksError, UnknownIdError
from trtkv.window_block_manager.claiming import BlockClaimer
from trtkv.window_block_manager.context import WindowContext, WindowPart
from trtkv.window_block_manager.sequences import SequenceBlocks, write_slot_at


class BlockReplacer(WindowPart):
    """Replaces shared blocks of one window."""

    def __init__(self, context: WindowContext, claimer: BlockClaimer, sequences: SequenceBlocks) -> None:
        super().__init__(context)
        self._claimer = claimer
        self._sequences = sequences

    def _is_replaceable(self, sequence: GenerationRequest, window: SequenceWindow, block_idx: int) -> bool:
        """Whether a position has a block of its own. Raises UnknownIdError for one that is not held."""
        if not window.num_front_blocks_removed <= block_idx < len(window.block_ids[0]):
            raise UnknownIdError(
                f"request {sequence.request_id} holds no block at position {block_idx}; it holds positions "
                f"{window.num_front_blocks_removed} to {len(window.block_ids[0]) - 1}"
            )
        return not window.held[block_idx * sequence.beam_width].is_placeholder

    def _check_room_to_replace(self, entries: list[KVCacheBlock], block_idx: int) -> None:
        """Raise if there is no room even after these blocks were let go."""
        freed = sum(block.ref_count == entries.count(block) for block in set(entries))
        if self._policy.get_num_free_blocks(PRIMARY_LEVEL) + freed < len(entries):
            raise OutOfBlocksError(f"{len(entries)} blocks are needed to replace block {block_idx}; free some first")

    def _index_before(self, window: SequenceWindow, first: int, beam_width: int) -> int:
        """Where the predecessors of a position begin among the blocks held."""
        return first - beam_width

    def replace_shared_block(self, sequence: GenerationRequest, block_idx: int) -> None:
        """Give every beam a block of its own at a position, if the present one is shared. C++: replaceSharedBlock."""
        window, beam_width = self._sequences.get_window(sequence.request_id), sequence.beam_width
        first = block_idx * beam_width
        if not self._is_replaceable(sequence, window, block_idx):
            return
        if not window.held[first + beam_width - 1].is_shared:
            return
        entries = window.held[first : first + beam_width]
        key, is_full = entries[0].key, entries[0].is_full
        self._check_room_to_replace(entries, block_idx)
        for block in entries:
            block.dec_ref_count()
            if not block.ref_count:
                self._policy.release_block(block)
        if self._policy.get_num_free_blocks(PRIMARY_LEVEL) < beam_width:
            raise OutOfBlocksError(f"{beam_width} blocks are needed to replace block {block_idx}; free some first")
        window.num_stored = 0
        for beam_idx, block in enumerate(self._take_instead(entries, sequence)):
            block.ref_count += 1
            before = self._index_before(window, first, beam_width)
            block.prev_block_in_seq = window.held[before + beam_idx] if before >= 0 else None
            block.set_block_key(key, is_full)
            block.compute_hash()
            window.block_ids[beam_idx][block_idx] = block.block_id
            window.held[first + beam_idx] = block
        self._write_slots(window, beam_width, block_idx)

    def _write_slots(self, window: SequenceWindow, beam_width: int, block_idx: int) -> None:
        """Have the table name the new blocks."""
        write_slot_at(window, beam_width, block_idx)

    def _take_instead(self, entries: list[KVCacheBlock], sequence: GenerationRequest) -> list[KVCacheBlock]:
        """As many blocks as were let go; where a copy engine fails, those are held again."""
        taken: list[KVCacheBlock] = []
        counts = self._counters.snapshot()
        try:
            while len(taken) < len(entries):
                taken.append(self._claimer.get_free_block(mode=sequence.transfer_mode, directory=sequence.directory))
        except Exception:
            self._claimer.give_back(taken)
            self._counters.restore(counts)
            for block in entries:
                self._policy.claim_block(block, duration_ms=self._policy.get_duration_ms(block))
                block.ref_count += 1
            raise
        return taken
