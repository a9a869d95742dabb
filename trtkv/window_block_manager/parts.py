"""The parts that a window is built from; the only place that knows which classes there are."""

from __future__ import annotations

from typing import NamedTuple

from trtkv.blocks.radix_block_tree import UnifiedBlockTree
from trtkv.eviction.eviction_policy import WindowEvictionPolicy
from trtkv.eviction.recorded.eviction_policy import RecordedWindowEvictionPolicy
from trtkv.window_block_manager.claiming import BlockClaimer
from trtkv.window_block_manager.context import WindowContext
from trtkv.window_block_manager.loading import BlockLoader
from trtkv.window_block_manager.plain_loading import PlainBlockLoader
from trtkv.window_block_manager.plain_storing import PlainBlockStorer
from trtkv.window_block_manager.planning import ClaimPlanner
from trtkv.window_block_manager.recorded.recorded_claiming import RecordedBlockClaimer
from trtkv.window_block_manager.recorded.recorded_loading import RecordedBlockLoader
from trtkv.window_block_manager.recorded.recorded_matching import RecordedHolePassingMatcher, RecordedReuseMatcher
from trtkv.window_block_manager.recorded.recorded_planning import RecordedClaimPlanner
from trtkv.window_block_manager.recorded.recorded_recurrent import RecordedRecurrentSequenceBlocks
from trtkv.window_block_manager.recorded.recorded_releasing import RecordedBlockReleaser
from trtkv.window_block_manager.recorded.recorded_replacing import RecordedBlockReplacer
from trtkv.window_block_manager.recorded.recorded_sequences import RecordedSequenceBlocks
from trtkv.window_block_manager.recorded.recorded_storing import RecordedBlockStorer
from trtkv.window_block_manager.recurrent import RecurrentSequenceBlocks
from trtkv.window_block_manager.releasing import BlockReleaser
from trtkv.window_block_manager.replacing import BlockReplacer
from trtkv.window_block_manager.reuse_matching import HolePassingMatcher, ReuseMatcher
from trtkv.window_block_manager.sequences import SequenceBlocks
from trtkv.window_block_manager.settings import WindowSettings
from trtkv.window_block_manager.storing import BlockStorer


class PartClasses(NamedTuple):
    """Classes of the parts of a window; by default those that suit every window."""

    matcher: type[ReuseMatcher] = HolePassingMatcher
    claimer: type[BlockClaimer] = BlockClaimer
    sequences: type[SequenceBlocks] = SequenceBlocks
    planner: type[ClaimPlanner] = ClaimPlanner
    loader: type[BlockLoader] = BlockLoader
    releaser: type[BlockReleaser] = BlockReleaser
    replacer: type[BlockReplacer] = BlockReplacer
    storer: type[BlockStorer] = BlockStorer


def choose_eviction_policy(settings: WindowSettings) -> type[WindowEvictionPolicy]:
    """The class of the free blocks of one window: the recorded one for compatibility."""
    return RecordedWindowEvictionPolicy if settings.compatibility else WindowEvictionPolicy


def choose_parts(context: WindowContext, tree: UnifiedBlockTree) -> PartClasses:
    """The classes for one window: plain ones where it has full attention, recorded ones for compatibility."""
    settings = context.settings
    if settings.compatibility:
        return PartClasses(
            RecordedHolePassingMatcher if settings.is_swa else RecordedReuseMatcher,
            RecordedBlockClaimer,
            RecordedRecurrentSequenceBlocks if settings.is_recurrent_state else RecordedSequenceBlocks,
            RecordedClaimPlanner,
            RecordedBlockLoader,
            RecordedBlockReleaser,
            RecordedBlockReplacer,
            RecordedBlockStorer,
        )
    if settings.is_recurrent_state:
        return PartClasses(sequences=RecurrentSequenceBlocks)
    if settings.is_swa:
        return PartClasses()
    is_alone = settings.num_channels == 1 and not tree.hash_map_order and context.listener is None
    storer = PlainBlockStorer if is_alone else BlockStorer
    return PartClasses(matcher=ReuseMatcher, loader=PlainBlockLoader, storer=storer)
