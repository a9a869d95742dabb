"""PinnedBlockIds: the ids that a call pinned, by window. Not among the compiled modules: list cannot be there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trtkv.common import BlockId, WindowSize


class PinnedBlockIds(list[BlockId]):
    """Ids pinned in the widest window, as the original returns them, and those of the others.

    ``KVCacheManager.unpin_blocks_by_id`` takes all of them back. Ids belong to a window: a plain list of some of them
    needs its window named.
    """

    def __init__(self, ids: Sequence[BlockId], of_other_windows: Mapping[WindowSize, Sequence[BlockId]]) -> None:
        super().__init__(ids)
        self.of_other_windows = of_other_windows
