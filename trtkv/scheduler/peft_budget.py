"""Adapter pages that one scheduling call hands out."""

from __future__ import annotations

from trtkv.records.llm_request import LlmRequest
from trtkv.scheduler.budget_protocols import BasePeftCacheManager


class PeftBudget:
    """Charges each adapter once per call; without an adapter cache nothing is limited."""

    def __init__(self, peft_cache_manager: BasePeftCacheManager | None) -> None:
        self._peft_cache_manager = peft_cache_manager
        self._seen_task_ids: set[int] = set()
        self._available_pages = 0 if peft_cache_manager is None else peft_cache_manager.max_device_pages

    def count_new_pages(self, request: LlmRequest) -> int:
        """Pages this request would add; 0 when its adapter is charged already or it has none."""
        if self._peft_cache_manager is None or request.lora_task_id is None:
            return 0
        if request.lora_task_id in self._seen_task_ids:
            return 0
        return self._peft_cache_manager.determine_num_pages(request)

    def has_room(self, num_pages: int) -> bool:
        """Whether that many pages can be added."""
        return self._peft_cache_manager is None or num_pages <= max(self._available_pages, 0)

    def charge(self, request: LlmRequest, num_pages: int) -> None:
        """Take pages, with or without room, and remember the adapter."""
        self._available_pages -= num_pages
        if request.lora_task_id is not None:
            self._seen_task_ids.add(request.lora_task_id)
