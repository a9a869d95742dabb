"""RecordedBlockLoader: places prompts as recorded."""

from __future__ import annotations

from trtkv.blocks.generation_request import GenerationRequest
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.errors import check
from trtkv.window_block_manager.loading import BlockLoader
from trtkv.window_block_manager.planning import ClaimResult


class RecordedBlockLoader(BlockLoader):
    """Admits prompts as recorded."""

    hashes_copies = False

    def _claim(self, claim: ClaimResult) -> None:
        """A recurrent state under a key of less than a block fails when it is reached, after those before it."""
        if not self._settings.is_recurrent_state:
            super()._claim(claim)
            return
        num_full = next((index for index, block in enumerate(claim.matched) if not block.is_full), len(claim.matched))
        has_partial = num_full < len(claim.matched)
        claim.matched = claim.matched[:num_full]
        super()._claim(claim)
        check(not has_partial, f"request {claim.request.request_id} matches a recurrent state in part")

    def _found_len(self, sequence: GenerationRequest, claim: ClaimResult) -> int:
        """What this window has, though a wider one may have less."""
        return claim.prepopulated_len

    def _reports_priority(self, block: KVCacheBlock, is_held_source: bool) -> bool:
        """Of every block, in the tree or not."""
        return True
