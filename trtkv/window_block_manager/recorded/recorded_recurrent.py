"""RecordedRecurrentSequenceBlocks: snapshots are written on, and states are copied by request only."""

from __future__ import annotations

from trtkv.blocks.generation_request import GenerationRequest, SequenceWindow
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.errors import check
from trtkv.records.llm_request import LlmRequest
from trtkv.window_block_manager.recurrent import RecurrentSequenceBlocks
from trtkv.window_block_manager.sequences import write_slot_at


class RecordedRecurrentSequenceBlocks(RecurrentSequenceBlocks):
    """Recurrent states as recorded."""

    def _keeps_snapshot(self, sequence: GenerationRequest, window: SequenceWindow) -> bool:
        """Only where the last snapshot is to be saved."""
        return self._metadata.save_last_snapshot and super()._keeps_snapshot(sequence, window)

    def _carry_state(self, source: KVCacheBlock, target: KVCacheBlock, sequence: GenerationRequest) -> None:
        """A new live block starts without a state."""

    def _write_grown_slots(self, sequence: GenerationRequest, window: SequenceWindow) -> None:
        """The entry of a placeholder put before the live block is not written."""
        write_slot_at(window, sequence.beam_width, len(window.block_ids[0]) - 1)

    def _copy_at_boundary(self, sequence: GenerationRequest, request: LlmRequest, window: SequenceWindow) -> bool:
        """At every block boundary up to the end of the prompt, and at the first token after a prompt that ends one."""
        tokens_per_block, prompt_len = self._settings.tokens_per_block, request.prompt_len
        finished = request.is_context_finished
        position = request.get_num_tokens(0) if finished else request.context_current_position
        if position == prompt_len + 1 and prompt_len % tokens_per_block == 0:
            return self._copy_to_other_beams(sequence, window)
        if not 0 < position <= prompt_len or position % tokens_per_block:
            return False
        return self._copy_to_next_block(sequence, window, position // tokens_per_block - 1)

    def release_last_block(self, sequence: GenerationRequest) -> None:
        """Only a placeholder can go."""
        held = self.get_window(sequence.request_id).held
        check(len(held) < 2 or held[-2].is_placeholder, "the block before the live state is not a placeholder")
        super().release_last_block(sequence)

    def _write_live_slot(self, window: SequenceWindow) -> None:
        """The table keeps its entry."""

    def _release_cut_off(self, block: KVCacheBlock) -> None:
        """To the front, cached or not."""
        self._policy.release_block(block, to_front=True)
