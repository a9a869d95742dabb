"""KVCacheEventManager: collects events while blocks move, hands them over in flushes, keeps a bounded buffer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.checks import check_integer, check_number
from trtkv.common import WindowSize
from trtkv.errors import ConfigurationError
from trtkv.events.kv_cache_events import (
    KVCacheCreatedData,
    KVCacheEvent,
    KVCacheEventData,
    KVCacheRemovedData,
    KVCacheStoredBlockData,
    KVCacheStoredData,
    KVCacheUpdatedData,
)
from trtkv.records.kv_cache_index import get_level

EventGatherer = Callable[[list[KVCacheEvent]], "list[list[KVCacheEvent]]"]
"""Takes a rank's flushed events; returns those to hand over to readers here, rank by rank (attention_dp_gather)."""


def describe_stored_block(block: KVCacheBlock) -> KVCacheStoredBlockData:
    """What listeners are told of a cached block."""
    level = get_level(block.memory_pool_block_index)
    return KVCacheStoredBlockData(block.hash, block.key, level, block.priority)


class KVCacheEventManager:
    """Events of one manager. C++: KVCacheEventManager.

    Enqueueing appends to a queue and never blocks. ``flush`` hands the queue over to readers; of the events not
    read, the newest ``max_kv_event_entries`` are kept, whether they are flushed or not. Older ones are dropped and
    counted in ``num_dropped_events``; ids show the hole. Removed hashes are collected per window and become one
    event before the window's next stored event or at the flush.

    With attention data parallelism flushed events go to ``gather`` first (see AttentionDpEventGatherer), so that
    readers on rank 0 see the events of all ranks, each with its ``attention_dp_rank``.

    ``epoch``: what listeners detect a restart by; give each run a higher one than the run before, such as the time
    of its start. Without epochs the created event with id 0 tells them.
    """

    def __init__(
        self,
        max_kv_event_entries: int,
        attention_dp_rank: int | None = None,
        gather: EventGatherer | None = None,
        epoch: int = 0,
    ) -> None:
        check_integer("event buffer size", max_kv_event_entries, 1, error=ConfigurationError)
        if attention_dp_rank is not None:
            check_integer("attention_dp_rank", attention_dp_rank, 0, error=ConfigurationError)
        self._max_size = max_kv_event_entries
        self._epoch = check_integer("epoch", epoch, 0, error=ConfigurationError)
        self._attention_dp_rank = attention_dp_rank
        self._gather = gather
        self._next_event_id = 0
        self._event_queue: deque[KVCacheEvent] = deque()
        self._latest_removed_events: dict[WindowSize, list[int]] = {}
        self._events: deque[KVCacheEvent] = deque()
        self._condition = threading.Condition()
        self._num_dropped_events = 0

    @property
    def attention_dp_rank(self) -> int | None:
        """Rank that events carry."""
        return self._attention_dp_rank

    @property
    def max_kv_event_entries(self) -> int:
        """Flushed events kept for readers."""
        return self._max_size

    @property
    def num_dropped_events(self) -> int:
        """Events dropped because they were not flushed or read in time."""
        return self._num_dropped_events

    @property
    def next_event_id(self) -> int:
        """Id of the next event; those before it describe the cache as it is now, but for removals being collected."""
        return self._next_event_id

    def describe_now(self, data: KVCacheEventData, window_size: WindowSize) -> KVCacheEvent:
        """An event of a snapshot: it carries the id of the last event so far. Enqueues nothing."""
        return KVCacheEvent(self._next_event_id - 1, data, window_size, self._attention_dp_rank, self._epoch)

    # -- enqueueing -------------------------------------------------------------------------------

    def enqueue_created_event(self, num_blocks_per_cache_level: tuple[int, ...], window_size: WindowSize) -> None:
        """A window was created."""
        self._enqueue(KVCacheCreatedData(num_blocks_per_cache_level), window_size)

    def enqueue_stored_event(
        self, blocks: Sequence[KVCacheBlock], window_size: WindowSize, parent_hash: int | None
    ) -> None:
        """A chain of blocks was put into the tree, the first below ``parent_hash`` (None: the root)."""
        self._flush_removed_events(window_size)
        stored = [describe_stored_block(block) for block in blocks]
        self._enqueue(KVCacheStoredData(parent_hash, stored), window_size)

    def enqueue_removed_event(self, block: KVCacheBlock, window_size: WindowSize) -> None:
        """A block leaves the tree; merged with others of its window."""
        self._latest_removed_events.setdefault(window_size, []).append(block.hash)

    def enqueue_updated_event(self, data: KVCacheUpdatedData, window_size: WindowSize) -> None:
        """A block changed level or priority."""
        self._enqueue(data, window_size)

    def _flush_removed_events(self, window_size: WindowSize) -> None:
        hashes = self._latest_removed_events.pop(window_size, None)
        if hashes:
            self._enqueue(KVCacheRemovedData(hashes), window_size)

    def _enqueue(self, data: KVCacheEventData, window_size: WindowSize) -> None:
        self._event_queue.append(
            KVCacheEvent(self._next_event_id, data, window_size, self._attention_dp_rank, self._epoch)
        )
        self._next_event_id += 1
        if len(self._event_queue) > self._max_size:
            self._event_queue.popleft()
            with self._condition:
                self._num_dropped_events += 1

    # -- handing over -----------------------------------------------------------------------------

    def flush(self) -> None:
        """Hand everything enqueued so far over to readers and wake them. Ends an iteration."""
        for window_size in sorted(self._latest_removed_events):
            self._flush_removed_events(window_size)
        batch = list(self._event_queue)
        self._event_queue.clear()
        if self._gather is not None:
            batch = [event for rank_events in self._gather(batch) for event in rank_events]
        self.deliver(batch)

    def deliver(self, events: Sequence[KVCacheEvent]) -> None:
        """Append flushed events, of this rank or others, for readers and wake them; from any thread."""
        if not events:
            return
        with self._condition:
            self._events.extend(events)
            while len(self._events) > self._max_size:
                self._events.popleft()
                self._num_dropped_events += 1
            self._condition.notify_all()

    def get_events(self, timeout_ms: float | None = None) -> list[KVCacheEvent]:
        """Flushed events since the last call, oldest first.

        Returns at once what is there; with a timeout an empty buffer is waited on until a flush or the end
        of the timeout. Raises InvalidInputError unless that is 0 or more milliseconds.
        """
        if timeout_ms is not None:
            check_number("timeout_ms", timeout_ms, 0.0, inclusive=True)
        with self._condition:
            if timeout_ms is not None:
                self._condition.wait_for(lambda: bool(self._events), timeout_ms / 1000)
            events = list(self._events)
            self._events.clear()
            return events
