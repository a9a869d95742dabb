"""Order of calls, trimming at the right moment, and budgets over all caches."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.scheduler_fakes import ids, make_request
from trtkv.common import CacheType
from trtkv.errors import InvalidInputError
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest
from trtkv.resource_manager import BaseResourceManager, KVCacheResourceManager, ResourceManager, ResourceManagerType
from trtkv.scheduler.scheduled_requests import ScheduledRequests

KV = ResourceManagerType.KV_CACHE_MANAGER
CROSS = ResourceManagerType.CROSS_KV_CACHE_MANAGER
DRAFT = ResourceManagerType.DRAFT_KV_CACHE_MANAGER
SLOTS = ResourceManagerType.SEQ_SLOT_MANAGER


class LoggingManager(BaseResourceManager):
    """Writes down its calls."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name = name
        self._log = log

    def get_max_resource_count(self) -> int:
        return 0

    def get_needed_resource_to_completion(self, request: LlmRequest) -> int:
        return 0

    def prepare_resources(self, scheduled_batch: ScheduledRequests) -> None:
        chunks = [request.context_chunk_size for request in scheduled_batch.context_requests]
        self._log.append(f"{self._name} prepares {chunks}")

    def update_resources(
        self, scheduled_batch: ScheduledRequests, num_accepted_draft_tokens: Mapping[int, int] | None = None
    ) -> None:
        self._log.append(f"{self._name} updates {num_accepted_draft_tokens}")

    def free_resources(self, request: LlmRequest) -> object:
        self._log.append(f"{self._name} frees {request.request_id}")
        return None

    def shutdown(self) -> None:
        self._log.append(f"{self._name} shuts down")


class PlainManager(BaseResourceManager):
    """A manager that leaves everything out that may be left out."""

    def get_max_resource_count(self) -> int:
        return 1

    def get_needed_resource_to_completion(self, request: LlmRequest) -> int:
        return 1


def make_kv_cache(num_blocks: int = 8, cache_type: CacheType = CacheType.SELF) -> KVCacheResourceManager:
    manager = KVCacheManager.from_arguments(
        [1],
        1,
        4,
        {64: (num_blocks, 0)},
        8,
        1,
        [64],
        max_sequence_length=64,
        cache_type=cache_type,
        enable_block_reuse=cache_type is CacheType.SELF,
    )
    return KVCacheResourceManager(manager, max_num_tokens=6, enable_chunked_prefill=True)


def test_managers_are_called_in_order_and_freed_in_reverse() -> None:
    log: list[str] = []
    resources = ResourceManager({KV: LoggingManager("cache", log), SLOTS: LoggingManager("slots", log)})
    batch = ScheduledRequests.from_schedule([make_request(1)], [])
    resources.prepare_resources(batch)
    resources.update_resources(batch, {1: 2})
    resources.free_resources(make_request(1))
    resources.shutdown()
    assert log == [
        "cache prepares [8]",
        "slots prepares [8]",
        "cache updates {1: 2}",
        "slots updates {1: 2}",
        "slots frees 1",
        "cache frees 1",
        "slots shuts down",
        "cache shuts down",
    ]


def test_the_order_can_be_changed_but_nobody_left_out() -> None:
    log: list[str] = []
    resources = ResourceManager({KV: LoggingManager("cache", log)})
    resources.register_resource_manager(SLOTS, LoggingManager("slots", log))
    resources.reorder_pipeline([SLOTS, KV])
    resources.prepare_resources(ScheduledRequests())
    assert log == ["slots prepares []", "cache prepares []"]
    assert resources.get_resource_manager(KV) is resources.resource_managers[KV]
    assert resources.get_resource_manager(DRAFT) is None
    with pytest.raises(InvalidInputError, match="once"):
        resources.reorder_pipeline([SLOTS])


def test_tokens_are_fitted_only_after_every_manager_has_prepared() -> None:
    log: list[str] = []
    resources = ResourceManager({KV: make_kv_cache(), SLOTS: LoggingManager("slots", log)})
    request = make_request(1, 8)
    batch = ScheduledRequests.from_schedule([request], [])
    resources.prepare_resources(batch)
    assert log == ["slots prepares [8]"]
    assert request.context_chunk_size == 4
    assert ids(batch.context_requests_chunking) == [1]


def test_optional_calls_do_nothing() -> None:
    manager = PlainManager()
    resources = ResourceManager({SLOTS: manager})
    batch = ScheduledRequests()
    resources.prepare_resources(batch)
    resources.update_resources(batch)
    resources.shutdown()
    assert manager.free_resources(make_request(1)) is None
    assert manager.get_request_kv_block_budget(make_request(1)) is None
    assert not manager.kv_block_budget_applies()


def test_budgets_come_from_every_cache_that_has_one() -> None:
    resources = ResourceManager({KV: make_kv_cache(5), CROSS: make_kv_cache(3, CacheType.CROSS), DRAFT: PlainManager()})
    request = make_request(1, 8, max_new_tokens=5, encoder_tokens=range(9))
    assert resources.get_request_kv_block_budgets(request) == [(KV, (4, 5)), (CROSS, (3, 3))]
    assert resources.get_unchecked_kv_block_budget_pools() == [DRAFT]
