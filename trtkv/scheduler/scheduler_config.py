"""Policies of both schedulers. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from trtkv.checks import check_count, check_member
from trtkv.errors import ConfigurationError


class CapacitySchedulerPolicy(str, Enum):
    """How cache blocks decide who runs. C++: executor::CapacitySchedulerPolicy."""

    MAX_UTILIZATION = "max_utilization"
    """Admit by the blocks of the next step; pause started requests when blocks run out."""
    GUARANTEED_NO_EVICT = "guaranteed_no_evict"
    """Admit by the blocks up to completion, so that no request is ever paused."""
    STATIC_BATCH = "static_batch"
    """As guaranteed_no_evict, but admit only when nothing is running."""


class ChunkingPolicy(str, Enum):
    """How contexts share the tokens of a step. C++: executor::ContextChunkingPolicy."""

    EQUAL_PROGRESS = "equal_progress"
    """One unit for every request, in turn, until the tokens are used up."""
    FIRST_COME_FIRST_SERVED = "first_come_first_served"
    """As many tokens as possible for the first request, then the next."""
    FORCE_CHUNK = "force_chunk"
    """Exactly one unit for every request that still fits."""


class ReuseDiscount(str, Enum):
    """What a first chunk costs when part of the prompt is expected in the cache."""

    RECORDED = "recorded"
    """Cached tokens are free from the start of the chunk on, as in the recorded programs."""
    LATE = "late"
    """Cached tokens are free only when the chunk reaches the end of the prompt: what is really computed."""


@dataclass(frozen=True, slots=True)
class ContextChunkingConfig:
    """Chunked prefill: a policy, and the unit in tokens that chunks are rounded to. C++: ContextChunkingConfig."""

    policy: ChunkingPolicy
    chunk_unit_size: int

    def __post_init__(self) -> None:
        policy = check_member("policy", self.policy, ChunkingPolicy, error=ConfigurationError)
        object.__setattr__(self, "policy", policy)
        check_count("chunk_unit_size", self.chunk_unit_size, 1, error=ConfigurationError)
