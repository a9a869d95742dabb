"""The parts that a window is built from; the only place that knows of recorded ones."""

from __future__ import annotations

from typing import NamedTuple

from trtkv.window_block_manager.claiming import BlockClaimer
from trtkv.window_block_manager.loading import BlockLoader
from trtkv.window_block_manager.recorded.recorded_claiming import RecordedBlockClaimer
from trtkv.window_block_manager.recorded.recorded_loading import RecordedBlockLoader
from trtkv.window_block_manager.recorded.recorded_matching import RecordedReuseMatcher
from trtkv.window_block_manager.recorded.recorded_recurrent import RecordedRecurrentStates
from trtkv.window_block_manager.recorded.recorded_releasing import RecordedBlockReleaser
from trtkv.window_block_manager.recorded.recorded_sequences import RecordedSequenceBlocks
from trtkv.window_block_manager.recorded.recorded_storing import RecordedBlockStorer
from trtkv.window_block_manager.recurrent import RecurrentStates
from trtkv.window_block_manager.releasing import BlockReleaser
from trtkv.window_block_manager.reuse_matching import ReuseMatcher
from trtkv.window_block_manager.sequences import SequenceBlocks
from trtkv.window_block_manager.storing import BlockStorer


class WindowParts(NamedTuple):
    """Classes of the parts of a window."""

    matcher: type[ReuseMatcher] = ReuseMatcher
    claimer: type[BlockClaimer] = BlockClaimer
    sequences: type[SequenceBlocks] = SequenceBlocks
    loader: type[BlockLoader] = BlockLoader
    releaser: type[BlockReleaser] = BlockReleaser
    recurrent: type[RecurrentStates] = RecurrentStates
    storer: type[BlockStorer] = BlockStorer


def choose_parts(compatibility: bool) -> WindowParts:
    """Ordinary parts, or those that repeat what the reference was recorded doing."""
    if not compatibility:
        return WindowParts()
    return WindowParts(
        RecordedReuseMatcher,
        RecordedBlockClaimer,
        RecordedSequenceBlocks,
        RecordedBlockLoader,
        RecordedBlockReleaser,
        RecordedRecurrentStates,
        RecordedBlockStorer,
    )
