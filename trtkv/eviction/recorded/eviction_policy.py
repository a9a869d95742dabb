"""RecordedWindowEvictionPolicy: blocks go where the caller puts them, and are counted as recorded."""

from __future__ import annotations

from typing import ClassVar

from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.eviction.eviction_policy import WindowEvictionPolicy
from trtkv.eviction.level_queues import LevelQueues
from trtkv.eviction.recorded.level_queues import RecordedLevelQueues


class RecordedWindowEvictionPolicy(WindowEvictionPolicy):
    """Releases and refreshes as recorded.

    A block that nobody can find waits after cached ones unless it is put to the front. One that moved to another level
    while it was free changes queues, not counts, at a refresh.
    """

    level_queues: ClassVar[type[LevelQueues]] = RecordedLevelQueues

    def _goes_first(self, block: KVCacheBlock) -> bool:
        return False

    def requeue(self, block: KVCacheBlock) -> None:
        """It keeps its place."""

    def _note_requeued(self, old_level: LevelQueues, new_level: LevelQueues) -> None:
        old_level.num_free += 1
        new_level.num_free -= 1
