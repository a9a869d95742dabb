"""Running totals of blocks while a capacity scheduler goes through its requests."""

from __future__ import annotations

from trtkv.common import WindowSize
from trtkv.records.llm_request import LlmRequest
from trtkv.records.window_size_metadata import PrefixReuseSummary
from trtkv.scheduler.budget_protocols import KvCacheBudget


class NoEvictScheduledBlocksManager:
    """Free blocks minus what admitted requests still take until completion, per window.

    Balances can go negative, because running requests are subtracted without a test.
    """

    def __init__(self, kv_cache_manager: KvCacheBudget) -> None:
        self._kv_cache_manager = kv_cache_manager
        free_blocks = kv_cache_manager.num_free_blocks_per_window_size
        self._available_blocks = {window: free_blocks[window] for window in kv_cache_manager.window_sizes_metadata}
        self._needed_blocks: dict[WindowSize, int] = dict.fromkeys(self._available_blocks, 0)

    def enough_available_blocks(self, request: LlmRequest, cached_summary: PrefixReuseSummary | None = None) -> bool:
        """Size a request in every window and say whether it fits; reserves nothing."""
        enough = True
        for window, available in self._available_blocks.items():
            needed = self._kv_cache_manager.get_remaining_blocks_to_completion(request, window, cached_summary)
            self._needed_blocks[window] = needed
            enough &= self._suffices(available, needed)
        return enough

    def _suffices(self, available: int, needed: int) -> bool:
        """Whether a balance covers a need; no need is always covered."""
        return needed <= max(available, 0)

    def commit_blocks(self) -> None:
        """Reserve what the last sized request needs."""
        for window, needed in self._needed_blocks.items():
            self._available_blocks[window] -= needed


class MaxUtilizationScheduledBlocksManager:
    """Blocks that the scheduled requests take in the next step, per window."""

    def __init__(self, kv_cache_manager: KvCacheBudget, two_steps_look_ahead: bool) -> None:
        self._kv_cache_manager = kv_cache_manager
        self._two_steps_look_ahead = two_steps_look_ahead
        self._num_scheduled_blocks: dict[WindowSize, int] = dict.fromkeys(kv_cache_manager.window_sizes_metadata, 0)

    def prepare_new_number_of_blocks_if_we_end_up_scheduling(
        self, request: LlmRequest, cached_summary: PrefixReuseSummary | None = None
    ) -> dict[WindowSize, int] | None:
        """Totals with this request added, or None when a window has no room; reserves nothing."""
        totals: dict[WindowSize, int] = {}
        for window, scheduled in self._num_scheduled_blocks.items():
            needed = self._kv_cache_manager.get_needed_blocks_one_step(
                request, self._two_steps_look_ahead, window, cached_summary
            )
            totals[window] = scheduled + needed
            if not self._kv_cache_manager.scheduling_has_free_blocks(totals[window], window):
                return None
        return totals

    def update_scheduled_blocks(self, num_blocks: dict[WindowSize, int]) -> None:
        """Take over totals that were prepared before."""
        self._num_scheduled_blocks = num_blocks
