"""Schedulers from settings."""

from __future__ import annotations

from trtkv.errors import ConfigurationError
from trtkv.records.config import SchedulerConfig
from trtkv.scheduler.capacity_scheduler import CapacityScheduler
from trtkv.scheduler.micro_batch_scheduler import MicroBatchScheduler
from trtkv.scheduler.scheduler_config import CapacitySchedulerPolicy, ChunkingPolicy, ContextChunkingConfig


def build_capacity_scheduler(config: SchedulerConfig) -> CapacityScheduler:
    """Capacity scheduler with the limits and the policy of the settings."""
    return CapacityScheduler(
        config.max_num_requests or config.max_batch_size,
        CapacitySchedulerPolicy(config.capacity_scheduler_policy),
        two_steps_look_ahead=config.two_steps_look_ahead,
    )


def build_micro_batch_scheduler(config: SchedulerConfig, tokens_per_block: int) -> MicroBatchScheduler:
    """Micro-batch scheduler of the settings; chunks must consist of whole blocks."""
    if not config.enable_chunked_prefill:
        return MicroBatchScheduler(max_context_length=config.max_context_length)
    unit = config.chunk_unit_size or tokens_per_block
    if unit % tokens_per_block:
        raise ConfigurationError(
            f"chunk_unit_size {unit} is not a multiple of tokens_per_block {tokens_per_block}; "
            "a chunk that ends inside a block cannot follow a cached prefix"
        )
    chunking = ContextChunkingConfig(ChunkingPolicy(config.context_chunking_policy), unit)
    return MicroBatchScheduler(chunking, config.max_context_length)
