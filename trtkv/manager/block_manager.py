"""BlockManager: one WindowBlockManager per attention window, one tree for all of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from trtkv.blocks.block_listener import BlockListener
from trtkv.blocks.generation_request import GenerationRequest
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.blocks.radix_block_tree import UnifiedBlockTree
from trtkv.checks import check_count, check_integer
from trtkv.common import (
    MAX_INT32,
    RECURRENT_STATES,
    BlockId,
    BlocksPerWindow,
    CacheType,
    DataType,
    KeyForm,
    KvCacheTransferMode,
    Priority,
    RequestId,
    WindowSize,
    ceil_div,
)
from trtkv.errors import ConfigurationError, InvalidInputError, UnknownIdError
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.events.kv_cache_events import KVCacheCreatedData, KVCacheEvent
from trtkv.keys.block_key import PackedKey
from trtkv.pools.capacity_estimation import group_layers_by_window_size
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool
from trtkv.records.linear_attention import LinearAttentionMetadata
from trtkv.records.llm_request import LlmRequest
from trtkv.records.retention_config import MAX_RETENTION_PRIORITY, MIN_RETENTION_PRIORITY
from trtkv.records.stats import KvCacheIterationStats
from trtkv.records.window_size_metadata import PoolConfiguration, PrefixReuseSummary, WindowSizeMetadata
from trtkv.transfers.copy_engine import CopyEngine
from trtkv.window_block_manager import WindowBlockManager
from trtkv.window_block_manager.pools import IndexerKCacheSettings
from trtkv.window_block_manager.sequences import write_slot_at
from trtkv.window_block_manager.settings import WindowSettings


class CacheSettings(NamedTuple):
    """Everything a BlockManager is built from, apart from engines, clock and event manager."""

    num_kv_heads_per_layer: Sequence[int]
    size_per_head: int
    tokens_per_block: int
    blocks_per_window: BlocksPerWindow
    max_sequence_length: int
    max_attention_window_vec: Sequence[WindowSize]
    dtype: DataType
    cache_type: CacheType = CacheType.SELF
    secondary_offload_min_priority: Priority | None = None
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    indexer_k_cache: IndexerKCacheSettings | None = None
    linear_attention_metadata: LinearAttentionMetadata | None = None
    pool_configurations: Sequence[PoolConfiguration] = ()
    compatibility: bool = False
    hash_map_order: bool = False
    key_form: KeyForm = KeyForm.TOKENS


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
        _check_settings(settings)
        _check_key_form(settings, event_manager is not None)
        self.settings = settings
        self._event_manager = event_manager
        self._listener = listener
        self.num_layers = len(settings.num_kv_heads_per_layer)
        self.lookup_tree = UnifiedBlockTree(settings.hash_map_order, settings.key_form)
        layers_per_window = group_layers_by_window_size(settings.max_attention_window_vec, self.num_layers)
        self._layer_to_window_size = {layer: window for window, layers in layers_per_window.items() for layer in layers}
        self.is_variable_window = len(layers_per_window) > 1
        self.is_variable_gqa = len(set(settings.num_kv_heads_per_layer)) > 1
        windows = sorted(layers_per_window)
        self.window_block_managers: dict[WindowSize, WindowBlockManager] = {
            window: self._create_window(window, len(windows) - 1 - index, layers_per_window[window], copy_engine, clock)
            for index, window in enumerate(windows)
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
        num_primary, num_secondary = self._blocks_of(window_size)
        is_recurrent = window_size == RECURRENT_STATES
        linear = settings.linear_attention_metadata if is_recurrent else None
        if is_recurrent and linear is None:
            raise ConfigurationError("a recurrent window needs linear_attention_metadata; give the sizes of its states")
        configuration = {entry.window_size: entry for entry in settings.pool_configurations}.get(window_size)
        return WindowBlockManager(
            WindowSettings(
                window_size=window_size,
                channel=channel,
                num_channels=len(set(self._layer_to_window_size.values())),
                tokens_per_block=settings.tokens_per_block,
                is_swa=0 <= window_size < settings.max_sequence_length,
                cache_type=settings.cache_type,
                num_primary_blocks=num_primary,
                num_secondary_blocks=num_secondary,
                num_placeholder_blocks=0 if linear is None else self._num_placeholders(linear),
                enable_partial_reuse=settings.enable_partial_reuse,
                copy_on_partial_reuse=settings.copy_on_partial_reuse,
                linear_attention_metadata=linear,
                key_form=settings.key_form,
                compatibility=settings.compatibility,
            ),
            layers,
            settings.num_kv_heads_per_layer,
            settings.size_per_head if configuration is None else configuration.size_per_head,
            settings.dtype if configuration is None else configuration.dtype,
            self.lookup_tree,
            copy_engine,
            self._event_manager,
            clock,
            settings.secondary_offload_min_priority,
            settings.indexer_k_cache,
            self._listener,
        )

    def _blocks_of(self, window_size: WindowSize) -> tuple[int, int]:
        try:
            num_primary, num_secondary = self.settings.blocks_per_window[window_size]
        except KeyError:
            raise UnknownIdError(
                f"blocks_per_window has no entry for window {window_size}; "
                f"it has {sorted(self.settings.blocks_per_window)}"
            ) from None
        for number, what, least in ((num_primary, "primary", 1), (num_secondary, "secondary", 0)):
            name = f"the number of {what} blocks of window {window_size}"
            check_integer(name, number, most=MAX_INT32, error=ConfigurationError)
            if number < least:
                raise ConfigurationError(f"window {window_size} has {number} {what} blocks; give it at least {least}")
        return num_primary, num_secondary

    def _num_placeholders(self, linear: LinearAttentionMetadata) -> int:
        if linear.num_placeholder_blocks is not None:
            return linear.num_placeholder_blocks
        return self._blocks_of(self.settings.max_sequence_length)[0]

    def _create_metadata(self) -> dict[WindowSize, WindowSizeMetadata]:
        result = {}
        offset = 0
        for window_size, manager in self.window_block_managers.items():
            max_token_num = max(window_size, self.settings.max_sequence_length)
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
        return self.settings.cache_type

    @property
    def linear_attention_metadata(self) -> LinearAttentionMetadata | None:
        """Sizes of recurrent states, if there are any."""
        return self.settings.linear_attention_metadata

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
            request.is_dummy_request or sequence.beam_width > 1 or self.settings.linear_attention_metadata is not None
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
        self.lookup_tree = UnifiedBlockTree(self.settings.hash_map_order, self.settings.key_form)
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


def _check_key_form(settings: CacheSettings, has_events: bool) -> None:
    if settings.key_form is KeyForm.TOKENS:
        return
    reasons = {"a cross cache": settings.cache_type is CacheType.CROSS}
    if settings.key_form is KeyForm.DIGESTS:
        reasons |= {
            "partial reuse": settings.enable_partial_reuse,
            "an event manager": has_events,
            "hash-map order": settings.hash_map_order,
        }
    found = [name for name, applies in reasons.items() if applies]
    if found:
        raise ConfigurationError(
            f"key_form {settings.key_form.value!r} does not go with {' or '.join(found)}, which need the tokens of "
            "blocks; choose one or the other"
        )


def _check_settings(settings: CacheSettings) -> None:
    linear = settings.linear_attention_metadata
    check_count("tokens_per_block", settings.tokens_per_block, 1, error=ConfigurationError)
    check_count("max_sequence_length", settings.max_sequence_length, 1, error=ConfigurationError)
    if not settings.num_kv_heads_per_layer:
        raise ConfigurationError("num_kv_heads_per_layer is empty; give one entry per layer")
    for window_size in settings.max_attention_window_vec:
        if window_size != RECURRENT_STATES:
            check_integer("attention window", window_size, error=ConfigurationError)
            if window_size < 1:
                raise ConfigurationError(f"attention window is {window_size} tokens; give at least 1")
    entries: Mapping[WindowSize, object] = settings.blocks_per_window
    for window_size, counts in entries.items():
        if not isinstance(counts, Sequence) or len(counts) != 2:
            raise ConfigurationError(
                f"blocks_per_window has {counts!r} for window {window_size}; give (primary, secondary) blocks"
            )
    if linear is not None:
        if settings.enable_partial_reuse:
            raise ConfigurationError("recurrent states cannot be reused in part; set enable_partial_reuse=False")
        if linear.states_snapshot_interval < 0 or (linear.num_placeholder_blocks or 0) < 0:
            raise ConfigurationError(
                f"states_snapshot_interval {linear.states_snapshot_interval} or num_placeholder_blocks "
                f"{linear.num_placeholder_blocks} is negative; give 0 or more"
            )
        if linear.states_snapshot_interval % settings.tokens_per_block:
            raise ConfigurationError(
                f"states_snapshot_interval {linear.states_snapshot_interval} is no multiple of "
                f"tokens_per_block {settings.tokens_per_block}"
            )
        if settings.max_sequence_length not in settings.blocks_per_window:
            raise ConfigurationError(
                f"recurrent states need a full-attention window of max_sequence_length "
                f"{settings.max_sequence_length} beside them; windows are {sorted(settings.blocks_per_window)}"
            )
        if linear.all_recurrent_states_bytes < 1:
            raise ConfigurationError(
                f"all_recurrent_states_bytes is {linear.all_recurrent_states_bytes}; give the bytes of a layer's states"
            )
    _check_shapes(settings)
    _check_unique(entry.window_size for entry in settings.pool_configurations)


def _check_shapes(settings: CacheSettings) -> None:
    """Sizes that pools and their tables are made from."""
    for layer, num_heads in enumerate(settings.num_kv_heads_per_layer):
        check_integer(f"the number of KV heads of layer {layer}", num_heads, error=ConfigurationError)
        if num_heads < 1:
            raise ConfigurationError(f"layer {layer} has {num_heads} KV heads; give at least 1")
    for size_per_head in (settings.size_per_head, *(entry.size_per_head for entry in settings.pool_configurations)):
        check_count("size_per_head", size_per_head, 1, error=ConfigurationError)
    indexer = settings.indexer_k_cache
    if indexer is not None and (indexer.quant_block_size < 1 or indexer.index_head_dim < 0):
        raise ConfigurationError(
            f"index keys have head size {indexer.index_head_dim} and {indexer.quant_block_size} elements per scale; "
            "give at least 0 and 1"
        )
    priority = settings.secondary_offload_min_priority
    if priority is not None:
        limits = (MIN_RETENTION_PRIORITY, MAX_RETENTION_PRIORITY)
        check_integer("secondary_offload_min_priority", priority, *limits, error=ConfigurationError)
    unknown = {entry.window_size for entry in settings.pool_configurations} - set(settings.max_attention_window_vec)
    if unknown and not settings.compatibility:
        raise ConfigurationError(
            f"pool_configurations name windows {sorted(unknown)}, no layer has them; "
            f"windows are {sorted(set(settings.max_attention_window_vec))}"
        )


def _check_unique(window_sizes: Iterable[WindowSize]) -> None:
    seen: set[WindowSize] = set()
    for window_size in window_sizes:
        if window_size in seen:
            raise ConfigurationError(f"window {window_size} has two pool configurations; give one per window")
        seen.add(window_size)
