"""Matching as recorded: a part-filled block that is found exactly is used under all settings."""

from __future__ import annotations

from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.window_block_manager.reuse_matching import HolePassingMatcher, ReuseMatcher


class RecordedReuseMatcher(ReuseMatcher):
    """Full attention."""

    def _may_use_part(self, block: KVCacheBlock, enable_partial_reuse: bool, copy_on_partial_reuse: bool) -> bool:
        """Whatever the settings say."""
        return True


class RecordedHolePassingMatcher(HolePassingMatcher):
    """Windows that can do without blocks."""

    def _may_use_part(self, block: KVCacheBlock, enable_partial_reuse: bool, copy_on_partial_reuse: bool) -> bool:
        """Whatever the settings say."""
        return True
