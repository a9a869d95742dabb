"""Rules of calls as recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import RequestId, TokenId
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.events.kv_cache_events import KVCacheEvent
from trtkv.keys.packed_key import PackedKey
from trtkv.keys.recorded_keys import to_recorded_keys
from trtkv.manager.call_rules import CallRules
from trtkv.records.llm_request import LlmRequest
from trtkv.window_block_manager import WindowBlockManager


class RecordedCallRules(CallRules):
    """Foreign requests pass, cross caches name the prompt, full blocks keep their hash, totals count both levels."""

    least_input_length: ClassVar[int] = 0
    copies_states_without_reuse: ClassVar[bool] = False

    def check_request(self, request_id: RequestId, llm_request: LlmRequest) -> None:
        """Nothing is refused."""

    def build_summary_keys(self, llm_request: LlmRequest, tokens: Sequence[TokenId] | None) -> list[PackedKey]:
        """Keys of the prompt, in a cross cache as well."""
        return to_recorded_keys(self._build_keys(llm_request, tokens))

    def commit_hashes(self, blocks: Sequence[KVCacheBlock], keys: list[PackedKey]) -> list[int]:
        """Hashes of the blocks; those that count as full, a recycled one among them, keep key and hash."""
        for block, key in zip(blocks, to_recorded_keys(keys), strict=True):
            if not block.is_full:
                block.set_block_key(key, is_full=True)
                block.compute_hash()
        return [block.hash for block in blocks]

    def set_rewind_reserve(self, windows: Iterable[WindowBlockManager], num_tokens: int) -> None:
        """Windows keep no more than before."""

    def count_blocks(self, manager: WindowBlockManager) -> int:
        """Both levels, though only free primary blocks count as free."""
        return manager.settings.max_num_blocks

    def get_latest_events(
        self, event_manager: KVCacheEventManager | None, timeout_ms: float | None
    ) -> list[KVCacheEvent]:
        """No events without an event manager."""
        return [] if event_manager is None else event_manager.get_events(timeout_ms)
