"""MachineState: what the ops of a program work on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trtkv.common import RequestId
from trtkv.errors import InvalidInputError, UnknownIdError
from trtkv.records.llm_request import LlmRequest
from trtkv.verify.clock import VirtualClock

if TYPE_CHECKING:
    from trtkv.manager.kv_cache_manager import KVCacheManager
    from trtkv.scheduler.capacity_scheduler import CapacityScheduler
    from trtkv.scheduler.micro_batch_scheduler import MicroBatchScheduler
    from trtkv.transfers.copy_engine import BlockCopy, RecordingCopyEngine
    from trtkv.verify.page_table import PageTable

DEFAULT_CLOCK_START_MS = 1000


class MachineState:
    """One manager (and at most one cross manager), the requests, the schedulers and the clock.

    Transfers and ties are collected over both managers until an observation takes them. ``compatibility`` is the mode
    of managers and schedulers whose settings do not name one.
    """

    __slots__ = (
        "_copy_engine",
        "_num_large_lookups",
        "_num_ties",
        "capacity_scheduler",
        "clock",
        "compatibility",
        "cross_manager",
        "is_cross_selected",
        "make_request",
        "micro_batch_scheduler",
        "peft_cache",
        "requests",
        "self_manager",
    )

    def __init__(self, make_request: Callable[..., LlmRequest] = LlmRequest, compatibility: bool = True) -> None:
        self.make_request = make_request
        self.compatibility = compatibility
        self.requests: dict[RequestId, LlmRequest] = {}
        self.clear()

    def clear(self, clock_start_ms: int = DEFAULT_CLOCK_START_MS) -> None:
        """Drop managers, requests and schedulers, and set the clock."""
        self.clock = VirtualClock(clock_start_ms)
        self.requests.clear()
        self.self_manager: KVCacheManager | None = None
        self.cross_manager: KVCacheManager | None = None
        self.is_cross_selected = False
        self.capacity_scheduler: CapacityScheduler | None = None
        self.micro_batch_scheduler: MicroBatchScheduler | None = None
        self.peft_cache: PageTable | None = None
        self._copy_engine: RecordingCopyEngine | None = None
        self._num_ties = 0
        self._num_large_lookups = 0

    @property
    def selected_manager(self) -> KVCacheManager | None:
        """The manager that manager ops and observations work on, or None before the first create."""
        return self.cross_manager if self.is_cross_selected else self.self_manager

    @property
    def manager(self) -> KVCacheManager:
        """The selected manager; it must exist."""
        manager = self.selected_manager
        if manager is None:
            raise InvalidInputError("there is no manager; the program must create one first")
        return manager

    @property
    def copy_engine(self) -> RecordingCopyEngine:
        """The engine shared by both managers: it moves nothing and writes down what it was asked to move."""
        if self._copy_engine is None:
            from trtkv.transfers.copy_engine import RecordingCopyEngine

            self._copy_engine = RecordingCopyEngine()
        return self._copy_engine

    def get_request(self, request_id: RequestId) -> LlmRequest:
        """A request by id."""
        request = self.requests.get(request_id)
        if request is None:
            raise UnknownIdError(f"there is no request {request_id}; the program must add it with new_request first")
        return request

    def collect_ties(self) -> None:
        """Take over what the trees have counted so far; a tree may be replaced by the next op."""
        for manager in (self.self_manager, self.cross_manager):
            if manager is not None:
                self._num_ties += manager.block_manager.lookup_tree.take_num_ties()
                self._num_large_lookups += manager.block_manager.lookup_tree.take_num_large_lookups()

    @property
    def num_ties(self) -> int:
        """Ties since the last observation."""
        return self._num_ties

    def take_ties(self) -> tuple[int, int]:
        """Ties since the last call, and partial look-ups with many candidates."""
        counts = self._num_ties, self._num_large_lookups
        self._num_ties = self._num_large_lookups = 0
        return counts

    def take_copies(self) -> list[BlockCopy]:
        """Transfers since the last call, in order of issue."""
        if self._copy_engine is None or not self._copy_engine.copies:
            return []
        copies = list(self._copy_engine.copies)
        self._copy_engine.copies.clear()
        return copies
