"""Taking blocks: victims, offloading instead of dropping, and bringing blocks back to the primary level."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from trtkv.blocks.block_listener import RemovalReason
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import PRIMARY_LEVEL, SECONDARY_LEVEL, KvCacheTransferMode, Priority
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.events.kv_cache_events import KVCacheUpdatedData
from trtkv.records.retention_config import DEFAULT_RETENTION_PRIORITY
from trtkv.transfers.copy_engine import LostBlockError, OffloadFailedError
from trtkv.window_block_manager.context import WindowContext, WindowPart

_LOGGER: Final = logging.getLogger(__name__)


class BlockClaimer(WindowPart):
    """Takes free blocks for one window; owns counters of blocks taken."""

    def __init__(self, context: WindowContext) -> None:
        super().__init__(context)
        self.on_held_moved: Callable[[KVCacheBlock], None] | None = None
        """Told of a block that moves between the levels although a request holds it."""

    def get_free_block(
        self,
        priority: Priority = DEFAULT_RETENTION_PRIORITY,
        duration_ms: int | None = None,
        mode: KvCacheTransferMode = KvCacheTransferMode.DRAM,
        directory: str = "",
        want_placeholder: bool = False,
    ) -> KVCacheBlock:
        """Take the next victim out of its queue and out of the tree, offloading it first where that pays.

        Raises OutOfBlocksError, with nothing changed, if none is free. C++: WindowBlockManager::getFreeBlock.
        """
        policy, counters = self._policy, self._counters
        block, can_offload = policy.get_free_block(PRIMARY_LEVEL, want_placeholder)
        has_tokens = block.has_tokens
        if can_offload and self._pays_offloading(block) and policy.get_num_free_blocks(SECONDARY_LEVEL):
            block = self._offload_victim(block, mode, directory)
        else:
            policy.take_free_block(block)
        counters.alloc_total += 1
        counters.alloc_new += not has_tokens
        if block.lookup_node is not None:
            try:
                self.remove_from_tree(block)
            except Exception:  # of a listener
                self.give_back((block,))
                raise
        policy.set_retention(block, priority, duration_ms)
        return block

    def _pays_offloading(self, block: KVCacheBlock) -> bool:
        """Whether a request can find the block again."""
        return block.lookup_node is not None

    def get_free_blocks(self, count: int) -> list[KVCacheBlock]:
        """``get_free_block`` with the default retention, ``count`` times; a hot loop where nothing is offloaded."""
        policy, counters = self._policy, self._counters
        has_events = self._event_manager is not None
        if self._listener is not None or not self._settings.has_one_tier:
            return self._get_one_by_one(count)
        blocks = policy.take_free_blocks(count)
        counters.alloc_total += count
        for block in blocks:
            if block.lookup_node is not None:
                if has_events:
                    self.report_removed(block)
                block.detach_from_lookup_node()
            elif not block.key or not block.has_tokens:
                counters.alloc_new += 1
        if policy.follows_tree:
            policy.removed(blocks)
        return blocks

    def _get_one_by_one(self, count: int) -> list[KVCacheBlock]:
        blocks: list[KVCacheBlock] = []
        try:
            for _ in range(count):
                blocks.append(self.get_free_block())  # noqa: PERF401 (what was taken before a failure is given back)
        except Exception:
            self.give_back(blocks)
            raise
        return blocks

    def give_back(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Put blocks that were taken and not used into their queues; those that are not held or has queued."""
        for block in blocks:
            if not block.ref_count and not self._policy.is_free(block):
                self._policy.release_block(block, to_front=block.lookup_node is None)

    def _offload_victim(self, block: KVCacheBlock, mode: KvCacheTransferMode, directory: str) -> KVCacheBlock:
        """Swap a primary victim with a secondary one; the latter's id, now primary, is what the caller gets.

        Where the disk is full or fails, the victim is given up instead.
        """
        offload_block, _ = self._policy.get_free_block(SECONDARY_LEVEL)
        try:
            self._copy_out(block, offload_block, mode, directory)
        except OffloadFailedError as error:
            _LOGGER.warning("window %d drops a block: %s", self._settings.window_size, error)
            self._policy.take_free_block(block)
            return block
        # Both are taken before the swap: afterwards their level, and so their queue, would be another.
        self._policy.take_free_block(block)
        self._policy.take_free_block(offload_block)
        self._swap_out(block, offload_block)
        self._policy.release_block(block)
        return offload_block

    def _copy_out(
        self, block: KVCacheBlock, offload_block: KVCacheBlock, mode: KvCacheTransferMode, directory: str
    ) -> None:
        try:
            self._transfer_manager.offload(block, offload_block, self._pools, 0, mode, directory)
        except OffloadFailedError:
            raise  # nothing was written
        except Exception:
            if offload_block.lookup_node is not None:
                self.remove_from_tree(offload_block)  # part of it may have been overwritten
            raise

    def _swap_out(self, block: KVCacheBlock, offload_block: KVCacheBlock) -> None:
        self._vacate(offload_block)
        block.swap_memory_pool_block_offset(offload_block)
        if block.ref_count:
            self._tell_holders(block)
        if self._policy.follows_tree:
            self._policy.moved(block, PRIMARY_LEVEL)
        if self._listener is not None:
            self._listener.on_moved(block, self._settings.window_size, SECONDARY_LEVEL)
        if self._event_manager is not None and self.is_announced(block):
            self._report_level(block, PRIMARY_LEVEL, SECONDARY_LEVEL, self._event_manager)

    def _tell_holders(self, block: KVCacheBlock) -> None:
        """Have the rows of its sequences follow a block."""
        if self.on_held_moved is not None:
            self.on_held_moved(block)

    def _report_level(self, block: KVCacheBlock, old: int, new: int, event_manager: KVCacheEventManager) -> None:
        data = KVCacheUpdatedData(block.hash, cache_level=(old, new))
        event_manager.enqueue_updated_event(data, self._settings.window_size)

    def _vacate(self, offload_block: KVCacheBlock) -> None:
        """Take a block whose memory was overwritten out of the tree, while it is still where it was."""
        if offload_block.lookup_node is not None:
            self.remove_from_tree(offload_block)

    def is_announced(self, block: KVCacheBlock) -> bool:
        """Whether listeners count the block as cached: it is in the tree."""
        return block.lookup_node is not None and not block.is_placeholder

    def remove_from_tree(self, block: KVCacheBlock, reason: RemovalReason = RemovalReason.EVICTED) -> None:
        """Detach one block, reporting it as removed; its descendants stay."""
        self.report_removed(block)
        self.detach(block, reason)

    def report_removed(self, block: KVCacheBlock) -> None:
        """Tell listeners that a block is no longer cached, if they count it as such."""
        if self._event_manager is not None and self.is_announced(block):
            self._event_manager.enqueue_removed_event(block, self._settings.window_size)

    def remove_held(self, block: KVCacheBlock, reason: RemovalReason) -> None:
        """Take a block out of the tree that its sequence goes on to use."""
        self.remove_from_tree(block, reason)

    def detach(self, block: KVCacheBlock, reason: RemovalReason) -> None:
        """Detach one block without an event."""
        if self._listener is not None:
            self._listener.on_removed(block, self._settings.window_size, reason)
        block.detach_from_lookup_node()
        self._policy.requeue(block)
        if self._policy.follows_tree:
            self._policy.removed((block,))

    def report_expired(self, expired: Sequence[tuple[KVCacheBlock, Priority]]) -> None:
        """Tell listeners which cached blocks fell back to the default priority."""
        if self._event_manager is None:
            return
        for block, old in expired:
            if self.is_announced(block):
                self._event_manager.enqueue_updated_event(
                    KVCacheUpdatedData(block.hash, priority=(old, block.priority)), self._settings.window_size
                )

    def onboard_block(
        self, block: KVCacheBlock, mode: KvCacheTransferMode = KvCacheTransferMode.DRAM, directory: str = ""
    ) -> None:
        """Bring a claimed secondary block to the primary level; nothing for others.

        C++: WindowBlockManager::onboardBlock.
        """
        if block.is_placeholder or block.is_primary:
            return
        helper = self.get_free_block(mode=mode, directory=directory)
        self.copy_in(block, helper, 0, mode, directory)
        block.swap_memory_pool_block_offset(helper)
        if block.ref_count:
            self._tell_holders(block)
        if self._policy.follows_tree:
            self._policy.moved(block, SECONDARY_LEVEL)
        if self._listener is not None:
            self._listener.on_moved(block, self._settings.window_size, PRIMARY_LEVEL)
        if self._event_manager is not None and self._reports_onboarding(block):
            self._report_level(block, SECONDARY_LEVEL, PRIMARY_LEVEL, self._event_manager)
        self._policy.release_block(helper)

    def copy_in(
        self, source: KVCacheBlock, target: KVCacheBlock, num_tokens: int, mode: KvCacheTransferMode, directory: str
    ) -> None:
        """Copy a block into one just taken, which goes back if that fails; drop a source whose content is lost."""
        try:
            self._transfer_manager.onboard(source, target, self._pools, num_tokens, mode, directory)
        except Exception as error:
            self.give_back((target,))
            if isinstance(error, LostBlockError) and source.lookup_node is not None:
                self.remove_from_tree(source, RemovalReason.LOST)
            raise

    def _reports_onboarding(self, block: KVCacheBlock) -> bool:
        return self.is_announced(block)

    def offload_block(
        self, block: KVCacheBlock, mode: KvCacheTransferMode = KvCacheTransferMode.DRAM, directory: str = ""
    ) -> None:
        """Move a primary block to the secondary level, whoever holds it; a free one moves to the queue there.

        A free block that no request can find stays. The block that lay in the place is overwritten, so it leaves the
        tree. C++: WindowBlockManager::offloadBlock.
        """
        if block.is_placeholder or not block.is_primary or not self._has_content(block):
            return
        offload_block, _ = self._policy.get_free_block(SECONDARY_LEVEL)
        self._copy_out(block, offload_block, mode, directory)
        self._policy.take_free_block(offload_block)
        changes_queue = self._changes_queue(block)
        if changes_queue:
            self._policy.claim_block(block, duration_ms=self._policy.get_duration_ms(block))
        self._swap_out(block, offload_block)
        self._policy.release_block(offload_block)
        if changes_queue:
            self._policy.release_block(block)

    def _has_content(self, block: KVCacheBlock) -> bool:
        """Whether a sequence or a request to come has any use for what a block holds."""
        return block.ref_count > 0 or block.lookup_node is not None

    def _changes_queue(self, block: KVCacheBlock) -> bool:
        """Whether a block that is offloaded goes from a queue of one level to one of the other."""
        return self._policy.is_free(block)
