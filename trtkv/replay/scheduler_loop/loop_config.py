"""LoopConfig: how the scheduler loop runs a trace."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from trtkv.checks import check_count, check_member
from trtkv.errors import ConfigurationError
from trtkv.replay.config import ReplayConfig
from trtkv.replay.scheduler_loop.arrival_queue import ArrivalMode
from trtkv.replay.scheduler_loop.step_time import StepTimeModel
from trtkv.scheduler.scheduler_config import CapacitySchedulerPolicy, ContextChunkingConfig


@dataclass(frozen=True, slots=True)
class LoopConfig:
    """Settings of a replay through the schedulers; ``cache.live`` gives way to ``max_batch_size``."""

    cache: ReplayConfig = field(default_factory=ReplayConfig)
    """The manager."""
    policy: CapacitySchedulerPolicy = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    """Which requests may hold blocks."""
    max_batch_size: int = 64
    """Most requests in a step, and most requests that the schedulers look at."""
    max_num_tokens: int = 8192
    """Most tokens computed in a step."""
    chunking: ContextChunkingConfig | None = None
    """How prompts are cut into chunks; None: never."""
    arrivals: ArrivalMode = ArrivalMode.ASAP
    step_time: StepTimeModel = field(default_factory=StepTimeModel)

    def __post_init__(self) -> None:
        for name, value in (("max_batch_size", self.max_batch_size), ("max_num_tokens", self.max_num_tokens)):
            check_count(name, value, 1, error=ConfigurationError)
        policy = check_member("policy", self.policy, CapacitySchedulerPolicy, error=ConfigurationError)
        object.__setattr__(self, "policy", policy)
        arrivals = check_member("arrivals", self.arrivals, ArrivalMode, error=ConfigurationError)
        object.__setattr__(self, "arrivals", arrivals)
        object.__setattr__(self, "cache", replace(self.cache, live=self.max_batch_size))
        if self.chunking is None:
            return
        unit = self.chunking.chunk_unit_size
        if unit % self.cache.tokens_per_block:
            raise ConfigurationError(
                f"the chunk unit is {unit} tokens, not a multiple of the {self.cache.tokens_per_block} tokens of a "
                "block; a chunk that ends inside a block cannot follow a cached prefix"
            )
        if unit > self.max_num_tokens:
            raise ConfigurationError(
                f"the chunk unit of {unit} tokens exceeds max_num_tokens {self.max_num_tokens}; take a smaller unit"
            )
