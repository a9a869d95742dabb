"""RecordedWindowEvictionPolicy: free blocks counted as recorded."""

from __future__ import annotations

from trtkv.eviction.eviction_policy import WindowEvictionPolicy
from trtkv.eviction.level_queues import LevelQueues


class RecordedWindowEvictionPolicy(WindowEvictionPolicy):
    """Refreshes as recorded: a block that moved to another level while it was free changes queues, not counts."""

    def _note_requeued(self, old_level: LevelQueues, new_level: LevelQueues) -> None:
        old_level.num_free += 1
        new_level.num_free -= 1
