"""RecordedBlockStorer: stores more than is computed, and hashes that skip the holes of a window."""

from __future__ import annotations

from collections.abc import Sequence

from trtkv.blocks.generation_request import GenerationRequest
from trtkv.blocks.kv_cache_block import KVCacheBlock, LookupNodePtr
from trtkv.common import BlockId
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.keys.key_hash import HashLink
from trtkv.keys.packed_key import PackedKey
from trtkv.keys.recorded_keys import to_recorded_keys
from trtkv.records.llm_request import LlmRequest
from trtkv.window_block_manager.storing import BlockStorer, StoredBlock, num_usable_tokens


class RecordedBlockStorer(BlockStorer):
    """Stores blocks as recorded."""

    def _improves(self, block: KVCacheBlock) -> bool:
        """A placeholder keeps its place in the tree."""
        return False

    def _hash_past_hole(self, ancestor: KVCacheBlock, key: PackedKey, parent_hash: HashLink | int) -> HashLink | int:
        """That of the nearest block above, so that equal hashes can stand for different prefixes."""
        return ancestor.hash_link

    def _prune(self, nodes: Sequence[LookupNodePtr]) -> None:
        """Nodes without a block stay."""

    def _report_stored(self, stored: Sequence[StoredBlock], event_manager: KVCacheEventManager) -> None:
        """One event for all, and no parent where this window has no block right above the first."""
        if stored:
            parent = stored[0].block.prev_block
            parent_hash = None if parent is None or parent.block_id < 0 else parent.hash
            blocks = [entry.block for entry in stored]
            event_manager.enqueue_stored_event(blocks, self._settings.window_size, parent_hash)

    def _keys(self, sequence: GenerationRequest, request: LlmRequest, allow_partial: bool) -> list[PackedKey]:
        """Always the tokens of beam 0, and position 0 counts as computed in every stage."""
        settings, usable = self._settings, num_usable_tokens(request)
        if settings.is_recurrent_state and allow_partial:
            usable = min(usable, request.prompt_len - 1)
        return self._build_keys(request, usable, allow_partial)

    def _build_keys(self, request: LlmRequest, usable: int, allow_partial: bool) -> list[PackedKey]:
        keys = super()._build_keys(request, usable, allow_partial)
        return keys if request.multimodal_input is None else to_recorded_keys(keys)

    def _block_at(self, held: KVCacheBlock, block_id: BlockId) -> KVCacheBlock:
        """Blocks that left the window are included, even when another sequence has them by now."""
        return held if held.block_id == block_id else self._get_block_by_id(block_id)

    def _may_store_new_block(self, sequence: GenerationRequest, request: LlmRequest, usable: int) -> bool:
        """It is not asked."""
        return True
