"""What every resource manager of an executor offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from trtkv.common import RequestId
from trtkv.records.llm_request import LlmRequest
from trtkv.scheduler.scheduled_requests import ScheduledRequests


class KvBlockBudget(NamedTuple):
    """Blocks a request holds at its largest, and blocks there are."""

    required_blocks: int
    capacity_blocks: int


class BaseResourceManager(ABC):
    """One kind of resource. Calls of a step come in the order prepare, forward pass, update."""

    @abstractmethod
    def get_max_resource_count(self) -> int:
        """Units there are."""

    @abstractmethod
    def get_needed_resource_to_completion(self, request: LlmRequest) -> int:
        """Units a request holds at its end, those it holds already included."""

    def get_request_kv_block_budget(self, request: LlmRequest) -> KvBlockBudget | None:
        """Budget of a request; None when this manager cannot tell that a request can never be served."""
        return None

    def kv_block_budget_applies(self) -> bool:
        """Whether ``get_request_kv_block_budget`` has an answer at all."""
        return False

    def prepare_resources(self, scheduled_batch: ScheduledRequests) -> None:  # noqa: B027 - optional
        """Provide what the step needs."""

    def update_resources(  # noqa: B027 - optional
        self, scheduled_batch: ScheduledRequests, num_accepted_draft_tokens: Mapping[RequestId, int] | None = None
    ) -> None:
        """Settle what the step has used. ``num_accepted_draft_tokens``: drafts that became tokens, by request."""

    def free_resources(self, request: LlmRequest) -> object:
        """Give back all that a request holds."""
        return None

    def shutdown(self) -> None:  # noqa: B027 - optional
        """Give back everything."""
