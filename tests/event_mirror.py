"""A listener that rebuilds the set of cached blocks from events alone."""

from __future__ import annotations

from trtkv.common import PRIMARY_LEVEL, SECONDARY_LEVEL, WindowSize
from trtkv.events.kv_cache_events import (
    KVCacheCreatedData,
    KVCacheEvent,
    KVCacheRemovedData,
    KVCacheStoredData,
    KVCacheUpdatedData,
)
from trtkv.manager.kv_cache_manager import KVCacheManager


class EventMirror:
    """Hash -> level of every cached block, by window. Refuses events that do not fit what it knows."""

    def __init__(self) -> None:
        self.windows: dict[WindowSize, dict[int, int]] = {}
        self._next_event_id = 0

    def apply(self, event: KVCacheEvent) -> None:
        """Take one event; they must come without holes."""
        assert event.event_id == self._next_event_id, f"event {event.event_id} follows {self._next_event_id - 1}"
        self._next_event_id += 1
        data = event.data
        if isinstance(data, KVCacheCreatedData):
            assert event.window_size not in self.windows
            self.windows[event.window_size] = {}
            return
        known = self.windows[event.window_size]
        if isinstance(data, KVCacheStoredData):
            self._store(known, data)
        elif isinstance(data, KVCacheRemovedData):
            for block_hash in data.block_hashes:
                assert known.pop(block_hash, None) is not None, f"removed {block_hash:016x}, which is not stored"
        else:
            self._update(known, data)

    def _store(self, known: dict[int, int], data: KVCacheStoredData) -> None:
        for block in data.blocks:
            assert block.block_hash not in known, f"stored {block.block_hash:016x} twice"
            known[block.block_hash] = block.cache_level

    def _update(self, known: dict[int, int], data: KVCacheUpdatedData) -> None:
        if data.cache_level is not None and data.block_hash in known:
            old, new = data.cache_level
            assert known[data.block_hash] == old, f"{data.block_hash:016x} was not at level {old}"
            known[data.block_hash] = new

    def check(self, manager: KVCacheManager) -> None:
        """What is known must be what is cached, at the levels where it is."""
        for window, window_manager in manager.block_manager.window_block_managers.items():
            cached = {
                block.hash: PRIMARY_LEVEL if block.is_primary else SECONDARY_LEVEL
                for block in window_manager.block_objects()
                if block.lookup_node is not None and not block.is_placeholder
            }
            known = self.windows.get(window, {})
            assert known == cached, (
                f"window {window}: the listener misses {_hex(set(cached) - set(known))}, keeps "
                f"{_hex(set(known) - set(cached))}, wrong levels "
                f"{_hex({h for h in set(known) & set(cached) if known[h] != cached[h]})}"
            )


def _hex(hashes: set[int]) -> list[str]:
    return [f"{value:016x}" for value in sorted(hashes)]
