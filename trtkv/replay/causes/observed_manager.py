"""ObservedManager: a manager in the closed loop with an observer that is told of every call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from trtkv.common import RequestId
from trtkv.replay.causes.cause_observer import CauseObserver
from trtkv.replay.causes.key_history import TokenLoader
from trtkv.traces.prefixes.symbols import stored_tokens

if TYPE_CHECKING:
    from trtkv.manager.kv_cache_manager import KVCacheManager
    from trtkv.records.llm_request import LlmRequest
    from trtkv.traces.trace import TraceRequest

_NUM_LOADED = 64
"""Token strings kept at hand."""


class ObservedManager:
    """A ReplayManager. ``next_waiting``: the request that would be admitted next, if there is one that may start."""

    def __init__(
        self,
        manager: KVCacheManager,
        observer: CauseObserver,
        max_live: int,
        next_waiting: Callable[[], RequestId | None],
    ) -> None:
        self._manager = manager
        self._observer = observer
        self._max_live = max_live
        self._next_waiting = next_waiting
        self._num_live = 0

    def add_sequence_batch(
        self, request_infos: Sequence[tuple[RequestId, int, int]], requests: Sequence[LlmRequest], /
    ) -> None:
        """Admit requests."""
        self._num_live += len(requests)
        self._note_waiting()
        self._observer.admit(requests)
        self._manager.add_sequence_batch(request_infos, requests)
        self._observer.admitted(requests)

    def store_context_blocks(self, request: LlmRequest, /) -> None:
        """Store a prompt."""
        self._manager.store_context_blocks(request)
        self._observer.stored(request)

    def add_token_rounds(self, request_ids: Sequence[RequestId], num_rounds: int, /) -> None:
        """Make room for tokens."""
        self._note_waiting()
        self._observer.decode()
        self._manager.add_token_rounds(request_ids, num_rounds)

    def remove_sequence(self, request_id: RequestId, request: LlmRequest, /) -> None:
        """Release a sequence."""
        self._manager.remove_sequence(request_id, request)
        self._observer.removed(request)
        self._num_live -= 1

    def _note_waiting(self) -> None:
        """With fewer requests live than may be, the next one was turned away for lack of room."""
        if self._num_live < self._max_live:
            waiting = self._next_waiting()
            if waiting is not None:
                self._observer.wait(waiting)


def trace_token_loader(requests: Sequence[TraceRequest]) -> TokenLoader:
    """Tokens of requests by their place in a trace, made again when they are asked for."""

    @lru_cache(maxsize=_NUM_LOADED)
    def load(request_id: RequestId) -> bytes:
        return stored_tokens(requests[request_id]).astype("<i4", copy=False).tobytes()

    return load
