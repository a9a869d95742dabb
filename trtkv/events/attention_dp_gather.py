"""Bringing the events of all attention-DP ranks to rank 0 through torch.distributed, beside the serving loop."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from trtkv.checks import check_count, check_number
from trtkv.errors import InvalidInputError, MissingExtraError, TrtkvError
from trtkv.events.kv_cache_events import KVCacheEvent

if TYPE_CHECKING:
    import torch.distributed

_LOGGER = logging.getLogger(__name__)
_NS_PER_MS: Final = 1_000_000
DEFAULT_GATHER_PERIOD_MS: Final = 5


class GatherFailedError(TrtkvError):
    """Ranks could not exchange events any more; the text holds the reason."""


class AttentionDpEventGatherer:
    """Collects flushed events of every rank on rank 0. C++: KVCacheEventManager::exchangeAttentionDpThread.

    Give it to the event manager of each rank as ``gather``. A flush only puts its events into an outbox, so neither
    enqueueing nor flushing ever waits for another rank. A worker thread, begun by ``start``, runs the collective calls:
    every ``period_ms`` (KvCacheConfig.attention_dp_events_gather_period_ms) one all-reduce of two numbers, followed by
    a gather only if any rank has events. A thread was chosen over a collective inside ``flush`` because ranks whose
    clocks differ would disagree about which flush is due, and wait for each other for ever.

    ``group``: process group on gloo that nothing else uses; by default a new one of all ranks, which makes the
    constructor a collective call. ``max_kv_event_entries``: events kept in the outbox if the worker cannot keep up;
    the oldest are dropped and counted. ``clock`` returns nanoseconds.
    """

    def __init__(
        self,
        max_kv_event_entries: int,
        *,
        period_ms: float = DEFAULT_GATHER_PERIOD_MS,
        group: torch.distributed.ProcessGroup | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        check_count("max_kv_event_entries", max_kv_event_entries, 1)
        check_number("period_ms", period_ms, 0, inclusive=True)
        self._distributed = _import_distributed()
        self._group = self._distributed.new_group(backend="gloo") if group is None else group
        self.rank: int = self._distributed.get_rank(self._group)
        self.world_size: int = self._distributed.get_world_size(self._group)
        self._period_ns = int(period_ms * _NS_PER_MS)
        self._clock = clock
        self._max_size = max_kv_event_entries
        self._outbox: deque[KVCacheEvent] = deque()
        self._lock = threading.Lock()
        self._num_dropped_events = 0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def num_dropped_events(self) -> int:
        """Events of this rank that never left it: the outbox was full, or the exchange has failed."""
        return self._num_dropped_events

    @property
    def failure(self) -> BaseException | None:
        """What ended the exchange before its time."""
        return self._failure

    def __call__(self, batch: list[KVCacheEvent]) -> list[list[KVCacheEvent]]:
        """Take a rank's flushed events; never blocks, returns nothing to hand over yet.

        After a failed exchange rank 0 goes on with its own events, and the others drop theirs.
        """
        with self._lock:
            if self._failure is not None:
                if self.rank == 0:
                    return [batch]
                self._num_dropped_events += len(batch)
                return []
            self._outbox.extend(batch)
            while len(self._outbox) > self._max_size:
                self._outbox.popleft()
                self._num_dropped_events += 1
        return []

    # -- exchanging -----------------------------------------------------------------------------------

    def exchange(self, is_closing: bool = False) -> tuple[list[list[KVCacheEvent]], bool]:
        """One collective step of all ranks: (events by rank on rank 0, else empty; whether every rank is closing).

        The worker calls it. Without a worker a loop whose ranks run in step may call it itself.
        """
        import torch

        with self._lock:
            batch = list(self._outbox)
            self._outbox.clear()
        state = torch.tensor([len(batch), int(is_closing)], dtype=torch.int64)
        self._distributed.all_reduce(state, group=self._group)
        num_events, num_closing = (int(value) for value in state)
        gathered: list[list[KVCacheEvent]] = []
        if num_events:
            root = self._distributed.get_global_rank(self._group, 0)
            received: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
            self._distributed.gather_object(batch, received, dst=root, group=self._group)
            gathered = received or []
        return gathered, num_closing == self.world_size

    def start(self, deliver: Callable[[Sequence[KVCacheEvent]], None]) -> None:
        """Begin the worker; rank 0 hands what arrives to ``deliver`` (KVCacheEventManager.deliver)."""
        if self._thread is not None:
            raise InvalidInputError("the worker was started already; make another gatherer")
        self._thread = threading.Thread(target=self._run, args=(deliver,), name="trtkv-event-gather", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float | None = 30.0) -> None:
        """Send what is left and stop, together with the other ranks: the exchange ends once all have called this.

        Raises GatherFailedError if the exchange has failed, or if other ranks do not close within the timeout.
        """
        self._closing.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                raise GatherFailedError(f"other ranks have not closed their gatherer within {timeout_s} s")
        if self._failure is not None:
            raise GatherFailedError(f"events could not be gathered: {self._failure}") from self._failure

    def _run(self, deliver: Callable[[Sequence[KVCacheEvent]], None]) -> None:
        try:
            is_over = False
            while not is_over:
                due = self._clock() + self._period_ns
                gathered, is_over = self.exchange(self._closing.is_set())
                for events in gathered:
                    deliver(events)
                if not is_over:
                    self._closing.wait(max(0, due - self._clock()) / 1e9)
        except BaseException as error:  # whatever ends the exchange must not end the server
            _LOGGER.warning("events of other ranks do not arrive any more: %s", error)
            with self._lock:
                self._failure = error
                self._num_dropped_events += len(self._outbox)
                self._outbox.clear()


def _import_distributed() -> Any:
    try:
        import torch.distributed as distributed
    except ImportError as error:
        raise MissingExtraError('events are gathered through PyTorch: pip install "trtkv[torch]"') from error
    if not (distributed.is_available() and distributed.is_initialized()):
        raise InvalidInputError("torch.distributed has no process group; call init_process_group first")
    return distributed
