"""KVCacheManager as the bindings show it: it has a core manager, unwraps what goes in and wraps what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trtkv import errors
from trtkv.bindings._border import CONFIGURATION, bound, bound_class
from trtkv.bindings._keys import BlockKey, UniqueToken
from trtkv.bindings._request import LlmRequest, unwrap, wrap
from trtkv.bindings._types import CacheType, DataType, expect, to_bound_dtype, to_core_dtype
from trtkv.bindings.executor.kv_cache import KVCacheEvent
from trtkv.common import CacheType as CoreCacheType
from trtkv.events.kv_cache_event_manager import KVCacheEventManager as CoreEventManager
from trtkv.manager.kv_cache_manager import KVCacheManager as CoreManager
from trtkv.pools.kv_cache_block_pool import KVCacheBlockPool
from trtkv.pools.pool_tensors import to_torch_dtype
from trtkv.records import linear_attention, window_size_metadata
from trtkv.records.llm_request import LlmRequest as CoreLlmRequest
from trtkv.records.stats import KvCacheIterationStats, KvCacheStats
from trtkv.transfers.copy_engine import BlockCopy, CopyEngine, NullCopyEngine

if TYPE_CHECKING:
    import torch

__all__ = ["KvCacheIterationStats", "KvCacheStats"]

RequestInfo = tuple[int, int, int]


class CacheBlockIds(list[list[int]]):
    """Block ids of a sequence, a list a beam."""


class PrefixReuseSummary:
    """Outcome of one read-only prefix walk."""

    def __init__(self) -> None:
        self._core = window_size_metadata.PrefixReuseSummary(0, 0, None)

    @classmethod
    def wrap(cls, summary: window_size_metadata.PrefixReuseSummary) -> PrefixReuseSummary:
        """What a manager found."""
        wrapped = cls()
        wrapped._core = summary
        return wrapped

    @property
    def core(self) -> window_size_metadata.PrefixReuseSummary:
        """The record of the manager."""
        return self._core

    @property
    def reusable_blocks_allocated(self) -> int:
        """Cached blocks that some sequence holds."""
        return self._core.reusable_blocks_allocated

    @property
    def reusable_blocks_all(self) -> int:
        """Cached blocks."""
        return self._core.reusable_blocks_all

    @property
    def first_new_block(self) -> BlockKey | None:
        """Key of the first block not found."""
        key: Any = self._core.first_new_block
        return None if key is None else BlockKey.wrap(key)


class PoolConfiguration:
    """Head size and element type of the pools that serve one window."""

    def __init__(self, window_size: int = 0, size_per_head: int = 0, dtype: DataType = DataType.HALF) -> None:
        self.window_size = window_size
        self.size_per_head = size_per_head
        self.dtype = expect("dtype", dtype, DataType)

    def to_core(self) -> window_size_metadata.PoolConfiguration:
        """The record that managers take."""
        return window_size_metadata.PoolConfiguration(self.window_size, self.size_per_head, to_core_dtype(self.dtype))


class LinearAttentionMetadata:
    """Sizes and snapshot rules of recurrent states: made empty, then assigned. ``rnn_*`` are only stored."""

    def __init__(self) -> None:
        self.linear_layer_indices: list[int] = []
        self.cache_type = 0
        self.all_recurrent_states_bytes = 0
        self.states_snapshot_interval = 0
        self.save_last_snapshot = False
        self.rnn_num_heads = 0
        self.rnn_head_dim = 0
        self.rnn_d_state = 0
        self.rnn_d_conv = 0
        self.rnn_n_groups = 0
        self.rnn_conv_section_layout: Any = None
        self.rnn_ssm_bytes = 0
        self.rnn_ssm_dtype_size = 0
        self.rnn_conv_dtype_size = 0

    def to_core(self) -> linear_attention.LinearAttentionMetadata:
        """The record that managers take."""
        return linear_attention.LinearAttentionMetadata(
            linear_layer_indices=tuple(self.linear_layer_indices),
            cache_type=self.cache_type,
            all_recurrent_states_bytes=self.all_recurrent_states_bytes,
            states_snapshot_interval=self.states_snapshot_interval,
            save_last_snapshot=self.save_last_snapshot,
        )


@bound_class
class KVCacheEventManager:
    """Collects the events of a manager."""

    def __init__(
        self,
        max_kv_event_entries: int,
        attention_dp_rank: int | None = None,
        attention_dp_size: int | None = None,
        attention_dp_events_gather_period_ms: int = 5,
    ) -> None:
        gather = None
        if attention_dp_size is not None and attention_dp_size > 1:
            gather = _make_gatherer(max_kv_event_entries)
        self._core = CoreEventManager(max_kv_event_entries, attention_dp_rank, gather)

    @property
    def core(self) -> CoreEventManager:
        """The manager of events itself."""
        return self._core


def _make_gatherer(max_kv_event_entries: int) -> Any:
    from trtkv.events.attention_dp_gather import AttentionDpEventGatherer

    try:
        import torch.distributed as dist

        is_ready = dist.is_available() and dist.is_initialized()
    except ImportError:
        is_ready = False
    if not is_ready:
        raise NotImplementedError(
            "events of several ranks are gathered by torch.distributed; call init_process_group first"
        )
    return AttentionDpEventGatherer(max_kv_event_entries)


class KvCacheConnectorManager:
    """Base class of connectors: loads more of a prompt from elsewhere."""

    def __init__(self) -> None:
        """Takes nothing, as in the bindings."""

    def get_num_new_matched_tokens(self, request: LlmRequest, num_computed_tokens: int) -> int:
        """Tokens after those found here that the connector will fill in."""
        raise RuntimeError("get_num_new_matched_tokens is pure; derive a class that answers it")


class _Connector:
    """Asks the caller's connector with the caller's request."""

    def __init__(self, connector: KvCacheConnectorManager) -> None:
        self._connector = connector

    def get_num_new_matched_tokens(self, request: CoreLlmRequest, num_computed_tokens: int) -> int:
        return self._connector.get_num_new_matched_tokens(wrap(request), num_computed_tokens)


def _core_of(request: object) -> CoreLlmRequest | None:
    return None if request is None else unwrap(request)


@bound_class
class BaseKVCacheManager:
    """Base class of KVCacheManager, as in the bindings."""

    _core: CoreManager

    @property
    def core(self) -> CoreManager:
        """The manager itself, for a look inside."""
        return self._core

    # -- sizes ----------------------------------------------------------------------------------------

    @property
    def tokens_per_block(self) -> int:
        """Tokens of a block."""
        return self._core.tokens_per_block

    @property
    def max_num_blocks(self) -> int:
        """Blocks of both levels."""
        return self._core.max_num_blocks

    @property
    def num_pools(self) -> int:
        """Pools."""
        return self._core.num_pools

    @property
    def max_blocks_per_seq(self) -> int:
        """Columns of an offset table."""
        return self._core.max_blocks_per_seq

    @property
    def enable_block_reuse(self) -> bool:
        """Whether cached blocks are looked up."""
        return self._core.enable_block_reuse

    @property
    def cross_kv(self) -> bool:
        """Whether the cache holds encoder states."""
        return self._core.cross_kv

    @property
    def is_variable_window(self) -> bool:
        """Whether layers have different windows."""
        return self._core.is_variable_window

    @property
    def pool_configurations(self) -> list[PoolConfiguration]:
        """What each window's pools hold, defaults filled in."""
        return [
            PoolConfiguration(entry.window_size, entry.size_per_head, to_bound_dtype(entry.dtype))
            for entry in self._core.pool_configurations
        ]

    # -- sequences --------------------------------------------------------------------------------------

    def add_sequence_batch(self, request_infos: list[RequestInfo], llm_requests: list[LlmRequest]) -> None:
        """Admit sequences, given as (id, length, beams)."""
        self._core.add_sequence_batch(request_infos, [unwrap(request) for request in llm_requests])

    def add_token(self, request_id: int) -> None:
        """Make room for one more token."""
        self._core.add_token(request_id)

    def get_token_count(self, request_id: int) -> int:
        """Tokens of a sequence."""
        return self._core.get_token_count(request_id)

    def remove_sequence(
        self, request_id: int, llm_request: LlmRequest | None = None, pin_on_release: bool = False
    ) -> None:
        """Release a sequence; an unknown id is passed over."""
        if request_id in self._core.sequences:
            self._core.remove_sequence(request_id, _core_of(llm_request), pin_on_release)

    def rewind_kv_cache(self, request_id: int, rewind_lengths: int) -> None:
        """Take tokens back; an unknown id is passed over."""
        if request_id in self._core.sequences:
            self._core.rewind_kv_cache(request_id, rewind_lengths)

    def store_context_blocks(self, llm_request: LlmRequest) -> None:
        """Make the full blocks computed so far reusable."""
        self._core.store_context_blocks(unwrap(llm_request))

    def store_blocks_for_reuse(self, request_id: int, llm_request: LlmRequest, pin_blocks: bool = False) -> list[int]:
        """Make everything computed so far reusable; returns the ids pinned."""
        if request_id not in self._core.sequences:
            return []
        return self._core.store_blocks_for_reuse(request_id, unwrap(llm_request), pin_blocks)

    def pin_blocks(self, request_id: int) -> list[int]:
        """Hold the blocks of a sequence; returns their ids."""
        return self._core.pin_blocks(request_id)

    def unpin_blocks_by_id(self, block_ids: Sequence[int], window_size: int | None = None) -> None:
        """Let go of blocks."""
        self._core.unpin_blocks_by_id(block_ids, window_size)

    def truncate_blocks(self, target_tokens: Sequence[int], num_tokens_to_keep: int) -> None:
        """Drop cached blocks along a prefix after the tokens to keep."""
        self._core.truncate_blocks(target_tokens, num_tokens_to_keep)

    def reset_reuse_state(self) -> None:
        """Forget what is cached."""
        self._core.reset_reuse_state()

    def copy_linear_attention_block(self, llm_request: LlmRequest) -> bool:
        """Carry a recurrent state over a block boundary."""
        return self._core.copy_linear_attention_block(unwrap(llm_request))

    def copy_linear_attention_block_batch(self, llm_requests: Sequence[LlmRequest]) -> bool:
        """The same for several requests."""
        return self._core.copy_linear_attention_block_batch([unwrap(request) for request in llm_requests])

    def commit_and_get_block_hashes_for_request(self, llm_request: LlmRequest, window_size: int) -> list[int]:
        """Chain hashes of the full blocks of a request."""
        return self._core.commit_and_get_block_hashes_for_request(unwrap(llm_request), window_size)

    # -- queries ----------------------------------------------------------------------------------------

    def get_cache_block_ids(self, request_id: int, window_size: int) -> CacheBlockIds:
        """Block ids, a list a beam."""
        return CacheBlockIds(self._core.get_cache_block_ids(request_id, window_size))

    def get_batch_cache_block_ids(self, request_ids: Sequence[int], window_size: int) -> list[CacheBlockIds]:
        """``get_cache_block_ids`` for each request."""
        return [self.get_cache_block_ids(request_id, window_size) for request_id in request_ids]

    def get_last_block_id(self, request_id: int) -> int | None:
        """Last block of beam 0."""
        return self._core.get_last_block_id(request_id)

    def get_priority_by_block_id(self, block_id: int, window_size: int) -> int:
        """Retention priority of a block; the default for unknown ones."""
        return self._core.get_priority_by_block_id(block_id, window_size)

    def get_num_front_blocks_removed(self, request_id: int, window_size: int) -> int:
        """Blocks that left a sliding window."""
        return self._core.get_sequence(request_id).get_num_front_blocks_removed(window_size)

    def get_memory_pool_block_indices(self, block_ids: Sequence[int], window_size: int) -> list[int]:
        """Slots of blocks in the primary pool; RuntimeError if one is not there."""
        return self._core.get_memory_pool_block_indices(block_ids, window_size)

    def analyze_prefix_reuse(self, unique_tokens: Any, llm_request: LlmRequest | None = None) -> PrefixReuseSummary:
        """Count cached full blocks of tokens under a request's keys; changes nothing."""
        if llm_request is None and isinstance(unique_tokens, LlmRequest):
            return PrefixReuseSummary.wrap(self._core.analyze_prefix_reuse(unwrap(unique_tokens)))
        request = unwrap(llm_request)
        if isinstance(unique_tokens, (str, bytes)) or not isinstance(unique_tokens, Sequence):
            raise TypeError(f"unique_tokens must be a list of UniqueToken, not {unique_tokens!r}")
        if not all(isinstance(token, UniqueToken) for token in unique_tokens):
            raise TypeError("unique_tokens must be a list of UniqueToken")
        return PrefixReuseSummary.wrap(
            self._core.analyze_prefix_reuse(request, [token.token_id for token in unique_tokens])
        )

    def find_new_context_block(self, unique_tokens: Sequence[UniqueToken], llm_request: LlmRequest) -> BlockKey | None:
        """Key of the first full block that is not cached."""
        return self.analyze_prefix_reuse(unique_tokens, llm_request).first_new_block

    # -- budgets and scheduling ---------------------------------------------------------------------------

    def get_needed_blocks_one_step(
        self,
        req: LlmRequest,
        two_steps_look_ahead: bool,
        window_size: int,
        cached_summary: PrefixReuseSummary | None = None,
    ) -> int:
        """Blocks a request needs for its next step."""
        summary = None if cached_summary is None else cached_summary.core
        return self._core.get_needed_blocks_one_step(unwrap(req), two_steps_look_ahead, window_size, summary)

    def get_remaining_blocks_to_completion(
        self, req: LlmRequest, window_size: int, cached_summary: PrefixReuseSummary | None = None
    ) -> int:
        """Blocks a request will still take until its last token."""
        summary = None if cached_summary is None else cached_summary.core
        return self._core.get_remaining_blocks_to_completion(unwrap(req), window_size, summary)

    def start_scheduling(self) -> None:
        """Begin a simulation of removals."""
        self._core.start_scheduling()

    def scheduling_remove_sequence(self, request_id: int) -> None:
        """Simulate the removal of a sequence."""
        self._core.scheduling_remove_sequence(request_id)

    def scheduling_has_free_blocks(self, num_required: int, window_size: int) -> bool:
        """Whether that many blocks are free in the simulation."""
        return self._core.scheduling_has_free_blocks(num_required, window_size)

    def set_spec_decoding_budget(self, num_extra_kv_tokens: int, draft_token_reserve: int) -> None:
        """Tokens that budgets add for speculative decoding."""
        self._core.set_spec_decoding_budget(num_extra_kv_tokens, draft_token_reserve)

    # -- tables -------------------------------------------------------------------------------------------

    def copy_block_offsets(self, output: torch.Tensor, output_slot_offset: int, request_id: int) -> int:
        """Write a sequence's rows into an offset table; returns the longest row."""
        return self._core.copy_block_offsets(output, output_slot_offset, request_id)

    def copy_batch_block_offsets(
        self, output: torch.Tensor, request_ids: Sequence[int], beam_width: int, offset: int
    ) -> None:
        """The same for several requests; request i begins at row ``i x beam_width + offset``."""
        for index, request_id in enumerate(request_ids):
            self._core.copy_block_offsets(output, index * beam_width + offset, request_id)

    def get_block_offsets_of_batch(
        self, output: torch.Tensor, first_batch_slot_idx: int, batch_size: int, beam_width: int
    ) -> None:
        """The same for the requests of consecutive ids."""
        self._core.get_block_offsets_of_batch(output, first_batch_slot_idx, batch_size, beam_width)

    # -- events, statistics, transfers ------------------------------------------------------------------------

    def get_kv_cache_stats(self) -> KvCacheStats:
        """Totals since construction, a new object each time."""
        return self._core.get_kv_cache_stats()

    def get_iteration_stats(self) -> dict[int, KvCacheIterationStats]:
        """Gauges, and counters since the last call, by window."""
        return self._core.get_iteration_stats()

    def flush_iteration_events(self) -> None:
        """Hand collected events over to readers."""
        self._core.flush_iteration_events()

    def get_latest_events(self, timeout_ms: float | None = None) -> list[KVCacheEvent]:
        """Flushed events since the last call."""
        return [KVCacheEvent(event) for event in self._core.get_latest_events(timeout_ms)]

    def sync_transfer_manager_with_buffer_manager(self) -> None:
        """Order transfers after compute work."""
        self._core.sync_transfer_manager_with_buffer_manager()

    def refresh_blocks(self) -> None:
        """Apply expired durations, and order compute work after transfers."""
        self._core.refresh_blocks()


@bound_class
class KVCacheManager(BaseKVCacheManager):
    """The manager by the constructor of the bindings; its mode is that of ``configure`` when it is made."""

    def __init__(
        self,
        num_kv_heads_per_layer: Sequence[int],
        size_per_head: int,
        tokens_per_block: int,
        blocks_per_window: Mapping[int, tuple[int, int]],
        max_num_sequences: int,
        max_beam_width: int,
        max_attention_window_vec: Sequence[int],
        dtype: DataType,
        sink_token_length: int,
        stream: int,
        max_sequence_length: int,
        chunk_size: int | None = None,
        enable_block_reuse: bool = False,
        cache_type: CacheType = CacheType.SELF,
        secondary_offload_min_priority: int | None = None,
        event_manager: KVCacheEventManager | None = None,
        enable_partial_reuse: bool = True,
        copy_on_partial_reuse: bool = True,
        kv_connector_manager: KvCacheConnectorManager | None = None,
        enable_indexer_k_cache: bool = False,
        indexer_k_cache_quant_block_size: int = 128,
        indexer_k_cache_index_head_dim: int = 0,
        indexer_k_cache_use_fp4: bool = False,
        linear_attention_metadata: LinearAttentionMetadata | None = None,
        pool_configurations: Sequence[PoolConfiguration] = (),
        *,
        indexer_k_cache_layer_mask: Sequence[bool] | None = None,
        **older: Any,
    ) -> None:
        unknown = older.keys() - {"temp_attention_window_inputs", "onboard_blocks"}
        if unknown:
            raise TypeError(f"KVCacheManager got unknown arguments {', '.join(sorted(unknown))}")
        if chunk_size is None and not older:
            raise TypeError("KVCacheManager needs chunk_size")
        expect("dtype", dtype, DataType)
        expect("cache_type", cache_type, CacheType)
        if not isinstance(stream, int) or isinstance(stream, bool):
            raise TypeError(f"stream must be the integer handle of a CUDA stream, not {stream!r}")
        self._allocate = CONFIGURATION.allocate
        self._device = CONFIGURATION.device
        self._event_manager = event_manager
        self._connector = kv_connector_manager
        self._core = CoreManager.from_arguments(
            num_kv_heads_per_layer,
            size_per_head,
            tokens_per_block,
            blocks_per_window,
            max_num_sequences,
            max_beam_width,
            max_attention_window_vec,
            to_core_dtype(dtype),
            sink_token_length,
            max_sequence_length=max_sequence_length,
            chunk_size=chunk_size,
            enable_block_reuse=enable_block_reuse,
            cache_type=CoreCacheType[cache_type.name],
            secondary_offload_min_priority=secondary_offload_min_priority,
            event_manager=None if event_manager is None else event_manager.core,
            enable_partial_reuse=enable_partial_reuse,
            copy_on_partial_reuse=copy_on_partial_reuse,
            kv_cache_connector_manager=None if kv_connector_manager is None else _Connector(kv_connector_manager),
            enable_indexer_k_cache=enable_indexer_k_cache,
            indexer_k_cache_quant_block_size=indexer_k_cache_quant_block_size,
            indexer_k_cache_index_head_dim=indexer_k_cache_index_head_dim,
            indexer_k_cache_use_fp4=indexer_k_cache_use_fp4,
            indexer_k_cache_layer_mask=indexer_k_cache_layer_mask,
            linear_attention_metadata=(
                None if linear_attention_metadata is None else linear_attention_metadata.to_core()
            ),
            pool_configurations=[entry.to_core() for entry in pool_configurations],
            copy_engine=_PoolCopyEngine(),
            compatibility=CONFIGURATION.compatibility,
        )

    # -- memory ---------------------------------------------------------------------------------------

    def allocate_pools(self, use_uvm: bool = False) -> None:
        """Make the pools, on the device of ``configure``; nothing but shapes with ``allocate=False``."""
        if self._allocate:
            self._core.allocate_pools(self._device)

    def release_pools(self) -> None:
        """Let go of the pools; may be called again."""
        self._core.release_pools()

    def _pointers(self, shows_scales: bool) -> torch.Tensor:
        import torch

        tensors = self._core.pool_tensors
        if self._allocate:
            return tensors.block_scale_pool_pointers if shows_scales else tensors.block_pool_pointers
        rows = sum(pool.contains_block_scales == shows_scales for pool in tensors.pools)
        return torch.zeros((rows, 2), dtype=torch.int64)

    def get_block_pool_pointers(self) -> torch.Tensor:
        """int64 [pools, 2]: addresses of primary and secondary memory, 0 where there is none."""
        return self._pointers(False)

    def get_block_scale_pool_pointers(self) -> torch.Tensor:
        """The same for the pools of NVFP4 scales; no rows without them."""
        return self._pointers(True)

    def get_layer_to_pool_mapping(self) -> torch.Tensor:
        """int32 [layers, 2]: pool of each layer and its place there."""
        return self._core.pool_tensors.layer_to_pool_mapping

    def get_primary_pool_data(self, layer_idx: int) -> torch.Tensor:
        """Primary blocks of a layer [blocks, kv, elements]; a meta tensor where no memory is kept."""
        if self._allocate:
            return self._core.pool_tensors.get_primary_pool_data(layer_idx)
        import torch

        mapping = self.get_layer_to_pool_mapping()
        if not 0 <= layer_idx < len(mapping):
            raise errors.UnknownIdError(f"layer {layer_idx} is not in 0..{len(mapping) - 1}")
        pool = [pool for pool in self._core.pool_tensors.pools if not pool.contains_block_scales][mapping[layer_idx, 0]]
        shape = [size for axis, size in enumerate(pool.primary_shape) if axis != (0 if pool.layer_first_layout else 1)]
        return torch.empty(shape, dtype=to_torch_dtype(pool.dtype), device="meta").flatten(2)

    def get_unique_primary_pool(self) -> torch.Tensor:
        """The primary tensor of a manager with one pool."""
        return self._core.get_unique_primary_pool()

    def get_indexer_k_cache_pool_data(self, layer_idx: int) -> torch.Tensor | None:
        """Index keys of a layer, uint8 [blocks, bytes]."""
        return self._core.pool_tensors.get_indexer_k_cache_pool_data(layer_idx)

    def get_indexer_k_cache_pool(self) -> torch.Tensor:
        """The pool of index keys."""
        return self._core.pool_tensors.get_indexer_k_cache_pool()

    def get_recurrent_states_pool(self) -> torch.Tensor:
        """The pool of recurrent states."""
        return self._core.pool_tensors.get_recurrent_states_pool()

    # -- arithmetic ---------------------------------------------------------------------------------------

    calculate_max_num_blocks = staticmethod(bound(lambda *args, **kwargs: _calculate_max_num_blocks(*args, **kwargs)))


def _calculate_max_num_blocks(*args: object, **kwargs: object) -> dict[int, tuple[int, int]]:
    raise NotImplementedError(
        "KVCacheManager.calculate_max_num_blocks is TensorRT-LLM's own arithmetic; "
        "trtkv has trtkv.KVCacheManager.calculate_max_num_blocks"
    )


class _PoolCopyEngine(NullCopyEngine):
    """Moves bytes while the pools have memory, and counts them otherwise: callers plan before they allocate."""

    def __init__(self) -> None:
        self._engine: CopyEngine | None = None

    def copy_block(self, copy: BlockCopy, pools: Sequence[KVCacheBlockPool]) -> int:
        if any(pool.primary is None for pool in pools):
            return super().copy_block(copy, pools)
        if self._engine is None:
            from trtkv.transfers.torch_copy_engine import TorchCopyEngine

            self._engine = TorchCopyEngine()
        return self._engine.copy_block(copy, pools)

    def sync_with_buffer_manager(self) -> None:
        if self._engine is not None:
            self._engine.sync_with_buffer_manager()

    def sync_transfers(self) -> None:
        if self._engine is not None:
            self._engine.sync_transfers()
