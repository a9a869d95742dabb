"""Events about cached blocks: records, the manager that collects them, consumers that rebuild the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trtkv._lazy import lazy_names

PUBLIC_NAMES: Final = {
    "attention_dp_gather": ("DEFAULT_GATHER_PERIOD_MS", "AttentionDpEventGatherer", "GatherFailedError"),
    "event_sequence": ("EventGap",),
    "kv_cache_event_consumer": (
        "CachedBlock",
        "CachedBlockTree",
        "KVCacheEventConsumer",
        "RankedEventConsumer",
    ),
    "kv_cache_event_manager": ("KVCacheEventManager",),
    "kv_cache_events": (
        "KVCacheCreatedData",
        "KVCacheEvent",
        "KVCacheRemovedData",
        "KVCacheStoredBlockData",
        "KVCacheStoredData",
        "KVCacheUpdatedData",
    ),
    "router_index": ("PromptHashes", "RouterIndex", "WorkerRank"),
}
"""Module of this package -> the public names that it defines."""

if TYPE_CHECKING:
    from trtkv.events.attention_dp_gather import DEFAULT_GATHER_PERIOD_MS as DEFAULT_GATHER_PERIOD_MS
    from trtkv.events.attention_dp_gather import AttentionDpEventGatherer as AttentionDpEventGatherer
    from trtkv.events.attention_dp_gather import GatherFailedError as GatherFailedError
    from trtkv.events.event_sequence import EventGap as EventGap
    from trtkv.events.kv_cache_event_consumer import CachedBlock as CachedBlock
    from trtkv.events.kv_cache_event_consumer import CachedBlockTree as CachedBlockTree
    from trtkv.events.kv_cache_event_consumer import KVCacheEventConsumer as KVCacheEventConsumer
    from trtkv.events.kv_cache_event_consumer import RankedEventConsumer as RankedEventConsumer
    from trtkv.events.kv_cache_event_manager import KVCacheEventManager as KVCacheEventManager
    from trtkv.events.kv_cache_events import KVCacheCreatedData as KVCacheCreatedData
    from trtkv.events.kv_cache_events import KVCacheEvent as KVCacheEvent
    from trtkv.events.kv_cache_events import KVCacheRemovedData as KVCacheRemovedData
    from trtkv.events.kv_cache_events import KVCacheStoredBlockData as KVCacheStoredBlockData
    from trtkv.events.kv_cache_events import KVCacheStoredData as KVCacheStoredData
    from trtkv.events.kv_cache_events import KVCacheUpdatedData as KVCacheUpdatedData
    from trtkv.events.router_index import PromptHashes as PromptHashes
    from trtkv.events.router_index import RouterIndex as RouterIndex
    from trtkv.events.router_index import WorkerRank as WorkerRank
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, PUBLIC_NAMES)
