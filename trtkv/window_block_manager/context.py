"""What the parts of one window share, and the base that hands it to each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from trtkv.blocks.block_listener import BlockListener
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import BlockId
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.eviction.eviction_policy import WindowEvictionPolicy
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool
from trtkv.transfers.copy_engine import CopyEngine
from trtkv.transfers.kv_cache_transfer_manager import KVCacheTransferManager
from trtkv.window_block_manager.counters import BlockCounters
from trtkv.window_block_manager.settings import WindowSettings


class Services(NamedTuple):
    """What all windows of a cache get from outside. ``clock`` returns nanoseconds."""

    copy_engine: CopyEngine
    clock: Callable[[], int]
    event_manager: KVCacheEventManager | None = None
    listener: BlockListener | None = None


class WindowContext(NamedTuple):
    """What every part of one window may need."""

    settings: WindowSettings
    pools: Sequence[KVCacheBlockPool]
    policy: WindowEvictionPolicy
    transfer_manager: KVCacheTransferManager
    counters: BlockCounters
    event_manager: KVCacheEventManager | None
    listener: BlockListener | None
    get_block_by_id: Callable[[BlockId], KVCacheBlock]


class WindowPart:
    """A part of a window block manager."""

    def __init__(self, context: WindowContext) -> None:
        self._settings = context.settings
        self._pools = context.pools
        self._policy = context.policy
        self._transfer_manager = context.transfer_manager
        self._counters = context.counters
        self._event_manager = context.event_manager
        self._listener = context.listener
        self._get_block_by_id = context.get_block_by_id
