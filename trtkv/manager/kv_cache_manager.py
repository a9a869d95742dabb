"""KVCacheManager: sequences by request id, and the public interface of the cache."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from trtkv.blocks.block_listener import BlockListener
from trtkv.blocks.generation_request import GenerationRequest, find_sequence
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.checks import check_count, check_integer
from trtkv.common import BlockId, CacheType, DataType, KeyForm, Priority, RequestId, TokenId, WindowSize
from trtkv.errors import ConfigurationError, InvalidInputError, UnknownIdError
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.events.kv_cache_events import KVCacheCreatedData, KVCacheEvent
from trtkv.keys.block_key import BlockKey
from trtkv.keys.key_builder import build_block_keys_of
from trtkv.keys.packed_key import PackedKey
from trtkv.manager.behaviour import choose_classes
from trtkv.manager.block_manager import BlockManager
from trtkv.manager.call_rules import get_event_manager
from trtkv.manager.offset_table_writer import OffsetTableWriter
from trtkv.manager.sequence_admission import KvCacheConnectorManager, RequestInfo
from trtkv.pools import capacity_estimation
from trtkv.pools.pool_tensors import PoolTensors
from trtkv.records.cache_settings import (
    CacheSettings,
    EvictionSettings,
    IndexerKCacheSettings,
    LayerSettings,
    ReuseSettings,
    SequenceLimits,
    WindowsSettings,
)
from trtkv.records.linear_attention import LinearAttentionMetadata
from trtkv.records.llm_request import LlmRequest
from trtkv.records.pinned_block_ids import PinnedBlockIds
from trtkv.records.retention_config import DEFAULT_RETENTION_PRIORITY, DEFAULT_SECONDARY_OFFLOAD_MIN_PRIORITY
from trtkv.records.stats import KvCacheIterationStats, KvCacheStats
from trtkv.records.token_array import to_token_array
from trtkv.records.window_size_metadata import (
    OffsetTableDimensions,
    PoolConfiguration,
    PrefixReuseSummary,
    WindowSizeMetadata,
)
from trtkv.transfers.copy_engine import CopyEngine, NullCopyEngine

if TYPE_CHECKING:
    import torch

__all__ = ["KVCacheManager", "KvCacheConnectorManager", "RequestInfo"]

_NO_SETTINGS: Final = cast(CacheSettings, None)  # so that a call without settings is answered like one with others


class KVCacheManager:
    """Cache of one model on one rank: sequences, reuse, eviction, offloading, budgets. C++: KVCacheManager.

    ``settings`` says what the manager does; ``from_arguments`` takes the arguments of the original's constructor
    instead. ``clock`` returns nanoseconds and drives retention durations. ``copy_engine`` moves the bytes; without one
    only the bookkeeping is done. ``block_listener`` is told, block by block, what leaves the tree and why. Calls are
    serialised by one re-entrant lock. A call that raises has changed nothing.
    """

    def __init__(
        self,
        settings: CacheSettings = _NO_SETTINGS,
        *moved: NoReturn,
        clock: Callable[[], int] = time.monotonic_ns,
        copy_engine: CopyEngine | None = None,
        event_manager: KVCacheEventManager | None = None,
        block_listener: BlockListener | None = None,
        kv_cache_connector_manager: KvCacheConnectorManager | None = None,
        **moved_by_name: NoReturn,
    ) -> None:
        if moved or moved_by_name or not isinstance(settings, CacheSettings):
            raise TypeError(
                "KVCacheManager takes a CacheSettings; give the arguments of the original's constructor "
                "(num_kv_heads_per_layer, ...) to KVCacheManager.from_arguments"
            )
        self._block_manager = manager = BlockManager(
            settings, NullCopyEngine() if copy_engine is None else copy_engine, event_manager, clock, block_listener
        )
        if kv_cache_connector_manager is not None and manager.is_variable_window:
            raise ConfigurationError("a connector works with one window only; use one window or no connector")
        if settings.preallocate_blocks:
            manager.preallocate_blocks()
        limits = settings.limits
        self._settings = settings
        self._tokens_per_block = tokens_per_block = settings.tokens_per_block
        self._max_beam_width = max_beam_width = limits.max_beam_width
        self._chunk_size = limits.max_sequence_length if limits.chunk_size is None else limits.chunk_size
        self._enable_block_reuse = enable_block_reuse = settings.reuse.enable_block_reuse
        self._lock = threading.RLock()
        self._sequences: dict[RequestId, GenerationRequest] = {}
        self._windows = list(manager.window_block_managers.values())  # narrowest first
        self._event_manager = event_manager
        classes = choose_classes(settings.compatibility)
        self._rules = classes.rules(settings)
        self._budget = classes.budget(
            manager,
            self._sequences,
            self.analyze_prefix_reuse,
            chunk_size=self._chunk_size,
            max_beam_width=max_beam_width,
            enable_block_reuse=enable_block_reuse,
        )
        max_num_tokens = self.max_blocks_per_seq * tokens_per_block  # that block tables have columns for
        self._admission = classes.admission(
            manager,
            self._sequences,
            kv_cache_connector_manager,
            max_num_tokens=max_num_tokens,
            max_beam_width=max_beam_width,
            enable_block_reuse=enable_block_reuse,
        )
        self._growth = classes.growth(manager, self._sequences, max_num_tokens=max_num_tokens)
        self._offset_table_writer = OffsetTableWriter(manager)
        self._pool_tensors = PoolTensors(
            manager.pools,
            [(manager.get_layer_pool_idx(i), manager.get_pool_layer_idx(i)) for i in range(manager.num_layers)],
        )

    @classmethod
    def from_arguments(
        cls,
        num_kv_heads_per_layer: Sequence[int],
        size_per_head: int,
        tokens_per_block: int,
        blocks_per_window: Mapping[WindowSize, Sequence[int]],
        max_num_sequences: int,
        max_beam_width: int,
        max_attention_window_vec: Sequence[WindowSize],
        dtype: DataType = DataType.HALF,
        sink_token_length: int = 0,
        *,
        max_sequence_length: int,
        chunk_size: int | None = None,
        enable_block_reuse: bool = True,
        cache_type: CacheType = CacheType.SELF,
        secondary_offload_min_priority: Priority | None = None,
        event_manager: KVCacheEventManager | None = None,
        enable_partial_reuse: bool = True,
        copy_on_partial_reuse: bool = True,
        kv_cache_connector_manager: KvCacheConnectorManager | None = None,
        enable_indexer_k_cache: bool = False,
        indexer_k_cache_quant_block_size: int = 128,
        indexer_k_cache_index_head_dim: int = 0,
        indexer_k_cache_use_fp4: bool = False,
        indexer_k_cache_layer_mask: Sequence[bool] | None = None,
        linear_attention_metadata: LinearAttentionMetadata | None = None,
        pool_configurations: Sequence[PoolConfiguration] = (),
        copy_engine: CopyEngine | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        compatibility: bool = False,
        hash_map_order: bool | None = None,
        key_form: KeyForm = KeyForm.TOKENS,
        preallocate_blocks: bool = False,
        block_listener: BlockListener | None = None,
        eviction: object = EvictionSettings().eviction,
    ) -> KVCacheManager:
        """A manager by the arguments of the original's constructor, in its order. C++: KVCacheManager::KVCacheManager.

        ``blocks_per_window`` maps each window of ``max_attention_window_vec`` (layer l takes entry l modulo its
        length) to (primary, secondary) blocks. See CacheSettings for what each argument means.
        """
        if sink_token_length:
            raise ConfigurationError(f"sink_token_length is {sink_token_length}; sink tokens are not supported, give 0")
        indexer = None
        if enable_indexer_k_cache:
            indexer = IndexerKCacheSettings(
                indexer_k_cache_quant_block_size,
                indexer_k_cache_index_head_dim,
                indexer_k_cache_use_fp4,
                indexer_k_cache_layer_mask,
            )
        settings = CacheSettings(
            tokens_per_block=tokens_per_block,
            layers=LayerSettings(
                num_kv_heads_per_layer,
                size_per_head,
                dtype,
                cache_type,
                indexer,
                linear_attention_metadata,
            ),
            windows=WindowsSettings(max_attention_window_vec, blocks_per_window, pool_configurations),
            limits=SequenceLimits(max_sequence_length, max_num_sequences, max_beam_width, chunk_size),
            reuse=ReuseSettings(
                enable_block_reuse, enable_partial_reuse, copy_on_partial_reuse, hash_map_order, key_form
            ),
            eviction=EvictionSettings(
                eviction,
                DEFAULT_SECONDARY_OFFLOAD_MIN_PRIORITY
                if secondary_offload_min_priority is None
                else secondary_offload_min_priority,
            ),
            preallocate_blocks=preallocate_blocks,
            compatibility=compatibility,
        )
        return cls(
            settings,
            clock=clock,
            copy_engine=copy_engine,
            event_manager=event_manager,
            block_listener=block_listener,
            kv_cache_connector_manager=kv_cache_connector_manager,
        )

    # -- properties ---------------------------------------------------------------------------------

    @property
    def block_manager(self) -> BlockManager:
        """Blocks of all windows."""
        return self._block_manager

    @property
    def settings(self) -> CacheSettings:
        """What the manager was built from."""
        return self._settings

    @property
    def sequences(self) -> Mapping[RequestId, GenerationRequest]:
        """Sequences by request id."""
        return self._sequences

    @property
    def compatibility(self) -> bool:
        """Whether the recorded behaviour of the reference is reproduced, faults included."""
        return self._settings.compatibility

    @property
    def tokens_per_block(self) -> int:
        """Tokens of a block."""
        return self._tokens_per_block

    @property
    def max_num_blocks(self) -> int:
        """Primary and secondary blocks of all windows."""
        return sum(manager.settings.max_num_blocks for manager in self._windows)

    @property
    def used_num_blocks(self) -> int:
        """All blocks minus free primary ones."""
        return self.max_num_blocks - self.num_free_blocks

    @property
    def num_free_blocks(self) -> int:
        """Free primary blocks of all windows, cached ones included."""
        return sum(manager.num_free_blocks for manager in self._windows)

    @property
    def num_pools(self) -> int:
        """Pools of all windows, those of scales and index keys included."""
        return self._block_manager.get_num_pools()

    @property
    def num_reused_blocks(self) -> int:
        """Context blocks found in the cache since construction."""
        return sum(manager.counters.reused for manager in self._windows)

    @property
    def num_missed_blocks(self) -> int:
        """Context blocks not found in the cache since construction."""
        return sum(manager.counters.missed for manager in self._windows)

    @property
    def num_alloc_total_blocks(self) -> int:
        """Blocks taken since construction."""
        return sum(manager.counters.alloc_total for manager in self._windows)

    @property
    def num_alloc_new_blocks(self) -> int:
        """Blocks taken that had never held tokens."""
        return sum(manager.counters.alloc_new for manager in self._windows)

    @property
    def enable_block_reuse(self) -> bool:
        """Whether cached blocks are looked up and stored."""
        return self._enable_block_reuse

    @property
    def key_form(self) -> KeyForm:
        """How the tokens of full blocks are kept."""
        return self._settings.reuse.key_form

    @property
    def enable_partial_reuse(self) -> bool:
        """Whether a block may be matched by its first tokens only."""
        return self._settings.reuse.enable_partial_reuse

    @property
    def enable_indexer_k_cache(self) -> bool:
        """Whether index-key pools stand beside the pools."""
        return self._settings.layers.indexer_k_cache is not None

    @property
    def indexer_k_cache_index_head_dim(self) -> int:
        """Head size of index keys; 0 without them."""
        indexer = self._settings.layers.indexer_k_cache
        return 0 if indexer is None else indexer.index_head_dim

    @property
    def indexer_k_cache_quant_block_size(self) -> int:
        """Index-key elements that share a scale; 0 without them."""
        indexer = self._settings.layers.indexer_k_cache
        return 0 if indexer is None else indexer.quant_block_size

    @property
    def indexer_k_cache_use_fp4(self) -> bool:
        """Whether index keys are stored in 4 bits."""
        indexer = self._settings.layers.indexer_k_cache
        return indexer is not None and indexer.use_fp4

    @property
    def cross_kv(self) -> bool:
        """Whether the cache holds encoder states for cross attention."""
        return self.cache_type is CacheType.CROSS

    @property
    def cache_type(self) -> CacheType:
        """What the cache holds."""
        return self._settings.layers.cache_type

    @property
    def max_beam_width(self) -> int:
        """Largest number of beams of a sequence."""
        return self._max_beam_width

    @property
    def chunk_size(self) -> int:
        """Largest context chunk in tokens; budgets only."""
        return self._chunk_size

    @property
    def max_attention_window(self) -> WindowSize:
        """The widest window."""
        return self._block_manager.last_window_size

    @property
    def max_sequence_length(self) -> int:
        """Longest sequence in tokens."""
        return self._settings.limits.max_sequence_length

    @property
    def max_blocks_per_seq(self) -> int:
        """Blocks of the longest sequence in the widest window."""
        return self.offset_table_dimensions.max_blocks_per_seq

    @property
    def window_sizes_metadata(self) -> Mapping[WindowSize, WindowSizeMetadata]:
        """What is allotted to each window, ascending."""
        return self._block_manager.window_sizes_metadata

    @property
    def is_variable_window(self) -> bool:
        """Whether layers have different windows."""
        return self._block_manager.is_variable_window

    @property
    def is_variable_gqa(self) -> bool:
        """Whether layers have different head counts."""
        return self._block_manager.is_variable_gqa

    @property
    def offset_table_dimensions(self) -> OffsetTableDimensions:
        """Extent of the offset table: as wide as the widest window, one plane per pool."""
        widest = self.window_sizes_metadata[self.max_attention_window]
        return OffsetTableDimensions(widest.max_blocks_per_seq, self.num_pools, self.cache_type)

    @property
    def num_free_blocks_per_window_size(self) -> dict[WindowSize, int]:
        """Free primary blocks by window."""
        return {manager.settings.window_size: manager.num_free_blocks for manager in self._windows}

    @property
    def num_extra_kv_tokens(self) -> int:
        """Slots that budgets add behind every prompt."""
        return self._budget.num_extra_kv_tokens

    @property
    def draft_token_reserve(self) -> int:
        """Drafts that budgets assume at least, and by which a sliding window can be rewound."""
        return self._budget.draft_token_reserve

    # -- admission ------------------------------------------------------------------------------------

    def add_sequence_batch(self, request_infos: Sequence[RequestInfo], llm_requests: Sequence[LlmRequest]) -> None:
        """Admit sequences: take what is cached, allocate the rest of every prompt. C++: addSequenceBatch.

        Windows go from the widest to the narrowest; in each, all requests claim before any allocates. With
        reuse on, the length found (the minimum over windows) is written to each request, which moves its
        position and ends its chunk on a block boundary. Raises OutOfBlocksError without room, InvalidInputError
        for a known id, a prompt shorter than the input length, or a match that leaves nothing to compute.
        """
        if len(request_infos) != len(llm_requests):
            raise InvalidInputError(f"{len(request_infos)} infos for {len(llm_requests)} requests; give one for each")
        if not request_infos:
            return
        with self._lock:
            self._admission.add_batch(request_infos, llm_requests)

    def add_sequence(self, request_info: RequestInfo, llm_request: LlmRequest) -> None:
        """Admit one sequence; see ``add_sequence_batch``."""
        self.add_sequence_batch([request_info], [llm_request])

    # -- growing and shrinking --------------------------------------------------------------------------

    def get_sequence(self, request_id: RequestId) -> GenerationRequest:
        """The sequence of a request."""
        return find_sequence(self._sequences, request_id)

    def add_token(self, request_id: RequestId) -> None:
        """Make room for one more token. C++: addToken.

        Raises OutOfBlocksError if a window needs a block and has none. Most tokens only count, without the lock.
        """
        growth = self._growth
        try:
            sequence = self._sequences[request_id]
        except KeyError:
            sequence = self.get_sequence(request_id)  # which names the unknown one
        num_tokens = sequence.num_tokens + 1
        if num_tokens % growth.period != growth.phase:  # counted here, as one more call would be felt
            sequence.num_tokens = num_tokens
            return
        with self._lock:
            growth.grow(self.get_sequence(request_id))  # another thread may have removed it in the meantime

    def add_tokens(self, request_ids: Iterable[RequestId]) -> None:
        """``add_token`` for a decode batch, in order: for all, or, where one fails, for none."""
        with self._lock:
            self._growth.add_tokens(request_ids)

    def add_token_rounds(self, request_ids: Iterable[RequestId], num_rounds: int) -> None:
        """``add_tokens(request_ids)`` this many times: decode steps between which nothing else happens.

        The steps before a failing one stay.
        """
        check_integer("num_rounds", num_rounds)
        if num_rounds < 0:
            raise InvalidInputError(f"{num_rounds} rounds of decoding; give 0 or more, and rewind_kv_cache to go back")
        with self._lock:
            self._growth.add_token_rounds(request_ids, num_rounds)

    def rewind_kv_cache(self, request_id: RequestId, rewind_lengths: int) -> None:
        """Drop the last tokens of a sequence, with blocks no longer needed; unknown ids are ignored.

        C++: rewindKVCache.
        """
        with self._lock:
            sequence = self._sequences.get(request_id)
            if sequence is not None:
                self._growth.rewind(sequence, rewind_lengths)

    def remove_sequence(
        self, request_id: RequestId, llm_request: LlmRequest | None = None, pin_on_release: bool = False
    ) -> None:
        """Drop a sequence; with its request, its blocks are stored for reuse first. Unknown ids are ignored.

        Nothing is stored with reuse off, for dummy requests, several beams, or beside recurrent states.
        ``pin_on_release`` keeps the reference's signature and has no effect, as there. C++: removeSequence.
        """
        with self._lock:
            sequence = self._sequences.get(request_id)
            if sequence is None:
                return
            if llm_request is not None:
                self._rules.check_request(request_id, llm_request)
                if (
                    not self._enable_block_reuse
                    or llm_request.is_dummy_request
                    or sequence.beam_width > 1
                    or self._settings.layers.linear_attention_metadata is not None
                ):
                    llm_request = None  # nothing is stored
            if llm_request is not None:
                for manager in self._windows:
                    manager.storer.store_blocks_for_reuse(sequence, llm_request)
            for manager in self._windows:  # after all are stored, as storing may fail
                manager.releaser.release_blocks(request_id)
            del self._sequences[request_id]

    # -- storing, pins, truncation ------------------------------------------------------------------------

    def store_context_blocks(self, llm_request: LlmRequest) -> None:
        """Store the full blocks computed so far for reuse; nothing for unknown or dummy requests.

        C++: storeContextBlocks.
        """
        with self._lock:
            sequence = self._sequences.get(llm_request.request_id)
            if sequence is not None and self._enable_block_reuse and not llm_request.is_dummy_request:
                for manager in reversed(self._windows):
                    manager.storer.store_context_blocks(sequence, llm_request)

    def store_new_block(self, llm_request: LlmRequest) -> None:
        """Store the newest block if the newest token has just opened the next one. C++: storeNewBlock."""
        with self._lock:
            sequence = self.get_sequence(llm_request.request_id)
            if sequence.beam_width == 1 and self._enable_block_reuse:
                for manager in self._windows:
                    manager.storer.store_new_block(sequence, llm_request)

    def store_blocks_for_reuse(
        self, request_id: RequestId, llm_request: LlmRequest, pin_blocks: bool = False
    ) -> PinnedBlockIds:
        """Store everything computed so far; returns the ids pinned in the widest window. C++: storeBlocksForReuse.

        The list also knows the ids pinned in the other windows, so ``unpin_blocks_by_id`` takes back all of them. A
        call that raises has pinned nothing.
        """
        with self._lock:
            sequence = self.get_sequence(request_id)
            self._rules.check_request(request_id, llm_request)
            pinned: dict[WindowSize, list[BlockId]] = {}
            try:
                for manager in self._windows:
                    ids = manager.storer.store_blocks_for_reuse(sequence, llm_request, pin_blocks)
                    pinned[manager.settings.window_size] = ids
            except Exception:
                self._unpin(pinned)
                raise
            return self._describe_pins(pinned)

    def pin_blocks(self, request_id: RequestId) -> PinnedBlockIds:
        """One reference more on every block a sequence holds, so that they outlive it. C++: pinBlocks.

        Returns what ``unpin_blocks_by_id`` takes back: an id for each position and beam.
        """
        with self._lock:
            self.get_sequence(request_id)
            pinned = {
                manager.settings.window_size: manager.releaser.pin_blocks(request_id) for manager in self._windows
            }
            return self._describe_pins(pinned)

    def unpin_blocks_by_id(self, block_ids: Sequence[BlockId], window_size: WindowSize | None = None) -> None:
        """Drop one pin of each block, or of none if one has too few. C++: unpinBlocksById.

        What a call pinned is given as it was returned and is taken back in all windows. Other lists of ids need the
        window they belong to, unless there is only one.
        """
        others: Mapping[WindowSize, Sequence[BlockId]] = {}
        if window_size is None:
            if isinstance(block_ids, PinnedBlockIds):
                others = block_ids.of_other_windows
            elif self.is_variable_window:
                raise InvalidInputError(
                    f"blocks cannot be unpinned by id with windows {list(self.window_sizes_metadata)}; ids belong to a "
                    "window: give window_size, or the list that pinning returned"
                )
            window_size = self.max_attention_window
        pinned = {window_size: block_ids, **others}
        checked = {window: [check_integer("block id", block_id) for block_id in ids] for window, ids in pinned.items()}
        with self._lock:
            self._unpin(checked)

    def _unpin(self, pinned: Mapping[WindowSize, Sequence[BlockId]]) -> None:
        parts = [(self._block_manager.get_window_block_manager(window).releaser, ids) for window, ids in pinned.items()]
        for releaser, ids in parts:
            releaser.check_can_unpin(ids)
        for releaser, ids in parts:
            releaser.unpin_blocks_by_id(ids)

    def _describe_pins(self, pinned: dict[WindowSize, list[BlockId]]) -> PinnedBlockIds:
        return PinnedBlockIds(pinned.pop(self.max_attention_window), pinned)

    def truncate_blocks(self, target_tokens: Iterable[TokenId], num_tokens_to_keep: int) -> None:
        """Drop what is cached of a token sequence behind a prefix, with everything below. C++: truncateBlocks.

        Works on whole blocks of unconstrained keys; the block in which the prefix ends, and one that starts
        right behind it, stay. Sequences keep the blocks they hold.
        """
        check_count("num_tokens_to_keep", num_tokens_to_keep)
        tokens = to_token_array(target_tokens)
        width = self._tokens_per_block
        keys: list[PackedKey] = [tokens[i : i + width].tobytes() for i in range(0, len(tokens), width)]
        with self._lock:
            for manager in self._windows:
                manager.releaser.truncate_blocks(keys, num_tokens_to_keep)

    def reset_reuse_state(self) -> None:
        """Forget everything cached. C++: resetReuseState."""
        with self._lock:
            self._block_manager.reset_reuse_state()

    def copy_linear_attention_block(self, llm_request: LlmRequest) -> bool:
        """Carry recurrent states over a block boundary; call before each forward step. Whether a copy was issued.

        C++: copyLinearAttentionBlock.
        """
        is_known = llm_request.request_id in self._sequences
        if not self._enable_block_reuse and not (is_known and self._rules.copies_states_without_reuse):
            return False
        with self._lock:
            sequence = self.get_sequence(llm_request.request_id)
            copied = [manager.sequences.copy_linear_attention_block(sequence, llm_request) for manager in self._windows]
        return any(copied)

    def copy_linear_attention_block_batch(self, llm_requests: Iterable[LlmRequest]) -> bool:
        """``copy_linear_attention_block`` for each request; whether any copy was issued."""
        copied = [self.copy_linear_attention_block(request) for request in llm_requests]
        return any(copied)

    def commit_and_get_block_hashes_for_request(self, llm_request: LlmRequest, window_size: WindowSize) -> list[int]:
        """Chain hashes of a sequence's full blocks, the newest token included. One beam only.

        Blocks that are not cached are keyed and hashed now; cached ones stay as listeners know them.
        C++: commitAndGetBlockHashesForRequest.
        """
        if llm_request.beam_width != 1:
            raise InvalidInputError(
                f"request {llm_request.request_id} has {llm_request.beam_width} beams; hashes need one"
            )
        with self._lock:
            window = self.get_sequence(llm_request.request_id).get_window(window_size)
            if window.num_front_blocks_removed:
                raise InvalidInputError(
                    f"request {llm_request.request_id} has left window {window_size} by "
                    f"{window.num_front_blocks_removed} blocks; their hashes are gone"
                )
            num_full = llm_request.get_num_tokens(0) // self._tokens_per_block
            limit = min(num_full, len(window.block_ids[0]))
            tokens = llm_request.get_tokens(0)
            size = self._tokens_per_block
            keys = build_block_keys_of(llm_request, tokens, size, limit * size, False)
            blocks = window.held[:: llm_request.beam_width][:limit]
            return self._rules.commit_hashes(blocks, keys)

    # -- budgets --------------------------------------------------------------------------------------------

    def set_spec_decoding_budget(self, num_extra_kv_tokens: int, draft_token_reserve: int) -> None:
        """Tokens that budgets add to every prompt, and drafts to budget for at least. C++: setSpecDecodingBudget.

        Sliding windows keep that many tokens more, so that rejected drafts can be rewound.
        """
        check_count("num_extra_kv_tokens", num_extra_kv_tokens)
        check_count("draft_token_reserve", draft_token_reserve)
        self._budget.num_extra_kv_tokens = num_extra_kv_tokens
        self._budget.draft_token_reserve = draft_token_reserve
        self._rules.set_rewind_reserve(self._windows, draft_token_reserve)

    def analyze_prefix_reuse(
        self, llm_request: LlmRequest, tokens: Sequence[TokenId] | None = None
    ) -> PrefixReuseSummary:
        """Count cached full blocks of a request's tokens (beam 0, or those given). One window only.

        A cross cache counts those of the encoder input, whatever is given. Changes nothing. C++: analyzePrefixReuse.
        """
        with self._lock:
            keys = self._rules.build_summary_keys(llm_request, tokens)
            if self.is_variable_window:
                raise InvalidInputError(
                    f"a prefix summary needs one window, there are {list(self.window_sizes_metadata)}; "
                    "ask for the budget of each window without a summary"
                )
            return self._windows[0].matcher.analyze_prefix_reuse(keys, self._windows[0].releaser.is_held)

    def probe_prefix_match_length(self, llm_request: LlmRequest) -> int:
        """Prompt tokens that admission would find now: the minimum over windows. Changes and holds nothing."""
        if not self._enable_block_reuse:
            return 0
        with self._lock:
            return self._admission.probe(llm_request)

    def get_needed_blocks_one_step(
        self,
        llm_request: LlmRequest,
        two_steps_look_ahead: bool,
        window_size: WindowSize,
        cached_summary: PrefixReuseSummary | None = None,
    ) -> int:
        """Blocks a request needs in a window for its next step (or two). C++: getNeededBlocksOneStep.

        Writes the request's estimated reusable tokens: cached blocks of a first chunk, else 0. Only cached
        blocks that are held lower the need, as free ones count as free already.
        """
        with self._lock:
            return self._budget.get_needed_blocks_one_step(
                llm_request, two_steps_look_ahead, window_size, cached_summary
            )

    def get_remaining_blocks_to_completion(
        self,
        llm_request: LlmRequest,
        window_size: WindowSize,
        cached_summary: PrefixReuseSummary | None = None,
    ) -> int:
        """Blocks a request will still take in a window until its last token. C++: getRemainingBlocksToCompletion.

        Writes the request's estimated reusable tokens as ``get_needed_blocks_one_step`` does. May be negative in
        compatibility mode.
        """
        with self._lock:
            return self._budget.get_remaining_blocks_to_completion(llm_request, window_size, cached_summary)

    def get_num_step_drafts(self, llm_request: LlmRequest, num_draft_tokens: int) -> int:
        """How many of so many drafts the next step of a request needs slots for: those that can become tokens.

        The token of the step itself is not counted. Budgets count no more, so whoever grows sequences asks here first.
        A request that is past its ``max_new_tokens``, or has none, is not limited.
        """
        with self._lock:
            return self._budget.get_num_step_drafts(llm_request, num_draft_tokens)

    def get_num_final_drafts(self, llm_request: LlmRequest, num_draft_tokens: int) -> int:
        """How many of so many drafts have slots behind the last token of a request: none if it tells its length."""
        return self._budget.get_num_final_drafts(llm_request, num_draft_tokens)

    def get_max_capacity_batch_size(self, input_length: int, output_length: int) -> int:
        """Sequences of these lengths that fit at once: the minimum over windows. C++: getMaxCapacityBatchSize."""
        check_count("input_length", input_length, self._rules.least_input_length)
        check_count("output_length", output_length)
        return self._budget.get_max_capacity_batch_size(input_length, output_length)

    # -- scheduling simulation --------------------------------------------------------------------------------

    def start_scheduling(self) -> None:
        """Begin a simulation of removals. C++: startScheduling."""
        with self._lock:
            for manager in self._windows:
                manager.releaser.start_scheduling()

    def scheduling_remove_sequence(self, request_id: RequestId) -> None:
        """Simulate the removal of a sequence. C++: schedulingRemoveSequence."""
        with self._lock:
            for manager in self._windows:
                manager.releaser.scheduling_release_blocks(request_id)

    def scheduling_has_free_blocks(self, num_required: int, window_size: WindowSize) -> bool:
        """Whether that many blocks of a window are free in the simulation."""
        return self._block_manager.get_window_block_manager(window_size).releaser.scheduling_has_free_blocks(
            num_required
        )

    def get_scheduling_ref_count(self, block_id: BlockId, window_size: WindowSize) -> int:
        """References of a block that are left in the simulation."""
        check_integer("block id", block_id)
        with self._lock:
            return self._block_manager.get_window_block_manager(window_size).releaser.get_scheduling_ref_count(block_id)

    def scheduling_num_free_blocks(self, window_size: WindowSize) -> int:
        """Free blocks of a window in the simulation."""
        return self._block_manager.get_window_block_manager(window_size).releaser.scheduling_num_free_blocks

    # -- queries ------------------------------------------------------------------------------------------------

    def get_token_count(self, request_id: RequestId) -> int:
        """Tokens of a sequence."""
        return self.get_sequence(request_id).num_tokens

    def get_cache_block_ids(self, request_id: RequestId, window_size: WindowSize) -> list[list[BlockId]]:
        """Block ids per beam (a copy); positions that left a sliding window keep their old id."""
        with self._lock:
            return [list(ids) for ids in self.get_sequence(request_id).get_cache_block_ids(window_size)]

    def get_batch_cache_block_ids(
        self, request_ids: Iterable[RequestId], window_size: WindowSize
    ) -> list[list[list[BlockId]]]:
        """``get_cache_block_ids`` for each request."""
        return [self.get_cache_block_ids(request_id, window_size) for request_id in request_ids]

    def get_memory_pool_block_indices(self, block_ids: Iterable[BlockId], window_size: WindowSize) -> list[int]:
        """Slots of blocks in the primary pool. Raises InvalidInputError if a block is not there."""
        with self._lock:
            blocks = [self._block_manager.get_block_by_id(block_id, window_size) for block_id in block_ids]
        for block in blocks:
            if not block.is_primary:
                raise InvalidInputError(
                    f"block {block.block_id} of window {window_size} is not in device memory; bring it back first"
                )
        return [block.memory_pool_block_index for block in blocks]

    def get_last_block_id(self, request_id: RequestId) -> BlockId | None:
        """Last block of beam 0 in the smallest window."""
        with self._lock:
            ids = self.get_sequence(request_id).get_cache_block_ids(self._block_manager.first_window_size)[0]
            return ids[-1] if ids else None

    def get_priority_by_block_id(self, block_id: BlockId, window_size: WindowSize) -> Priority:
        """Retention priority of a block; the default for unknown blocks and windows."""
        with self._lock:
            try:
                return self._block_manager.get_block_by_id(block_id, window_size).priority
            except UnknownIdError:
                return DEFAULT_RETENTION_PRIORITY

    def find_blocks_in_reuse_tree_by_block_key(
        self, block_key: PackedKey | BlockKey, window_size: WindowSize
    ) -> KVCacheBlock | None:
        """The cached block at the end of a key of any length; the root block for an empty key. Changes nothing.

        The last block may match in part. C++: findBlocksInReuseTreeByBlockKey.
        """
        key = block_key.packed if isinstance(block_key, BlockKey) else block_key
        with self._lock:
            return self._block_manager.get_window_block_manager(
                window_size
            ).matcher.find_blocks_in_reuse_tree_by_block_key(key)

    def find_blocks_in_reuse_tree_by_block_keys(
        self, block_keys: Sequence[PackedKey | BlockKey], window_size: WindowSize
    ) -> KVCacheBlock | None:
        """The cached block at the end of a list of keys, one per block. Changes nothing."""
        keys = [key.packed if isinstance(key, BlockKey) else key for key in block_keys]
        with self._lock:
            return self._block_manager.get_window_block_manager(
                window_size
            ).matcher.find_blocks_in_reuse_tree_by_block_keys(keys)

    # -- block tables ---------------------------------------------------------------------------------------------

    def copy_block_offsets(self, output: Any, output_slot_offset: int, request_id: RequestId) -> int:
        """Write a sequence's rows into an offset table; returns the longest row. C++: copyBlockOffsets.

        ``output``: int32 [pools, slots, 2 (K, V), max blocks per sequence], a numpy array or CPU tensor; rows go to
        the slots from ``output_slot_offset``, one per beam. Columns after a row are left as they are. An entry is
        the slot times the K and V blocks of one slot, plus 1 for V; positions without memory and those that left a
        sliding window are NULL_ENTRY. Raises InvalidInputError, with nothing written, if the table is too small or a
        block lies on the host.
        """
        with self._lock:
            return self._offset_table_writer.write(output, output_slot_offset, self.get_sequence(request_id))

    def get_block_offsets_of_batch(
        self, output: Any, first_batch_slot_idx: int, batch_size: int, beam_width: int
    ) -> None:
        """``copy_block_offsets`` for the requests of consecutive ids, ``beam_width`` slots each."""
        for index in range(batch_size):
            self.copy_block_offsets(output, index * beam_width, first_batch_slot_idx + index)

    # -- memory ---------------------------------------------------------------------------------------

    @property
    def pool_configurations(self) -> list[PoolConfiguration]:
        """Head size and element type of the pools of each window, ascending. C++: getPoolConfigurations."""
        found: dict[WindowSize, PoolConfiguration] = {}
        for pool in self._block_manager.pools:
            if pool.is_data_pool:
                entry = PoolConfiguration(pool.window_size, pool.size_per_head, pool.dtype)
                found.setdefault(pool.window_size, entry)
        return [found[window] for window in sorted(found)]

    @property
    def pool_tensors(self) -> PoolTensors:
        """The pools as torch tensors, and views of them."""
        return self._pool_tensors

    def allocate_pools(self, device: Any = "cpu", kv_layout: str = "HND") -> None:
        """Make the tensors of all pools (extra ``torch``); see PoolTensors.allocate_pools. C++: allocatePools."""
        self._pool_tensors.allocate_pools(device, kv_layout)

    def release_pools(self) -> None:
        """Wait for transfers and let go of the tensors. C++: releasePools."""
        self.refresh_blocks()
        self._pool_tensors.release_pools()

    def get_buffers(self, layer_idx: int, kv_layout: str | None = None) -> torch.Tensor:
        """View of a layer's primary blocks for attention kernels; see PoolTensors.get_buffers."""
        return self._pool_tensors.get_buffers(layer_idx, kv_layout)

    def get_unique_primary_pool(self) -> torch.Tensor:
        """The primary tensor of a manager with one pool. C++: getUniquePrimaryPool."""
        return self._pool_tensors.get_unique_primary_pool()

    # -- events, statistics, housekeeping -----------------------------------------------------------------------------

    def flush_iteration_events(self) -> None:
        """Hand collected events over to readers; call once per iteration. C++: flushIterationEvents."""
        if self._event_manager is not None:
            with self._lock:
                self._event_manager.flush()

    def get_latest_events(self, timeout_ms: float | None = None) -> list[KVCacheEvent]:
        """Flushed events since the last call, oldest first. C++: getLatestEvents.

        With a timeout, waits for a flush if there are none; without one, or with 0, returns at once what is there.
        Raises InvalidInputError for a manager without an event manager.
        """
        return self._rules.get_latest_events(self._event_manager, timeout_ms)

    def get_cached_block_events(self) -> list[KVCacheEvent]:
        """Created and stored events that describe the cache as it is now, for a listener that starts late or lost some.

        All have the id of the last event so far, so a listener goes on with the next one. Changes nothing.
        """
        with self._lock:
            events = get_event_manager(self._event_manager)
            created = [
                events.describe_now(KVCacheCreatedData(manager.settings.blocks_per_tier), manager.settings.window_size)
                for manager in self._windows
            ]
            return created + [
                events.describe_now(data, manager.settings.window_size)
                for manager in self._windows
                for data in manager.matcher.describe_blocks()
            ]

    def refresh_blocks(self) -> None:
        """Apply expired durations, and order compute work behind transfers. C++: refreshBlocks."""
        with self._lock:
            for manager in self._windows:
                manager.refresh_blocks()

    def sync_transfer_manager_with_buffer_manager(self) -> None:
        """Order transfers behind compute work."""
        with self._lock:
            for manager in self._windows:
                manager.transfer_manager.sync_with_buffer_manager()

    def verify_queue_integrity(self, window_size: WindowSize) -> bool:
        """Whether a window's queues hold free blocks of their level only."""
        with self._lock:
            return self._block_manager.get_window_block_manager(window_size).eviction_policy.verify_queue_integrity()

    def get_kv_cache_stats(self) -> KvCacheStats:
        """Totals since construction. C++: getKvCacheStats.

        Blocks are those of the primary level; the secondary level is reported apart. In compatibility mode
        ``max_num_blocks`` and ``used_num_blocks`` include it, as in the reference.
        """
        with self._lock:
            free = self.num_free_blocks
            most = sum(map(self._rules.count_blocks, self._windows))
            reused, missed = self.num_reused_blocks, self.num_missed_blocks
            return KvCacheStats(
                max_num_blocks=most,
                free_num_blocks=free,
                used_num_blocks=most - free,
                tokens_per_block=self._tokens_per_block,
                alloc_total_blocks=self.num_alloc_total_blocks,
                alloc_new_blocks=self.num_alloc_new_blocks,
                reused_blocks=reused,
                missed_blocks=missed,
                cache_hit_rate=reused / (reused + missed) if reused else 0.0,
                num_free_blocks_per_window_size=self.num_free_blocks_per_window_size,
                allocated_bytes=sum(pool.primary_bytes for pool in self._block_manager.pools),
                secondary_max_num_blocks=sum(manager.settings.num_secondary_blocks for manager in self._windows),
                secondary_free_num_blocks=sum(manager.num_free_secondary_blocks for manager in self._windows),
            )

    def get_iteration_stats(self) -> dict[WindowSize, KvCacheIterationStats]:
        """Gauges, and counters since the last call, by window. C++: getIterationStats."""
        with self._lock:
            return {manager.settings.window_size: manager.get_and_reset_iteration_stats() for manager in self._windows}

    calculate_max_num_blocks = staticmethod(capacity_estimation.calculate_max_num_blocks)
    calculate_max_block_requirements = staticmethod(capacity_estimation.calculate_max_block_requirements)
    calculate_max_block_requirements_per_beam = staticmethod(
        capacity_estimation.calculate_max_block_requirements_per_beam
    )
    calculate_max_attention_window = staticmethod(capacity_estimation.calculate_max_attention_window)
    get_sink_bubble_length = staticmethod(capacity_estimation.get_sink_bubble_length)
    group_layers_by_window_size = staticmethod(capacity_estimation.group_layers_by_window_size)
    calculate_cache_size_per_token_for_single_window_size = staticmethod(
        capacity_estimation.calculate_cache_size_per_token_for_single_window_size
    )
    calculate_window_size_to_share = staticmethod(capacity_estimation.calculate_window_size_to_share)
