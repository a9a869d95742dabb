"""The parts that a window is built from; the only place that knows which classes there are."""

from __future__ import annotations

from typing import NamedTuple

from trtkv.blocks.radix_block_tree import UnifiedBlockTree
from trtkv.window_block_manager.claiming import BlockClaimer
from trtkv.window_block_manager.context import WindowContext
from trtkv.window_block_manager.loading import BlockLoader
from trtkv.window_block_manager.plain_loading import PlainBlockLoader
from trtkv.window_block_manager.plain_storing import PlainBlockStorer
from trtkv.window_block_manager.planning import ClaimPlanner
from trtkv.window_block_manager.recorded.recorded_claiming import RecordedBlockClaimer
from trtkv.window_block_manager.recorded.recorded_loading import RecordedBlockLoader
from trtkv.window_block_manager.recorded.recorded_planning import RecordedClaimPlanner
from trtkv.window_block_manager.recorded.recorded_recurrent import RecordedRecurrentStates
from trtkv.window_block_manager.recorded.recorded_releasing import RecordedBlockReleaser
from trtkv.window_block_manager.recorded.recorded_sequences import RecordedSequenceBlocks
from trtkv.window_block_manager.recorded.recorded_storing import RecordedBlockStorer
from trtkv.window_block_manager.recurrent import RecurrentStates
from trtkv.window_block_manager.releasing import BlockReleaser
from trtkv.window_block_manager.reuse_matching import HolePassingMatcher, ReuseMatcher
from trtkv.window_block_manager.sequences import SequenceBlocks
from trtkv.window_block_manager.storing import BlockStorer


class PartClasses(NamedTuple):
    """Classes of the parts of a window; by default those that suit every window."""

    matcher: type[ReuseMatcher] = HolePassingMatcher
    claimer: type[BlockClaimer] = BlockClaimer
    sequences: type[SequenceBlocks] = SequenceBlocks
    planner: type[ClaimPlanner] = ClaimPlanner
    loader: type[BlockLoader] = BlockLoader
    releaser: type[BlockReleaser] = BlockReleaser
    recurrent: type[RecurrentStates] = RecurrentStates
    storer: type[BlockStorer] = BlockStorer


def choose_parts(context: WindowContext, tree: UnifiedBlockTree) -> PartClasses:
    """The classes for one window: plain ones where it has full attention, recorded ones for compatibility."""
    settings = context.settings
    if settings.compatibility:
        return PartClasses(
            HolePassingMatcher if settings.is_swa else ReuseMatcher,
            RecordedBlockClaimer,
            RecordedSequenceBlocks,
            RecordedClaimPlanner,
            RecordedBlockLoader,
            RecordedBlockReleaser,
            RecordedRecurrentStates,
            RecordedBlockStorer,
        )
    parts = PartClasses()
    if settings.is_swa or settings.is_recurrent_state:
        return parts
    parts = parts._replace(matcher=ReuseMatcher, loader=PlainBlockLoader)
    if settings.num_channels > 1 or tree.hash_map_order or context.listener is not None:
        return parts
    return parts._replace(storer=PlainBlockStorer)
