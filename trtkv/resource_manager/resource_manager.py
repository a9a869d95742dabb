"""ResourceManager: all resource managers of an executor, called in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from trtkv.checks import check_member
from trtkv.common import RequestId
from trtkv.errors import InvalidInputError
from trtkv.records.llm_request import LlmRequest
from trtkv.resource_manager.base_resource_manager import BaseResourceManager, KvBlockBudget
from trtkv.resource_manager.kv_cache_resource_manager import KVCacheResourceManager
from trtkv.scheduler.scheduled_requests import ScheduledRequests


class ResourceManagerType(Enum):
    """Places of a ResourceManager."""

    KV_CACHE_MANAGER = "KV_CACHE_MANAGER"
    DRAFT_KV_CACHE_MANAGER = "DRAFT_KV_CACHE_MANAGER"
    CROSS_KV_CACHE_MANAGER = "CROSS_KV_CACHE_MANAGER"
    PEFT_CACHE_MANAGER = "PEFT_CACHE_MANAGER"
    SEQ_SLOT_MANAGER = "SEQ_SLOT_MANAGER"
    SPEC_RESOURCE_MANAGER = "SPEC_RESOURCE_MANAGER"


KV_BUDGET_TYPES: Final = (
    ResourceManagerType.KV_CACHE_MANAGER,
    ResourceManagerType.DRAFT_KV_CACHE_MANAGER,
    ResourceManagerType.CROSS_KV_CACHE_MANAGER,
)
"""Places whose blocks a request is charged for."""


def _check_place(place: object) -> ResourceManagerType:
    return check_member("place", place, ResourceManagerType)


class ResourceManager:
    """All resource managers of an executor by their place, called in order and freed in reverse order."""

    def __init__(self, resource_managers: Mapping[ResourceManagerType, BaseResourceManager]) -> None:
        self._resource_managers = {_check_place(place): manager for place, manager in resource_managers.items()}

    @property
    def resource_managers(self) -> Mapping[ResourceManagerType, BaseResourceManager]:
        """The managers in the order they are called."""
        return self._resource_managers

    def register_resource_manager(self, place: ResourceManagerType, resource_manager: BaseResourceManager) -> None:
        """Add a manager at the end, or replace the one in its place."""
        self._resource_managers[_check_place(place)] = resource_manager

    def get_resource_manager(self, place: ResourceManagerType) -> BaseResourceManager | None:
        """The manager of a place, if there is one."""
        return self._resource_managers.get(_check_place(place))

    def reorder_pipeline(self, places: Sequence[ResourceManagerType]) -> None:
        """Call the managers in another order; every place must be named once."""
        if sorted(_check_place(place).value for place in places) != sorted(p.value for p in self._resource_managers):
            raise InvalidInputError(f"order {list(places)} does not name each of {list(self._resource_managers)} once")
        self._resource_managers = {place: self._resource_managers[place] for place in places}

    def prepare_resources(self, scheduled_batch: ScheduledRequests) -> None:
        """Prepare every manager, then fit the tokens of the batch into the budget.

        Only then are positions and chunks final: the reuse a batch was scheduled with is an estimate.
        """
        for manager in self._resource_managers.values():
            manager.prepare_resources(scheduled_batch)
        kv_cache_manager = self._resource_managers.get(ResourceManagerType.KV_CACHE_MANAGER)
        if isinstance(kv_cache_manager, KVCacheResourceManager):
            kv_cache_manager.fit_token_budget(scheduled_batch)

    def update_resources(
        self, scheduled_batch: ScheduledRequests, num_accepted_draft_tokens: Mapping[RequestId, int] | None = None
    ) -> None:
        """Settle a computed batch in every manager."""
        for manager in self._resource_managers.values():
            manager.update_resources(scheduled_batch, num_accepted_draft_tokens)

    def free_resources(self, request: LlmRequest) -> None:
        """Give back what a request holds, in reverse order."""
        for manager in reversed(self._resource_managers.values()):
            manager.free_resources(request)

    def get_request_kv_block_budgets(self, request: LlmRequest) -> list[tuple[ResourceManagerType, KvBlockBudget]]:
        """Budgets of a request in all caches that have one."""
        budgets = []
        for place in KV_BUDGET_TYPES:
            manager = self._resource_managers.get(place)
            budget = None if manager is None else manager.get_request_kv_block_budget(request)
            if budget is not None:
                budgets.append((place, budget))
        return budgets

    def get_unchecked_kv_block_budget_pools(self) -> list[ResourceManagerType]:
        """Caches present whose requests ``get_request_kv_block_budgets`` leaves out."""
        return [
            place
            for place in KV_BUDGET_TYPES
            if place in self._resource_managers and not self._resource_managers[place].kv_block_budget_applies()
        ]

    def shutdown(self) -> None:
        """Shut every manager down, in reverse order."""
        for manager in reversed(self._resource_managers.values()):
            manager.shutdown()
