"""Letting go of blocks: removal, pins, truncation, and the scheduler's simulation of removal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from trtkv.blocks.block_listener import RemovalReason
from trtkv.blocks.generation_request import SequenceWindow
from trtkv.blocks.kv_cache_block import KVCacheBlock, LookupNodePtr
from trtkv.blocks.radix_block_tree import UnifiedBlockTree
from trtkv.common import PLACEHOLDER_BLOCK_ID, PRIMARY_LEVEL, BlockId, RequestId
from trtkv.errors import InvalidInputError
from trtkv.keys.packed_key import PackedKey, num_key_tokens
from trtkv.window_block_manager.claiming import BlockClaimer
from trtkv.window_block_manager.context import WindowContext, WindowPart
from trtkv.window_block_manager.reuse_matching import ReuseMatcher
from trtkv.window_block_manager.sequences import SequenceBlocks


class BlockReleaser(WindowPart):
    """Releases blocks of one window. C++: the release, pin, truncate and scheduling methods of WindowBlockManager."""

    def __init__(
        self, context: WindowContext, matcher: ReuseMatcher, claimer: BlockClaimer, sequences: SequenceBlocks
    ) -> None:
        super().__init__(context)
        self._matcher = matcher
        self._claimer = claimer
        self._sequences = sequences
        self.scheduling_num_free_blocks = 0
        """Free primary blocks in the simulation."""
        self._scheduling_ref_counts: dict[KVCacheBlock, int] = {}
        self._scheduling_removed: set[RequestId] = set()

    def release_blocks(self, request_id: RequestId) -> None:
        """Drop all blocks of a sequence, last first; uncached ones go to the front. C++: releaseBlocks."""
        window = self._sequences.get_window(request_id)
        self._sequences.forget(request_id)
        self._policy.release_blocks(reversed(window.held))
        self._clear(window)

    @staticmethod
    def _clear(window: SequenceWindow) -> None:
        window.held = []
        for ids in window.block_ids:
            ids.clear()
        window.num_front_blocks_removed = 0

    # -- pins -------------------------------------------------------------------------------------

    def pin_blocks(self, request_id: RequestId) -> list[BlockId]:
        """One reference more on every entry a sequence holds; returns their ids. C++: pinBlocks."""
        blocks = self.list_held(request_id)
        for block in blocks:
            self._sequences.add_pin(block)
        return [block.block_id for block in blocks]

    def list_held(self, request_id: RequestId) -> list[KVCacheBlock]:
        """The blocks that a sequence holds, once for each position and beam."""
        held = self._sequences.get_window(request_id).held
        return [block for block in held if block.block_id != PLACEHOLDER_BLOCK_ID]

    def unpin_blocks_by_id(self, block_ids: Sequence[BlockId]) -> None:
        """Drop one pin of each block, or of none if one of them has too few. C++: unpinBlocksById.

        Blocks that have no other holder become free.
        """
        self.check_can_unpin(block_ids)
        for block_id in block_ids:
            self._sequences.drop_pin(self._get_block_by_id(block_id))

    def check_can_unpin(self, block_ids: Sequence[BlockId]) -> None:
        """Raise what ``unpin_blocks_by_id`` would raise."""
        for block, count in Counter(map(self._get_block_by_id, block_ids)).items():
            pins = self._sequences.pin_counts.get(block, 0)
            if pins < count:
                raise InvalidInputError(
                    f"cannot remove {count} pins from block {block.block_id}: it has {pins}; unpin each id once per pin"
                )

    # -- truncation ---------------------------------------------------------------------------------

    def truncate_blocks(self, keys: Sequence[PackedKey], num_tokens_to_keep: int) -> None:
        """Drop cached blocks along a prefix after the tokens to keep, with everything below them.

        A block is dropped if the tokens matched before it exceed the number to keep. Free ones are the next to be
        taken. C++: truncateBlocks.
        """
        keys = self._matcher.tree.stored_form(keys, self._settings.tokens_per_block)
        self._truncate(keys, num_tokens_to_keep)

    def _truncate(self, keys: Sequence[PackedKey], num_tokens_to_keep: int) -> None:
        """By nodes, so that what lies below a hole of this window is found and dropped as well."""
        settings = self._settings
        num_matched = 0
        node = self._matcher.tree.root
        for key in keys:
            child = node.find_matching_node(key)
            matched = num_key_tokens(key)
            if child is None:
                partial = self._matcher.find_child_block(
                    node, key, settings.enable_partial_reuse, settings.copy_on_partial_reuse
                )
                if partial is None or partial[1].lookup_node is None:
                    return
                matched, child = partial[0], partial[1].lookup_node
            if num_matched > num_tokens_to_keep:
                self._drop_below(child)
                return
            num_matched += matched
            node = child

    def _drop_below(self, top: LookupNodePtr) -> None:
        """Drop this window's blocks at a node and below it, children before parents."""
        blocks: list[KVCacheBlock] = []
        stack = [top]
        while stack:
            node = stack.pop()
            stack.extend(reversed(list(node.ordered_children())))
            block = node.get_value(self._settings.channel)
            if block is not None:
                blocks.append(block)
        for block in reversed(blocks):
            self._claimer.remove_from_tree(block, RemovalReason.DROPPED)

    def reset_reuse_state(self, tree: UnifiedBlockTree) -> None:
        """Use an empty tree from now on; cached blocks leave the old one and keep their keys."""
        self._empty_tree()
        self._matcher.set_tree(tree)
        for window in self._sequences.allocated_blocks_per_seq.values():
            window.num_stored = 0

    def _empty_tree(self) -> None:
        for block in reversed(self._matcher.list_blocks()):
            self._claimer.remove_from_tree(block, RemovalReason.DROPPED)

    # -- simulation for the scheduler -----------------------------------------------------------------

    def start_scheduling(self) -> None:
        """Begin a simulation: nothing is removed yet. C++: startScheduling.

        Counts are copied block by block when a removal is simulated, not for every block held. What happens to the
        cache afterwards is allowed; a block counts as free once.
        """
        self.scheduling_num_free_blocks = self._policy.get_num_free_blocks(PRIMARY_LEVEL)
        self._scheduling_ref_counts = {}
        self._scheduling_removed = set()

    def scheduling_release_blocks(self, request_id: RequestId) -> None:
        """Simulate the removal of a sequence. C++: schedulingReleaseBlocks."""
        held = self._sequences.get_window(request_id).held
        counts = self._scheduling_ref_counts
        self._note_removed(request_id)
        for block in held:
            if block.is_placeholder:
                continue
            count = self._simulated_ref_count(block)
            if not count:
                self._check_unheld(block)
                continue
            counts[block] = count - 1
            if count == 1:
                self.scheduling_num_free_blocks += 1

    def _simulated_ref_count(self, block: KVCacheBlock) -> int:
        """References that are left of a block in the simulation."""
        return self._scheduling_ref_counts.get(block, block.ref_count)

    def _check_unheld(self, block: KVCacheBlock) -> None:
        """Nothing: the block is free in the simulation already, and has got another holder since."""

    def is_held(self, block: KVCacheBlock) -> bool:
        """Whether a request that shares a block needs none for it: it is held, in the simulation too, on the device."""
        return block.is_primary and self._simulated_ref_count(block) > 0

    def get_scheduling_ref_count(self, block_id: BlockId) -> int:
        """References of a block in the simulation. C++: hasSchedulingRefs."""
        return self._simulated_ref_count(self._get_block_by_id(block_id))

    def _note_removed(self, request_id: RequestId) -> None:
        if request_id in self._scheduling_removed:
            raise InvalidInputError(f"request {request_id} was already removed in this simulation; start a new one")
        self._scheduling_removed.add(request_id)

    def scheduling_has_free_blocks(self, num_required: int) -> bool:
        """Whether that many blocks are free in the simulation."""
        return self.scheduling_num_free_blocks >= num_required
