"""CacheResources: gives a step's requests their blocks and table rows, and takes them back."""

from __future__ import annotations

from collections.abc import Sequence

from trtkv.errors import OutOfBlocksError
from trtkv.executor.active_request import ActiveRequest
from trtkv.executor.executor_stats import ExecutorStats
from trtkv.executor.paged_kv_cache import PagedKvCache
from trtkv.kv_cache_manager import KVCacheManager


class CacheResources:
    """What happens to the cache around a forward pass; decides nothing about order or sampling."""

    def __init__(self, manager: KVCacheManager, cache: PagedKvCache, num_rows: int, stats: ExecutorStats) -> None:
        self._manager = manager
        self._cache = cache
        self._free_rows = list(reversed(range(num_rows)))
        self._stats = stats

    def prepare_resources(
        self, contexts: Sequence[ActiveRequest], generations: Sequence[ActiveRequest]
    ) -> tuple[list[ActiveRequest], list[ActiveRequest]]:
        """Blocks for everything computed in this step, then transfers in order and the table up to date.

        Returns the contexts that have their blocks (an admission can fail where its copy needs one block more than the
        budget counted) and the generating requests that found none for their next token.
        """
        admitted = self._admit([entry for entry in contexts if not entry.rows])
        ready = [entry for entry in contexts if entry.rows or entry in admitted]
        failed = [entry for entry in generations if not self._add_tokens(entry)]
        self._manager.refresh_blocks()
        for entry in (*ready, *generations):
            if entry not in failed:
                self._cache.update_rows(entry.request.request_id, entry.rows)
        self._stats.table_bytes_sent += self._cache.offsets.flush()
        return ready, failed

    def update_resources(self, contexts: Sequence[ActiveRequest]) -> None:
        """Offer the prompts computed so far for reuse."""
        for entry in contexts:
            self._manager.store_context_blocks(entry.request)

    def rewind(self, entry: ActiveRequest, num_tokens: int) -> None:
        """Take back the tokens of rejected drafts."""
        if num_tokens:
            self._manager.rewind_kv_cache(entry.request.request_id, num_tokens)
            self._stats.num_rewound_tokens += num_tokens

    def free_resources(self, entry: ActiveRequest) -> None:
        """Store a request's blocks for reuse and drop its sequence."""
        sequence = self._manager.get_sequence(entry.request.request_id)
        self._stats.num_front_blocks_removed += sum(
            sequence.get_num_front_blocks_removed(window) for window in self._manager.window_sizes_metadata
        )
        self._manager.remove_sequence(entry.request.request_id, entry.request)
        self._free_rows += reversed(entry.rows)
        entry.rows = []

    def _admit(self, entries: Sequence[ActiveRequest]) -> list[ActiveRequest]:
        """Admit all at once, or as many from the front as there are blocks and rows for."""
        while sum(entry.request.beam_width for entry in entries) > len(self._free_rows):
            entries = entries[:-1]
        while entries:
            infos = [
                (entry.request.request_id, entry.request.prompt_len, entry.request.beam_width) for entry in entries
            ]
            try:
                self._manager.add_sequence_batch(infos, [entry.request for entry in entries])
            except OutOfBlocksError:
                entries = entries[:-1]
                continue
            for entry in entries:
                entry.rows = [self._free_rows.pop() for _ in range(entry.request.beam_width)]
                self._count_admission(entry)
            return list(entries)
        return []

    def _count_admission(self, entry: ActiveRequest) -> None:
        self._stats.num_reused_tokens += entry.request.prepopulated_prompt_len
        sequence, beam_width = self._manager.get_sequence(entry.request.request_id), entry.request.beam_width
        self._stats.num_shared_admissions += any(
            block.ref_count > beam_width and not block.is_placeholder
            for window in self._manager.window_sizes_metadata
            for block in sequence.get_window(window).held
        )

    def _add_tokens(self, entry: ActiveRequest) -> bool:
        """Room for the newest token and its drafts; drafts without room are dropped."""
        for number in range(1 + len(entry.drafts)):
            try:
                self._manager.add_token(entry.request.request_id)
            except OutOfBlocksError:
                if number == 0:
                    return False
                del entry.drafts[number - 1 :]
                entry.request.set_num_draft_tokens(len(entry.drafts))
                break
        return True
