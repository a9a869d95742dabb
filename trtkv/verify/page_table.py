"""PageTable: the adapter cache of recorded programs, a fixed page count per task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtkv.records.llm_request import LlmRequest


class PageTable:
    """Pages that the adapter of each task takes, out of a fixed number on the device."""

    __slots__ = ("_default_pages", "_pages", "max_device_pages")

    def __init__(self, max_device_pages: int, default_pages: int, pages: Mapping[int, int]) -> None:
        self.max_device_pages = max_device_pages
        self._default_pages = default_pages
        self._pages = dict(pages)

    def determine_num_pages(self, request: LlmRequest) -> int:
        """Pages of the request's adapter. Changes nothing. C++: PeftCacheManager::determineNumPages."""
        if request.lora_task_id is None:
            return self._default_pages
        return self._pages.get(request.lora_task_id, self._default_pages)
