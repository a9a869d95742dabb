"""WindowBlockManager: all blocks of one attention window."""

from __future__ import annotations

from collections.abc import Sequence

from trtkv.blocks.generation_request import GenerationRequest
from trtkv.blocks.hash_map_ordered_node import HashMapOrderedBlock
from trtkv.blocks.kv_cache_block import ChannelBlock, KVCacheBlock, PlaceholderBlock
from trtkv.blocks.radix_block_tree import UnifiedBlockTree
from trtkv.common import (
    PLACEHOLDER_LEVEL,
    PRIMARY_LEVEL,
    SECONDARY_LEVEL,
    BlockId,
)
from trtkv.errors import UnknownIdError
from trtkv.eviction.fresh_blocks import FreshBlocks
from trtkv.eviction.registry import DEFAULT_EVICTION, EVICTIONS, Eviction
from trtkv.records.kv_cache_index import make_index
from trtkv.records.stats import KvCacheIterationStats, hit_rate
from trtkv.transfers.kv_cache_transfer_manager import KVCacheTransferManager
from trtkv.window_block_manager.context import Services, WindowContext
from trtkv.window_block_manager.counters import BlockCounters
from trtkv.window_block_manager.parts import PartClasses, choose_eviction_policy, choose_parts
from trtkv.window_block_manager.planning import ClaimResult
from trtkv.window_block_manager.pools import WindowPools
from trtkv.window_block_manager.settings import WindowSettings


class WindowBlockManager:
    """Blocks, queues, pools and sequences of one window. C++: WindowBlockManager.

    Built from parts, which callers ask themselves: ``settings``, ``pools``, ``counters``, ``eviction_policy`` and
    ``transfer_manager``; ``matcher`` (finding, read only), ``planner`` (what admission would take, read only),
    ``loader`` (admission), ``sequences`` (growing and shrinking), ``replacer`` (of shared blocks), ``storer`` (into the
    tree), ``claimer`` (taking, between the tiers), ``releaser`` (letting go, pins, truncation, simulated removal).
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
        self.reported = BlockCounters()
        self._listener = services.listener
        self._block_class = HashMapOrderedBlock if tree.hash_map_order else KVCacheBlock
        self.eviction_policy = choose_eviction_policy(settings)(
            settings.blocks_per_tier,
            self._make_block,
            services.clock,
            settings.secondary_offload_min_priority,
            settings.num_placeholder_blocks,
            eviction,
        )
        self.transfer_manager = KVCacheTransferManager(settings.window_size, services.copy_engine)
        self.context = WindowContext(
            settings,
            pools.pools,
            self.eviction_policy,
            self.transfer_manager,
            self.counters,
            services.event_manager,
            services.listener,
            self.get_block_by_id,
        )
        self._create_parts(tree, choose_parts(self.context, tree))
        if services.event_manager is not None:
            services.event_manager.enqueue_created_event(settings.blocks_per_tier, settings.window_size)

    def _create_parts(self, tree: UnifiedBlockTree, classes: PartClasses) -> None:
        context = self.context
        self.matcher = classes.matcher(self.settings, tree)
        self.claimer = classes.claimer(context)
        self.sequences = classes.sequences(context, self.claimer)
        self.planner = classes.planner(context, self.matcher)
        self.loader = classes.loader(context, self.claimer, self.sequences)
        self.releaser = classes.releaser(context, self.matcher, self.claimer, self.sequences)
        self.replacer = classes.replacer(context, self.claimer, self.sequences)
        self.storer = classes.storer(context, self.matcher, self.claimer, self.sequences)

    # -- blocks -----------------------------------------------------------------------------------

    def _make_block(self, block_id: BlockId, fresh: FreshBlocks) -> KVCacheBlock:
        """The block of an id that is asked for the first time."""
        settings = self.settings
        if fresh.level == PLACEHOLDER_LEVEL:
            return PlaceholderBlock(block_id, settings.channel, fresh)
        index = block_id  # the same object: a million blocks do not keep a million numbers twice
        if fresh.level != PRIMARY_LEVEL:
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
            f"window {self.settings.window_size} has no block {block_id}; "
            f"ids run from 0 to {self.settings.max_num_blocks - 1}"
        )

    def block_objects(self) -> list[KVCacheBlock]:
        """Every block object made so far, among them all blocks ever used or asked for."""
        return [block for level in self.eviction_policy.levels() for block in level.fresh.blocks]

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
        return self.settings.max_num_blocks - self.num_free_blocks

    # -- what concerns several parts ----------------------------------------------------------------

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

    def refresh_blocks(self) -> None:
        """Apply expiries and order compute work behind transfers. C++: refreshBlocks."""
        self.claimer.report_expired(self.eviction_policy.refresh())
        self.transfer_manager.sync_transfers()

    def get_and_reset_iteration_stats(self) -> KvCacheIterationStats:
        """Gauges, and counters since the last call. C++: getAndResetIterationStats."""
        now, last = self.counters.snapshot(), self.reported
        self.reported = now
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
