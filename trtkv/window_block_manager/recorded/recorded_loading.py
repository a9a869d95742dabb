"""RecordedBlockLoader: plans and places prompts as recorded."""

from __future__ import annotations

from array import array

from trtkv.blocks.generation_request import GenerationRequest
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.keys.key_builder import build_block_keys_of
from trtkv.keys.packed_key import PackedKey
from trtkv.records.llm_request import LlmRequest
from trtkv.window_block_manager.loading import BlockLoader, ClaimResult


class RecordedBlockLoader(BlockLoader):
    """Admits prompts as recorded."""

    ends_at_last_state = False
    allocates_in_batches = False
    hashes_copies = False

    def _encoder_keys(self, request: LlmRequest, tokens: array[int], num_tokens: int) -> list[PackedKey]:
        """Encoder tokens are keyed like those of a prompt."""
        return build_block_keys_of(request, tokens, self._settings.tokens_per_block, num_tokens, True)

    def _found_len(self, sequence: GenerationRequest, claim: ClaimResult) -> int:
        """What this window has, though a wider one may have less."""
        return claim.prepopulated_len

    def _reports_priority(self, block: KVCacheBlock, is_held_source: bool) -> bool:
        """Of every block, in the tree or not."""
        return True
