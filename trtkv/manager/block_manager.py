"""BlockManager: one WindowBlockManager per attention window, one tree for all of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from itertools import islice

from trtkv.blocks.block_listener import BlockListener
from trtkv.blocks.generation_request import GenerationRequest
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.blocks.radix_block_tree import UnifiedBlockTree
from trtkv.checks import check_integer
from trtkv.common import (
    RECURRENT_STATES,
    BlockId,
    CacheType,
    KeyForm,
    KvCacheTransferMode,
    RequestId,
    WindowSize,
    ceil_div,
)
from trtkv.errors import InvalidInputError, UnknownIdError
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.events.kv_cache_events import KVCacheCreatedData, KVCacheEvent
from trtkv.keys.block_key import PackedKey
from trtkv.pools.capacity_estimation import group_layers_by_window_size
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool
from trtkv.records.cache_settings import CacheSettings, refuse_key_form
from trtkv.records.linear_attention import LinearAttentionMetadata
from trtkv.records.llm_request import LlmRequest
from trtkv.records.stats import KvCacheIterationStats
from trtkv.records.window_size_metadata import PoolConfiguration, PrefixReuseSummary, WindowSizeMetadata
from trtkv.transfers.copy_engine import CopyEngine
from trtkv.window_block_manager import WindowBlockManager
from trtkv.window_block_manager.sequences import write_slot_at
from trtkv.window_block_manager.settings import WindowSettings


class BlockManager:
    """All windows of one cache. C++: BlockManager.

    ``window_block_managers`` is keyed by window size, ascending; the recurrent window, being negative, comes
    first. Block ids belong to a window.
    """

    def __init__(
        self,
        settings: CacheSettings,
        copy_engine: CopyEngine,
        event_manager: KVCacheEventManager | None,
        clock: Callable[[], int],
        listener: BlockListener | None = None,
    ) -> None:
        if event_manager is not None and settings.reuse.key_form is KeyForm.DIGESTS:
            refuse_key_form(settings.reuse.key_form, "an event manager")
        self.settings = settings
        self._event_manager = event_manager
        self.listener = listener
        layers = settings.layers
        self.num_layers = len(layers.num_kv_heads_per_layer)
        self.lookup_tree = UnifiedBlockTree(settings.hash_map_order, settings.reuse.key_form)
        layers_per_window = group_layers_by_window_size(settings.windows.max_attention_window_vec, self.num_layers)
        self._layer_to_window_size = {layer: window for window, found in layers_per_window.items() for layer in found}
        self.is_variable_window = len(layers_per_window) > 1
        self.is_variable_gqa = len(set(layers.num_kv_heads_per_layer)) > 1
        self.window_block_managers: dict[WindowSize, WindowBlockManager] = {
            window: self._create_window(
                window, len(layers_per_window) - 1 - index, layers_per_window[window], copy_engine, clock
            )
            for index, window in enumerate(layers_per_window)
        }
        self.window_sizes_metadata = self._create_metadata()
        self._pools: list[KVCacheBlockPool] = [
            pool for manager in self.window_block_managers.values() for pool in manager.pools.pools
        ]

    def _create_window(
        self,
        window_size: WindowSize,
        channel: int,
        layers: Sequence[int],
        copy_engine: CopyEngine,
        clock: Callable[[], int],
    ) -> WindowBlockManager:
        settings = self.settings
        num_primary, num_secondary = settings.windows.get_blocks(window_size)
        linear = settings.layers.linear_attention_metadata if window_size == RECURRENT_STATES else None
        configurations = {entry.window_size: entry for entry in settings.windows.pool_configurations}
        own = configurations.get(window_size)
        return WindowBlockManager(
            WindowSettings(
                window_size=window_size,
                channel=channel,
                num_channels=len(settings.windows_in_use),
                tokens_per_block=settings.tokens_per_block,
                is_swa=0 <= window_size < settings.limits.max_sequence_length,
                cache_type=settings.layers.cache_type,
                num_primary_blocks=num_primary,
                num_secondary_blocks=num_secondary,
                num_placeholder_blocks=0 if linear is None else self._num_placeholders(linear),
                enable_partial_reuse=settings.reuse.enable_partial_reuse,
                copy_on_partial_reuse=settings.reuse.copy_on_partial_reuse,
                linear_attention_metadata=linear,
                key_form=settings.reuse.key_form,
                compatibility=settings.compatibility,
            ),
            layers,
            settings.layers.num_kv_heads_per_layer,
            settings.layers.size_per_head if own is None else own.size_per_head,
            settings.layers.dtype if own is None else own.dtype,
            self.lookup_tree,
            copy_engine,
            self._event_manager,
            clock,
            settings.eviction.secondary_offload_min_priority,
            settings.layers.indexer_k_cache,
            self.listener,
        )

    def _num_placeholders(self, linear: LinearAttentionMetadata) -> int:
        if linear.num_placeholder_blocks is not None:
            return linear.num_placeholder_blocks
        return self.settings.windows.get_blocks(self.settings.limits.max_sequence_length)[0]

    def _create_metadata(self) -> dict[WindowSize, WindowSizeMetadata]:
        result = {}
        offset = 0
        for window_size, manager in self.window_block_managers.items():
            max_token_num = max(window_size, self.settings.limits.max_sequence_length)
            num_pools = manager.pools.get_num_pools()
            result[window_size] = WindowSizeMetadata(
                manager.num_primary_blocks,
                manager.num_secondary_blocks,
                offset,
                num_pools,
                max_token_num,
                ceil_div(max_token_num, self.settings.tokens_per_block),
                manager.max_num_blocks,
                window_size,
                manager.is_swa,
            )
            offset += num_pools
        return result

    def preallocate_blocks(self) -> None:
        """Make all block objects now instead of at their first use."""
        for manager in self.window_block_managers.values():
            manager.eviction_policy.make_all_blocks()
        if gc.isenabled():
            gc.collect()  # now and not during the first requests, since the number of objects has grown

    # -- windows, layers, pools ---------------------------------------------------------------------

    def get_window_block_manager(self, window_size: WindowSize) -> WindowBlockManager:
        """The manager of one window."""
        try:
            return self.window_block_managers[window_size]
        except KeyError:
            raise UnknownIdError(
                f"window {window_size} is not managed; choose one of {list(self.window_block_managers)}"
            ) from None

    @property
    def tokens_per_block(self) -> int:
        """Tokens of a block."""
        return self.settings.tokens_per_block

    @property
    def cache_type(self) -> CacheType:
        """What the cache holds."""
        return self.settings.layers.cache_type

    @property
    def linear_attention_metadata(self) -> LinearAttentionMetadata | None:
        """Sizes of recurrent states, if there are any."""
        return self.settings.layers.linear_attention_metadata

    @property
    def first_window_size(self) -> WindowSize:
        """The smallest window."""
        return next(iter(self.window_block_managers))

    @property
    def last_window_size(self) -> WindowSize:
        """The widest window."""
        return next(reversed(self.window_block_managers))

    def get_layer_window_size(self, layer_idx: int) -> WindowSize:
        """Window of a layer."""
        try:
            return self._layer_to_window_size[layer_idx]
        except KeyError:
            raise UnknownIdError(f"there is no layer {layer_idx}; layers run from 0 to {self.num_layers - 1}") from None

    def get_layer_pool_idx(self, layer_idx: int) -> int:
        """Index of a layer's pool over all windows."""
        window_size = self.get_layer_window_size(layer_idx)
        manager = self.window_block_managers[window_size]
        first = self.window_sizes_metadata[window_size].absolute_pools_offset
        return first + manager.pools.layer_to_pool_index[layer_idx]

    def get_pool_layer_idx(self, layer_idx: int) -> int:
        """Row of a layer inside its pool."""
        manager = self.window_block_managers[self.get_layer_window_size(layer_idx)]
        return manager.pools.layer_to_index_within_pool[layer_idx]

    def get_num_pools(self, include_block_scale_pools: bool = True, include_indexer_k_cache_pools: bool = True) -> int:
        """Pools of all windows."""
        return sum(
            manager.pools.get_num_pools(include_block_scale_pools, include_indexer_k_cache_pools)
            for manager in self.window_block_managers.values()
        )

    @property
    def pools(self) -> list[KVCacheBlockPool]:
        """Pools of all windows, narrowest window first."""
        return self._pools

    def get_pool(self, pool_idx: int) -> KVCacheBlockPool:
        """A pool by its index over all windows, narrowest window first."""
        if not 0 <= pool_idx < len(self._pools):
            raise UnknownIdError(f"there is no pool {pool_idx}; pools run from 0 to {len(self._pools) - 1}")
        return self._pools[pool_idx]

    @property
    def primary_pool_bytes(self) -> int:
        """Bytes of all primary pools."""
        return sum(pool.primary_bytes for pool in self._pools)

    def get_block_by_id(self, block_id: BlockId, window_size: WindowSize) -> KVCacheBlock:
        """A block of a window."""
        check_integer("block id", block_id)
        return self.get_window_block_manager(window_size).get_block_by_id(block_id)

    @property
    def pool_configurations(self) -> list[PoolConfiguration]:
        """Head size (0 for recurrent states) and element type of every window, ascending."""
        return [
            PoolConfiguration(
                window, 0 if manager.is_recurrent_state else manager.pools.size_per_head, manager.pools.dtype
            )
            for window, manager in self.window_block_managers.items()
        ]

    # -- counts -------------------------------------------------------------------------------------

    @property
    def max_num_blocks(self) -> int:
        """Primary and secondary blocks of all windows."""
        return sum(manager.max_num_blocks for manager in self.window_block_managers.values())

    @property
    def num_primary_blocks(self) -> int:
        """Primary blocks of all windows."""
        return sum(manager.num_primary_blocks for manager in self.window_block_managers.values())

    @property
    def num_secondary_blocks(self) -> int:
        """Secondary blocks of all windows."""
        return sum(manager.num_secondary_blocks for manager in self.window_block_managers.values())

    @property
    def num_free_blocks(self) -> int:
        """Free primary blocks of all windows, cached ones included."""
        return sum(manager.num_free_blocks for manager in self.window_block_managers.values())

    @property
    def num_free_secondary_blocks(self) -> int:
        """Free secondary blocks of all windows, cached ones included."""
        return sum(manager.num_free_secondary_blocks for manager in self.window_block_managers.values())

    @property
    def num_allocated_blocks(self) -> int:
        """All blocks minus free primary ones."""
        return self.max_num_blocks - self.num_free_blocks

    @property
    def num_alloc_total_blocks(self) -> int:
        """Blocks taken since construction."""
        return sum(manager.counters.alloc_total for manager in self.window_block_managers.values())

    @property
    def num_alloc_new_blocks(self) -> int:
        """Blocks taken that had never held tokens."""
        return sum(manager.counters.alloc_new for manager in self.window_block_managers.values())

    @property
    def num_reused_blocks(self) -> int:
        """Context blocks found in the cache."""
        return sum(manager.counters.reused for manager in self.window_block_managers.values())

    @property
    def num_missed_blocks(self) -> int:
        """Context blocks not found in the cache."""
        return sum(manager.counters.missed for manager in self.window_block_managers.values())

    def get_num_free_blocks_per_window_size(self) -> dict[WindowSize, int]:
        """Free primary blocks by window."""
        return {window: manager.num_free_blocks for window, manager in self.window_block_managers.items()}

    def count_evictable_blocks(self) -> dict[WindowSize, tuple[int, int]]:
        """Cached blocks that nobody holds, by window: (primary, secondary). Walks the tree."""
        result = {}
        for window, manager in self.window_block_managers.items():
            levels = [block.is_primary for block in manager.matcher.list_blocks() if not block.has_refs]
            result[window] = (sum(levels), len(levels) - sum(levels))
        return result

    def get_and_reset_iteration_stats(self) -> dict[WindowSize, KvCacheIterationStats]:
        """Gauges, and counters since the last call, by window."""
        return {
            window: manager.get_and_reset_iteration_stats() for window, manager in self.window_block_managers.items()
        }

    # -- sequences ------------------------------------------------------------------------------------

    def adjust_blocks_if_needed(self, sequence: GenerationRequest) -> None:
        """Make room for the newest token in every window, narrowest first.

        Where a copy engine fails, the token and what it got so far are taken back.
        """
        managers = self.window_block_managers.values()
        for index, manager in enumerate(managers):
            try:
                manager.adjust_blocks_if_needed(sequence)
            except Exception:
                if not self.settings.compatibility:
                    sequence.num_tokens -= 1
                    manager.drop_unfinished_block(sequence)
                    for done in islice(managers, index):
                        if not sequence.num_tokens % self.settings.tokens_per_block:
                            done.drop_last_position(sequence)
                raise

    def store_context_blocks(self, sequence: GenerationRequest, request: LlmRequest) -> None:
        """Store full blocks computed so far in every window, widest first."""
        for manager in reversed(self.window_block_managers.values()):
            manager.store_context_blocks(sequence, request)

    def store_new_block(self, sequence: GenerationRequest, request: LlmRequest) -> None:
        """Store the newest full block in every window."""
        for manager in self.window_block_managers.values():
            manager.store_new_block(sequence, request)

    def store_blocks_for_reuse(
        self, sequence: GenerationRequest, request: LlmRequest, pin_blocks: bool = False
    ) -> list[BlockId]:
        """Store everything computed so far in every window; returns the ids pinned in the widest."""
        pinned: list[BlockId] = []
        for manager in self.window_block_managers.values():
            pinned = manager.store_blocks_for_reuse(sequence, request, pin_blocks)
        return pinned

    def release_blocks(self, sequence: GenerationRequest, request: LlmRequest | None) -> None:
        """Drop a sequence's blocks; with the request they are stored first.

        Dummy requests, several beams and models with recurrent states store nothing here.
        """
        if request is not None and (
            request.is_dummy_request or sequence.beam_width > 1 or self.linear_attention_metadata is not None
        ):
            request = None
        for manager in self.window_block_managers.values():
            manager.release_blocks(sequence, request)

    def pin_blocks(self, request_id: RequestId) -> None:
        """One reference more on every block a sequence holds, in every window."""
        for manager in self.window_block_managers.values():
            manager.pin_blocks(request_id)

    def unpin_blocks_by_id(self, block_ids: Sequence[BlockId]) -> None:
        """Drop one reference of each block; one window only, as ids belong to a window."""
        if len(self.window_block_managers) != 1:
            raise InvalidInputError(
                f"blocks cannot be unpinned by id with windows {list(self.window_block_managers)}; "
                "ids belong to a window, use a manager with one"
            )
        block_ids = [check_integer("block id", block_id) for block_id in block_ids]
        self.window_block_managers[self.first_window_size].unpin_blocks_by_id(block_ids)

    def copy_linear_attention_block(self, sequence: GenerationRequest, request: LlmRequest) -> bool:
        """Carry recurrent states over a block boundary; whether a copy was issued."""
        copied = [
            manager.copy_linear_attention_block(sequence, request) for manager in self.window_block_managers.values()
        ]
        return any(copied)

    def release_last_block(self, sequence: GenerationRequest, window_size: WindowSize) -> None:
        """Drop the last block of a sequence in one window."""
        self.get_window_block_manager(window_size).release_last_block(sequence)

    def replace_shared_block(self, sequence: GenerationRequest, window_size: WindowSize, block_idx: int) -> None:
        """Give beams blocks of their own at a position."""
        self.get_window_block_manager(window_size).replace_shared_block(sequence, block_idx)

    def update_cache_block_offsets_at_idx(
        self, sequence: GenerationRequest, window_size: WindowSize, block_idx: int
    ) -> None:
        """Write the table entry of one position."""
        write_slot_at(sequence.get_window(window_size), sequence.beam_width, block_idx)

    def offload_block(
        self,
        block: KVCacheBlock,
        window_size: WindowSize,
        mode: KvCacheTransferMode = KvCacheTransferMode.DRAM,
        directory: str = "",
    ) -> None:
        """Move a primary block to the secondary level."""
        self.get_window_block_manager(window_size).offload_block(block, mode, directory)

    def onboard_block(
        self,
        block: KVCacheBlock,
        window_size: WindowSize,
        mode: KvCacheTransferMode = KvCacheTransferMode.DRAM,
        directory: str = "",
    ) -> None:
        """Bring a claimed secondary block to the primary level."""
        self.get_window_block_manager(window_size).onboard_block(block, mode, directory)

    # -- prefix walks -----------------------------------------------------------------------------------

    def analyze_prefix_reuse(self, keys: Sequence[PackedKey]) -> PrefixReuseSummary:
        """Count cached blocks for keys of full blocks; one window only. Changes nothing."""
        if self.is_variable_window:
            raise InvalidInputError(
                f"a prefix summary needs one window, there are {list(self.window_block_managers)}; "
                "ask for the budget of each window without a summary"
            )
        return self.window_block_managers[self.first_window_size].analyze_prefix_reuse(keys)

    def truncate_blocks(self, keys: Sequence[PackedKey], num_tokens_to_keep: int) -> None:
        """Drop cached blocks along a prefix behind the tokens to keep, in every window."""
        for manager in self.window_block_managers.values():
            manager.truncate_blocks(keys, num_tokens_to_keep)

    def reset_reuse_state(self) -> None:
        """Forget everything cached: an empty tree for all windows."""
        self.lookup_tree = UnifiedBlockTree(self.settings.hash_map_order, self.settings.reuse.key_form)
        for manager in self.window_block_managers.values():
            manager.reset_reuse_state(self.lookup_tree)

    # -- scheduling and housekeeping -----------------------------------------------------------------------

    def start_scheduling(self) -> None:
        """Begin a simulation of removals."""
        for manager in self.window_block_managers.values():
            manager.start_scheduling()

    def scheduling_release_blocks(self, request_id: RequestId) -> None:
        """Simulate the removal of a sequence."""
        for manager in self.window_block_managers.values():
            manager.scheduling_release_blocks(request_id)

    def scheduling_has_free_blocks(self, num_required: int, window_size: WindowSize) -> bool:
        """Whether that many blocks of a window are free in the simulation."""
        return self.get_window_block_manager(window_size).scheduling_has_free_blocks(num_required)

    def refresh_blocks(self) -> None:
        """Apply expiries and order compute work behind transfers."""
        for manager in self.window_block_managers.values():
            manager.refresh_blocks()

    def sync_transfer_manager_with_buffer_manager(self) -> None:
        """Order transfers behind compute work."""
        for manager in self.window_block_managers.values():
            manager.sync_transfer_manager_with_buffer_manager()

    def flush_iteration_events(self) -> None:
        """Hand collected events over to readers."""
        if self._event_manager is not None:
            self._event_manager.flush()

    def get_latest_events(self, timeout_ms: float | None = None) -> list[KVCacheEvent]:
        """Flushed events since the last call."""
        if self._event_manager is None and self.settings.compatibility:
            return []
        return self._get_event_manager().get_events(timeout_ms)

    def get_cached_block_events(self) -> list[KVCacheEvent]:
        """Created events, then stored events of every cached block; all have the id of the last event so far."""
        events = self._get_event_manager()
        event_id, rank = events.next_event_id - 1, events.attention_dp_rank
        managers = self.window_block_managers
        created = [
            KVCacheEvent(event_id, KVCacheCreatedData((m.num_primary_blocks, m.num_secondary_blocks)), window, rank)
            for window, m in managers.items()
        ]
        return created + [
            KVCacheEvent(event_id, data, window, rank)
            for window, manager in managers.items()
            for data in manager.describe_cached_blocks()
        ]

    def _get_event_manager(self) -> KVCacheEventManager:
        if self._event_manager is None:
            raise InvalidInputError("events are off; give the manager an event_manager (event_buffer_max_size > 0)")
        return self._event_manager

    def verify_queue_integrity(self, window_size: WindowSize) -> bool:
        """Whether a window's queues are sound."""
        return self.get_window_block_manager(window_size).verify_queue_integrity()
