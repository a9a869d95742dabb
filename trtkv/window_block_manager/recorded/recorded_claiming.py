"""RecordedBlockClaimer: listeners hear less, and a block keeps its place in the tree when its memory is overwritten."""

from __future__ import annotations

from collections.abc import Sequence

from trtkv.blocks.block_listener import RemovalReason
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import Priority
from trtkv.window_block_manager.claiming import BlockClaimer


class RecordedBlockClaimer(BlockClaimer):
    """Takes blocks as recorded."""

    def is_announced(self, block: KVCacheBlock) -> bool:
        """Only below a block of its window: listeners never hear of the end of others. C++: blockInRadixTree."""
        return block.has_tokens and block.prev_block is not None

    def _pays_offloading(self, block: KVCacheBlock) -> bool:
        """Whatever has held tokens is offloaded."""
        return block.has_tokens

    def _reports_onboarding(self, block: KVCacheBlock) -> bool:
        return True

    def remove_held(self, block: KVCacheBlock, reason: RemovalReason) -> None:
        """No event."""
        self.detach(block, reason)

    def report_expired(self, expired: Sequence[tuple[KVCacheBlock, Priority]]) -> None:
        """No event."""

    def _vacate(self, offload_block: KVCacheBlock) -> None:
        """It stays in the tree, under the tokens it had."""

    def _tell_holders(self, block: KVCacheBlock) -> None:
        """Their rows keep the old slot."""

    def _has_content(self, block: KVCacheBlock) -> bool:
        """It is not asked."""
        return True

    def _changes_queue(self, block: KVCacheBlock) -> bool:
        """A free block stays in the queue of the level it left."""
        return False
