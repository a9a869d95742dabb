"""WindowBlockManager: all blocks of one attention window."""

from __future__ import annotations

from collections.abc import Sequence

from trtkv.blocks.generation_request import GenerationRequest
from trtkv.blocks.kv_cache_block import (
    ChannelBlock,
    HashMapOrderedBlock,
    KVCacheBlock,
    PlaceholderBlock,
)
from trtkv.blocks.radix_block_tree import UnifiedBlockTree
from trtkv.common import (
    PLACEHOLDER_LEVEL,
    PRIMARY_LEVEL,
    SECONDARY_LEVEL,
    BlockId,
    KvCacheTransferMode,
    RequestId,
    WindowSize,
    trunc_mod,
)
from trtkv.errors import UnknownIdError
from trtkv.events.kv_cache_events import KVCacheStoredData
from trtkv.eviction.eviction_policy import WindowEvictionPolicy
from trtkv.eviction.fresh_blocks import FreshBlocks
from trtkv.eviction.registry import DEFAULT_EVICTION, EVICTIONS, Eviction
from trtkv.keys.packed_key import PackedKey
from trtkv.records.kv_cache_index import make_index
from trtkv.records.llm_request import LlmRequest
from trtkv.records.stats import KvCacheIterationStats, hit_rate
from trtkv.records.window_size_metadata import PrefixReuseSummary
from trtkv.transfers.kv_cache_transfer_manager import KVCacheTransferManager
from trtkv.window_block_manager.context import Services, WindowContext
from trtkv.window_block_manager.counters import BlockCounters
from trtkv.window_block_manager.loading import BatchSeqStats
from trtkv.window_block_manager.parts import PartClasses, choose_parts
from trtkv.window_block_manager.planning import ClaimResult
from trtkv.window_block_manager.pools import WindowPools
from trtkv.window_block_manager.sequences import write_slot_at
from trtkv.window_block_manager.settings import WindowSettings


class WindowBlockManager:
    """Blocks, queues, pools and sequences of one window. C++: WindowBlockManager.

    Built from parts that each own some of the C++ members; most methods only hand the call on:
    ``pools`` (WindowPools), ``matcher`` (finding, read only), ``claimer`` (taking), ``sequences`` (growing and
    shrinking), ``loader`` (admission), ``storer`` (into the tree), ``releaser`` (letting go),
    ``recurrent`` (recurrent states only).
    """

    def __init__(
        self,
        settings: WindowSettings,
        pools: WindowPools,
        tree: UnifiedBlockTree,
        services: Services,
        eviction: Eviction = EVICTIONS[DEFAULT_EVICTION],
    ) -> None:
        self.settings = settings
        self.pools = pools
        self.counters = BlockCounters()
        self._reported = BlockCounters()
        self._listener = services.listener
        self._block_class = HashMapOrderedBlock if tree.hash_map_order else KVCacheBlock
        self.eviction_policy = WindowEvictionPolicy(
            settings.blocks_per_tier,
            self._make_block,
            services.clock,
            settings.secondary_offload_min_priority,
            settings.num_placeholder_blocks,
            eviction,
        )
        self.transfer_manager = KVCacheTransferManager(settings.window_size, services.copy_engine)
        self._context = WindowContext(
            settings,
            pools.pools,
            self.eviction_policy,
            self.transfer_manager,
            self.counters,
            services.event_manager,
            services.listener,
            self.get_block_by_id,
        )
        self._create_parts(tree, choose_parts(self._context, tree))
        if services.event_manager is not None:
            services.event_manager.enqueue_created_event(settings.blocks_per_tier, settings.window_size)

    def _create_parts(self, tree: UnifiedBlockTree, classes: PartClasses) -> None:
        context, metadata = self._context, self.settings.linear_attention_metadata
        self.matcher = classes.matcher(self.settings, tree)
        self.claimer = classes.claimer(context)
        self.sequences = classes.sequences(context, self.claimer)
        self.planner = classes.planner(context, self.matcher)
        self.loader = classes.loader(context, self.claimer, self.sequences)
        self.releaser = classes.releaser(context, self.matcher, self.claimer, self.sequences)
        self.recurrent = (
            None if metadata is None else classes.recurrent(context, metadata, self.claimer, self.sequences)
        )
        self.storer = classes.storer(context, self.matcher, self.claimer, self.sequences, self.recurrent)

    # -- blocks -----------------------------------------------------------------------------------

    def _make_block(self, block_id: BlockId, fresh: FreshBlocks) -> KVCacheBlock:
        """The block of an id that is asked for the first time."""
        settings = self.settings
        if fresh.level == PLACEHOLDER_LEVEL:
            return PlaceholderBlock(block_id, settings.channel, fresh)
        index = make_index(block_id - fresh.ids.start, fresh.level)
        if settings.channel:
            return ChannelBlock(block_id, index, settings.channel, fresh)
        return self._block_class(block_id, index, fresh)

    def get_block_by_id(self, block_id: BlockId) -> KVCacheBlock:
        """The block of an id; placeholders of the recurrent window have ids below -1."""
        for level in self.eviction_policy.levels():
            if block_id in level.fresh.ids:
                return level.fresh.get_block(level.fresh.ids.index(block_id))
        raise UnknownIdError(
            f"window {self.window_size} has no block {block_id}; ids run from 0 to {self.max_num_blocks - 1}"
        )

    def block_objects(self) -> list[KVCacheBlock]:
        """Every block object made so far, among them all blocks ever used or asked for."""
        return [block for level in self.eviction_policy.levels() for block in level.fresh.blocks]

    @property
    def window_size(self) -> WindowSize:
        """Attention window in tokens."""
        return self.settings.window_size

    @property
    def is_swa(self) -> bool:
        """Whether blocks leave the window while a sequence grows."""
        return self.settings.is_swa

    @property
    def is_recurrent_state(self) -> bool:
        """Whether the window holds recurrent states."""
        return self.settings.is_recurrent_state

    @property
    def num_primary_blocks(self) -> int:
        """Blocks with a primary slot."""
        return self.settings.num_primary_blocks

    @property
    def num_secondary_blocks(self) -> int:
        """Blocks with a secondary slot."""
        return self.settings.num_secondary_blocks

    @property
    def num_placeholder_blocks(self) -> int:
        """Placeholders in the pool of a recurrent window."""
        return self.settings.num_placeholder_blocks

    @property
    def max_num_blocks(self) -> int:
        """Blocks of all tiers."""
        return self.settings.max_num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Free primary blocks, cached ones included."""
        return self.eviction_policy.get_num_free_blocks(PRIMARY_LEVEL)

    @property
    def num_free_secondary_blocks(self) -> int:
        """Free secondary blocks, cached ones included."""
        return self.eviction_policy.get_num_free_blocks(SECONDARY_LEVEL)

    @property
    def num_allocated_blocks(self) -> int:
        """All blocks minus free primary ones."""
        return self.max_num_blocks - self.num_free_blocks

    def has_free_blocks(self, num_required: int = 1) -> bool:
        """Whether that many primary blocks are free."""
        return self.num_free_blocks >= num_required

    # -- admission --------------------------------------------------------------------------------

    def plan_batch(
        self,
        requests: Sequence[LlmRequest],
        input_lengths: Sequence[int],
        beam_widths: Sequence[int],
        is_enable_block_reuse: bool,
        max_matched_tokens: Sequence[int],
    ) -> list[ClaimResult]:
        """What each request of a batch would take from the cache. Changes nothing."""
        return self.planner.plan_batch(requests, input_lengths, beam_widths, is_enable_block_reuse, max_matched_tokens)

    def check_room(self, claims: Sequence[ClaimResult], is_enable_block_reuse: bool) -> None:
        """Raise OutOfBlocksError if a planned batch does not fit. Changes nothing."""
        self.planner.check_room(claims, is_enable_block_reuse)

    def add_sequence_batch(
        self, sequences: Sequence[GenerationRequest], claims: Sequence[ClaimResult], is_enable_block_reuse: bool
    ) -> list[BatchSeqStats]:
        """Claim for all requests, then place them one by one. C++: addSequenceBatch."""
        return self.loader.add_sequence_batch(sequences, claims, is_enable_block_reuse)

    def withdraw(
        self, sequences: Sequence[GenerationRequest], claims: Sequence[ClaimResult], counts: BlockCounters
    ) -> None:
        """Take back a batch whose admission broke off: everything placed or claimed so far, and its counts."""
        for sequence in sequences:
            if sequence.request_id in self.sequences.allocated_blocks_per_seq:
                self.releaser.release_blocks(sequence.request_id)
        for claim in claims:
            self.claimer.give_back(reversed(claim.matched))
        self.counters.restore(counts)

    def analyze_prefix_reuse(self, keys: Sequence[PackedKey]) -> PrefixReuseSummary:
        """Count cached blocks for keys of full blocks. Changes nothing. C++: analyzePrefixReuse."""
        return self.matcher.analyze_prefix_reuse(keys)

    def find_blocks_in_reuse_tree_by_block_key(self, block_key: PackedKey) -> KVCacheBlock | None:
        """The block at the end of a long key, cut into blocks; constraints are repeated on each. Changes nothing."""
        return self.matcher.find_blocks_in_reuse_tree_by_block_key(block_key)

    def find_blocks_in_reuse_tree_by_block_keys(self, block_keys: Sequence[PackedKey]) -> KVCacheBlock | None:
        """The block at the end of a list of keys, one per block. Changes nothing."""
        return self.matcher.find_blocks_in_reuse_tree_by_block_keys(block_keys)

    # -- growing and shrinking ----------------------------------------------------------------------

    def check_can_add_token(self, sequence: GenerationRequest) -> None:
        """Raise what ``adjust_blocks_if_needed`` would raise after one more token. Changes nothing."""
        if self.recurrent is not None:
            self.recurrent.check_can_add_token(sequence)
        else:
            self.sequences.check_can_add_token(sequence)

    def adjust_blocks_if_needed(self, sequence: GenerationRequest) -> None:
        """Slide the window, and take a block if the newest token starts one. C++: adjustBlocksIfNeeded."""
        window = sequence.get_window(self.settings.window_size)
        for _ in range(self.sequences.num_detachable(sequence, window, sequence.num_tokens)):
            self.sequences.detach_front_block(sequence, window)
        if trunc_mod(sequence.num_tokens - 1, self.settings.tokens_per_block):
            return
        if self._listener is not None:
            self._listener.on_allocation(sequence.request_id, self.settings.window_size)
        if self.recurrent is not None:
            self.recurrent.allocate_block(sequence, window)
        else:
            self.sequences.allocate_block(sequence, window, share_among_beams=sequence.beam_width == 1)
        self.counters.gen_alloc += 1
        if self.recurrent is not None:
            self.recurrent.write_grown_slots(sequence, window)
        else:
            write_slot_at(window, sequence.beam_width, len(window.block_ids[0]) - 1)

    def drop_last_position(self, sequence: GenerationRequest) -> None:
        """Undo the allocation of the last position, for every beam."""
        self.sequences.drop_last_position(sequence)

    def drop_unfinished_block(self, sequence: GenerationRequest) -> None:
        """Give back the blocks of a position that ``adjust_blocks_if_needed`` broke off at."""
        self.sequences.drop_unfinished_block(sequence)

    def release_last_block(self, sequence: GenerationRequest) -> None:
        """Drop the last block. C++: releaseLastBlock."""
        self.sequences.release_last_block(sequence)

    def replace_shared_block(self, sequence: GenerationRequest, block_idx: int) -> None:
        """Give beams blocks of their own at a position. C++: replaceSharedBlock."""
        self.sequences.replace_shared_block(sequence, block_idx)

    def copy_linear_attention_block(self, sequence: GenerationRequest, request: LlmRequest) -> bool:
        """Carry a recurrent state over a block boundary; whether a copy was issued."""
        return self.recurrent is not None and self.recurrent.copy_linear_attention_block(sequence, request)

    # -- storing and releasing ------------------------------------------------------------------------

    def store_context_blocks(self, sequence: GenerationRequest, request: LlmRequest) -> None:
        """Store full blocks computed so far."""
        self.storer.store_context_blocks(sequence, request)

    def store_new_block(self, sequence: GenerationRequest, request: LlmRequest) -> None:
        """Store the newest full block."""
        self.storer.store_new_block(sequence, request)

    def store_blocks_for_reuse(
        self, sequence: GenerationRequest, request: LlmRequest, pin_blocks: bool = False
    ) -> list[BlockId]:
        """Store everything computed so far; returns the ids pinned."""
        return self.storer.store_blocks_for_reuse(sequence, request, pin_blocks)

    def release_blocks(self, sequence: GenerationRequest, request: LlmRequest | None) -> None:
        """Store for reuse if the request is given, then drop all blocks of the sequence. C++: releaseBlocks."""
        if request is not None and not self.settings.is_recurrent_state:
            self.storer.store_blocks_for_reuse(sequence, request)
        self.releaser.release_blocks(sequence.request_id)
        if self.recurrent is not None:
            self.recurrent.forget(sequence.request_id)

    def describe_cached_blocks(self) -> list[KVCacheStoredData]:
        """What is in the tree, one stored event a block, each behind its ancestors. Changes nothing."""
        return self.matcher.describe_blocks()

    def pin_blocks(self, request_id: RequestId) -> None:
        """One reference more on every block a sequence holds."""
        self.releaser.pin_blocks(request_id)

    def unpin_blocks_by_id(self, block_ids: Sequence[BlockId]) -> None:
        """Drop one reference of each block."""
        self.releaser.unpin_blocks_by_id(block_ids)

    def truncate_blocks(self, keys: Sequence[PackedKey], num_tokens_to_keep: int) -> None:
        """Drop cached blocks along a prefix behind the tokens to keep."""
        self.releaser.truncate_blocks(keys, num_tokens_to_keep)

    def reset_reuse_state(self, tree: UnifiedBlockTree) -> None:
        """Use an empty tree from now on; cached blocks leave the old one and keep their keys and queue places."""
        self.releaser.reset_reuse_state(tree)

    def offload_block(
        self, block: KVCacheBlock, mode: KvCacheTransferMode = KvCacheTransferMode.DRAM, directory: str = ""
    ) -> None:
        """Move a primary block to the secondary level."""
        self.claimer.offload_block(block, mode, directory)

    def onboard_block(
        self, block: KVCacheBlock, mode: KvCacheTransferMode = KvCacheTransferMode.DRAM, directory: str = ""
    ) -> None:
        """Bring a claimed secondary block to the primary level."""
        self.claimer.onboard_block(block, mode, directory)

    # -- scheduling and housekeeping --------------------------------------------------------------------

    def start_scheduling(self) -> None:
        """Begin a simulation of removals."""
        self.releaser.start_scheduling()

    def scheduling_release_blocks(self, request_id: RequestId) -> None:
        """Simulate the removal of a sequence."""
        self.releaser.scheduling_release_blocks(request_id)

    def scheduling_has_free_blocks(self, num_required: int) -> bool:
        """Whether that many blocks are free in the simulation."""
        return self.releaser.scheduling_has_free_blocks(num_required)

    @property
    def scheduling_num_free_blocks(self) -> int:
        """Free primary blocks in the simulation."""
        return self.releaser.scheduling_num_free_blocks

    def refresh_blocks(self) -> None:
        """Apply expiries and order compute work behind transfers. C++: refreshBlocks."""
        self.claimer.report_expired(self.eviction_policy.refresh())
        self.transfer_manager.sync_transfers()

    def sync_transfer_manager_with_buffer_manager(self) -> None:
        """Order transfers behind compute work."""
        self.transfer_manager.sync_with_buffer_manager()

    def verify_queue_integrity(self) -> bool:
        """Whether every queued block is free and in a queue of its level."""
        return self.eviction_policy.verify_queue_integrity()

    def get_and_reset_iteration_stats(self) -> KvCacheIterationStats:
        """Gauges, and counters since the last call. C++: getAndResetIterationStats."""
        now, last = self.counters.snapshot(), self._reported
        self._reported = now
        transfers = self.transfer_manager.get_and_reset_transfer_stats()
        settings, free, free_secondary = self.settings, self.num_free_blocks, self.num_free_secondary_blocks
        reused, missed = now.reused - last.reused, now.missed - last.missed
        return KvCacheIterationStats(
            primary_max_num_blocks=settings.num_primary_blocks,
            primary_free_num_blocks=free,
            primary_used_num_blocks=settings.num_primary_blocks - free,
            secondary_max_num_blocks=settings.num_secondary_blocks,
            secondary_free_num_blocks=free_secondary,
            secondary_used_num_blocks=settings.num_secondary_blocks - free_secondary,
            iter_alloc_total_blocks=now.alloc_total - last.alloc_total,
            iter_alloc_new_blocks=now.alloc_new - last.alloc_new,
            iter_reused_blocks=reused,
            iter_full_reused_blocks=now.full_reused - last.full_reused,
            iter_partial_reused_blocks=now.partial_reused - last.partial_reused,
            iter_missed_blocks=missed,
            iter_cache_hit_rate=hit_rate(reused, missed),
            iter_gen_alloc_blocks=now.gen_alloc - last.gen_alloc,
            iter_onboard_blocks=transfers.onboard_blocks,
            iter_onboard_bytes=transfers.onboard_bytes,
            iter_offload_blocks=transfers.offload_blocks,
            iter_offload_bytes=transfers.offload_bytes,
            iter_intra_device_copy_blocks=transfers.intra_device_copy_blocks,
            iter_intra_device_copy_bytes=transfers.intra_device_copy_bytes,
        )
