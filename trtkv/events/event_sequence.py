"""EventSequence: whether an event is the next one, known already, or the first of a manager that started anew."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from trtkv.events.kv_cache_events import KVCacheCreatedData, KVCacheEvent

MAX_GAPS: Final = 1000
"""Gaps remembered; older ones are forgotten, ``needs_resync`` is not."""


class EventGap(NamedTuple):
    """Events that never arrived: ids from ``first_missing_id`` up to, not including, ``next_id``."""

    first_missing_id: int
    next_id: int

    @property
    def num_missing(self) -> int:
        """Lost events."""
        return self.next_id - self.first_missing_id


class Arrival(Enum):
    """What to do with an event."""

    NEXT = "apply it"
    KNOWN = "skip it: applied already, or sent by a manager that has been replaced"
    RESTART = "forget everything, then apply it"


class EventSequence:
    """Follows ids and epochs of one manager (one attention-DP rank).

    An event of a higher epoch belongs to a manager that started anew; one of a lower epoch comes too late. Within one
    epoch a created event with id 0 means the same: the manager restarted, or the stream is read again from its
    start. Which of the two cannot be seen, so the listener starts over, and ``needs_resync`` is set until the ids have
    passed those seen before: from there on both give the same. So does another event in the place of a created one:
    that of a manager with fewer windows.
    """

    def __init__(self) -> None:
        self.gaps: list[EventGap] = []
        self.num_restarts = 0
        self.epoch: int | None = None
        """Epoch of the manager listened to; None before the first event."""
        self.next_event_id = 0
        """Id that the next event should have."""
        self._has_lost = False
        self._read_before = 0  # ids below it were seen before the stream began anew in the same epoch
        self._is_past_created = False

    @property
    def needs_resync(self) -> bool:
        """Whether what was built from the events may differ from the cache."""
        return self._has_lost or self.next_event_id < self._read_before

    def take(self, event: KVCacheEvent) -> Arrival:
        """Note an event, and say what to do with it."""
        is_restart = self._is_restart(event)
        if is_restart:
            self.num_restarts += 1
            self._has_lost = False
            self._read_before = max(self.next_event_id, self._read_before) if event.epoch == self.epoch else 0
            self.next_event_id = 0
            self._is_past_created = False
        elif event.event_id < self.next_event_id or (self.epoch is not None and event.epoch < self.epoch):
            return Arrival.KNOWN
        self.epoch = event.epoch
        if event.event_id > self.next_event_id:
            self.gaps.append(EventGap(self.next_event_id, event.event_id))
            del self.gaps[:-MAX_GAPS]
            self._has_lost = True
        self.next_event_id = event.event_id + 1
        self._is_past_created |= not isinstance(event.data, KVCacheCreatedData)
        return Arrival.RESTART if is_restart else Arrival.NEXT

    def start_from(self, last: KVCacheEvent) -> None:
        """Go on after a snapshot, whose events all carry the id and the epoch of the last event before it."""
        self.epoch = last.epoch
        self.next_event_id = last.event_id + 1
        self._has_lost = False
        self._read_before = 0
        self._is_past_created = True

    def _is_restart(self, event: KVCacheEvent) -> bool:
        if self.epoch is None or event.epoch < self.epoch:
            return False
        if event.epoch > self.epoch:
            return True
        is_created = isinstance(event.data, KVCacheCreatedData)
        if self._is_past_created:
            return event.event_id == 0 and is_created
        return event.event_id < self.next_event_id and not is_created  # in place of a created event seen before
