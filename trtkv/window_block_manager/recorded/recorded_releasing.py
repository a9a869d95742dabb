"""RecordedBlockReleaser: pins are not counted, truncation follows blocks instead of nodes."""

from __future__ import annotations

from collections.abc import Sequence

from trtkv.blocks.block_listener import RemovalReason
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import BlockId, RequestId
from trtkv.errors import check
from trtkv.keys.packed_key import PackedKey
from trtkv.records.retention_config import MIN_RETENTION_PRIORITY
from trtkv.window_block_manager.releasing import BlockReleaser


class RecordedBlockReleaser(BlockReleaser):
    """Lets go of blocks as recorded."""

    def unpin_blocks_by_id(self, block_ids: Sequence[BlockId]) -> None:
        """One after the other; those before a bad id stay unpinned."""
        for block_id in block_ids:
            check(0 <= block_id < self._settings.max_num_blocks, f"block id {block_id} is out of range")
            self._sequences.drop_pin(self._get_block_by_id(block_id))

    def check_can_unpin(self, block_ids: Sequence[BlockId]) -> None:
        """Nothing is looked at beforehand."""

    def _empty_tree(self) -> None:
        """Cached blocks stay attached to the old tree, and are reported as removed when they are recycled."""

    def _truncate(self, keys: Sequence[PackedKey], num_tokens_to_keep: int) -> None:
        """By blocks: nothing behind a hole of this window is found."""
        settings = self._settings
        num_matched = 0
        node = self._matcher.tree.root
        for key in keys:
            matches = self._matcher.find_child_block(
                node, key, settings.enable_partial_reuse, settings.copy_on_partial_reuse
            )
            if matches is None:
                return
            matched, block = matches
            if num_matched > num_tokens_to_keep:
                block.priority = MIN_RETENTION_PRIORITY
                self._release_subtree(block)
                return
            num_matched += matched
            if block.lookup_node is None:
                return
            node = block.lookup_node

    def _release_subtree(self, block: KVCacheBlock) -> None:
        """Detach a block and all below it, children before parents, as recorded. C++: releaseSubtree."""
        subtree: list[KVCacheBlock] = []
        stack = [block]
        while stack:
            current = stack.pop()
            stack.extend(reversed(current.next_blocks))
            subtree.append(current)
        for entry in reversed(subtree):
            self._claimer.report_removed(entry)  # listeners hear of the block at which the call fails as well
            check(entry.is_leaf, f"block {entry.block_id} has children of another window")
            self._claimer.detach(entry, RemovalReason.DROPPED)
            if entry.ref_count:
                continue
            entry.priority = MIN_RETENTION_PRIORITY
            self._policy.release_block(entry, to_front=True)

    def start_scheduling(self) -> None:
        """References are fixed for all sequences there are; blocks held by none keep what an earlier call wrote."""
        counts = self._scheduling_ref_counts
        super().start_scheduling()
        self._scheduling_ref_counts = counts
        for window in self._sequences.allocated_blocks_per_seq.values():
            for block in window.held:
                counts[block] = block.ref_count

    def _simulated_ref_count(self, block: KVCacheBlock) -> int:
        """None for a block that no sequence held at any start."""
        return self._scheduling_ref_counts.get(block, 0)

    def is_held(self, block: KVCacheBlock) -> bool:
        """On any level, and whatever the simulation has removed."""
        return block.ref_count > 0

    def _check_unheld(self, block: KVCacheBlock) -> None:
        """It is an error."""
        check(False, f"block {block.block_id} has no simulated reference to drop")

    def _note_removed(self, request_id: RequestId) -> None:
        """A sequence may be removed twice."""
