"""ExecutorConfig: limits and sizes of an executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from trtkv.common import WindowSize
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.executor.model_spec import ModelSpec
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.cache_settings import (
    CacheSettings,
    LayerSettings,
    ReuseSettings,
    SequenceLimits,
    WindowsSettings,
)
from trtkv.scheduler.scheduler_config import CapacitySchedulerPolicy, ChunkingPolicy
from trtkv.transfers.copy_engine import CopyEngine
from trtkv.transfers.torch_copy_engine import TorchCopyEngine

Drafter: TypeAlias = "Callable[[list[int], int], list[int]]"
"""Guesses what follows: (prompt and generated tokens, most tokens wanted) -> draft tokens, possibly none."""


@dataclass(frozen=True)
class ExecutorConfig:
    """Sizes in tokens, blocks and requests. The defaults fit a small model on a CPU."""

    max_sequence_length: int
    """Longest prompt with its output."""
    num_primary_blocks: int | Mapping[int | None, int] = 256
    """Blocks on the device of every window, or by the model's window (None: full attention)."""
    num_secondary_blocks: int | Mapping[int | None, int] = 0
    """Blocks on the host, likewise."""
    tokens_per_block: int = 16
    max_batch_size: int = 8
    """Requests of a step."""
    max_num_tokens: int | None = None
    """Tokens computed in a step; None: no limit."""
    max_beam_width: int = 1
    max_draft_tokens: int = 0
    """Draft tokens a step may verify. Windows of the cache are wider by as many, so that all of them see enough."""
    chunk_unit_size: int | None = None
    """Prompts are computed in chunks of multiples of this; None: in one piece."""
    chunking_policy: ChunkingPolicy = ChunkingPolicy.FIRST_COME_FIRST_SERVED
    capacity_policy: CapacitySchedulerPolicy = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    enable_block_reuse: bool = True
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    kv_layout: str = "HND"
    device: str = "cpu"

    def get_window(self, model_window: int | None) -> WindowSize:
        """The cache's window for a window of the model."""
        if model_window is None:
            return self.max_sequence_length
        return min(model_window + self.max_draft_tokens, self.max_sequence_length)


def create_kv_cache_manager(
    spec: ModelSpec,
    config: ExecutorConfig,
    copy_engine: CopyEngine | None = None,
    event_manager: KVCacheEventManager | None = None,
) -> KVCacheManager:
    """A manager for a model, its pools allocated."""

    def blocks(numbers: int | Mapping[int | None, int], model_window: int | None) -> int:
        return numbers if isinstance(numbers, int) else numbers[model_window]

    windows = [config.get_window(window) for window in spec.attention_windows]
    settings = CacheSettings(
        tokens_per_block=config.tokens_per_block,
        layers=LayerSettings(spec.num_kv_heads_per_layer, spec.head_dim, spec.pool_dtype),
        windows=WindowsSettings(
            windows,
            {
                window: (
                    blocks(config.num_primary_blocks, model_window),
                    blocks(config.num_secondary_blocks, model_window),
                )
                for window, model_window in zip(windows, spec.attention_windows, strict=True)
            },
        ),
        limits=SequenceLimits(config.max_sequence_length, config.max_batch_size, config.max_beam_width),
        reuse=ReuseSettings(config.enable_block_reuse, config.enable_partial_reuse, config.copy_on_partial_reuse),
    )
    manager = KVCacheManager(
        settings,
        copy_engine=TorchCopyEngine() if copy_engine is None else copy_engine,
        event_manager=event_manager,
    )
    manager.allocate_pools(config.device, config.kv_layout)
    return manager
