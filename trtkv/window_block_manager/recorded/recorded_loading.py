"""RecordedBlockLoader: places prompts as recorded."""

from __future__ import annotations

from trtkv.blocks.generation_request import GenerationRequest
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.window_block_manager.loading import BlockLoader
from trtkv.window_block_manager.planning import ClaimResult


class RecordedBlockLoader(BlockLoader):
    """Admits prompts as recorded."""

    hashes_copies = False

    def _found_len(self, sequence: GenerationRequest, claim: ClaimResult) -> int:
        """What this window has, though a wider one may have less."""
        return claim.prepopulated_len

    def _reports_priority(self, block: KVCacheBlock, is_held_source: bool) -> bool:
        """Of every block, in the tree or not."""
        return True
