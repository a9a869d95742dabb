"""Settings a user writes: the cache, the model it serves, and the schedulers. The only module that uses pydantic.

Names and defaults of KvCacheConfig are those of TensorRT-LLM. A wrong value raises ConfigurationError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from trtkv.common import RECURRENT_STATES, CacheType, DataType, WindowSize
from trtkv.errors import ConfigurationError
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
from trtkv.records.retention_config import DEFAULT_SECONDARY_OFFLOAD_MIN_PRIORITY
from trtkv.records.window_size_metadata import PoolConfiguration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class _Config(BaseModel):
    """Frozen settings; unknown names are refused, all errors are told at once."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    # Hidden from type checkers, so that they see the fields as the arguments.
    if not TYPE_CHECKING:

        def __init__(self, **settings: Any) -> None:
            try:
                super().__init__(**settings)
            except ValidationError as error:
                raise ConfigurationError(f"{type(self).__name__}: {_describe(error)}") from error


def _describe(error: ValidationError) -> str:
    problems = []
    for problem in error.errors(include_url=False):
        name = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        problems.append(f"{name}={problem['input']!r}: {message}" if name else message)
    return "; ".join(problems)


class KvCacheConfig(_Config):
    """How much memory the cache takes and what it keeps. Option names of TensorRT-LLM."""

    enable_block_reuse: bool = True
    """Whether blocks of finished prompts are kept and found again by later requests."""

    max_tokens: int | None = Field(default=None, ge=1)
    """Upper limit of cached tokens; with the memory limits the smaller one counts. No effect with several windows."""

    max_attention_window: tuple[WindowSize, ...] | None = None
    """Attention window of each layer in tokens, repeated over the layers; None is full attention everywhere."""

    sink_token_length: int | None = None
    """Deprecated in TensorRT-LLM; anything but 0 is refused."""

    free_gpu_memory_fraction: float = Field(default=0.9, gt=0.0, lt=1.0)
    """Part of the device memory that is free at construction which the cache may take."""

    host_cache_size: int | None = Field(default=None, ge=0)
    """Bytes of host memory for the secondary level; None or 0 is no secondary level."""

    cross_kv_cache_fraction: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Part of the memory that goes to the cross cache of an encoder-decoder model; the rest is the self cache's."""

    secondary_offload_min_priority: int = Field(default=DEFAULT_SECONDARY_OFFLOAD_MIN_PRIORITY, ge=0, le=100)
    """Blocks of a lower priority are dropped instead of offloaded to the host when they are evicted."""

    event_buffer_max_size: int = Field(default=0, ge=0)
    """Cache events kept until they are fetched; 0 switches events off."""

    attention_dp_events_gather_period_ms: int = Field(default=5, ge=1)
    """Milliseconds between two gatherings of events over the ranks of attention data parallelism."""

    kv_events_config: dict[str, Any] | None = None
    """Settings of an event publisher, handed on to it unchanged."""

    enable_partial_reuse: bool = True
    """Whether a block may be reused whose first tokens only match."""

    copy_on_partial_reuse: bool = True
    """Whether a partly matching block that others use, or that has children, is copied; else it is no match."""

    use_uvm: bool = False
    """Managed memory; refused, pools are ordinary tensors here."""

    max_gpu_total_bytes: int = Field(default=0, ge=0)
    """Upper limit of the primary pools in bytes; 0 is no limit beside the fraction."""

    iteration_stats_interval: int = Field(default=1, ge=1)
    """Steps between two readings of the iteration statistics by an executor."""

    dtype: str = "auto"
    """Element type of the cache: "auto" takes the model's, otherwise a name of DataType."""

    tokens_per_block: int = Field(default=32, ge=1)
    """Tokens of one block."""

    use_kv_cache_manager_v2: Literal[False, "auto"] = "auto"
    """TensorRT-LLM's second manager; only the first one exists here, so True is refused."""

    @field_validator("max_attention_window", mode="after")
    @classmethod
    def _check_windows(cls, windows: tuple[WindowSize, ...] | None) -> tuple[WindowSize, ...] | None:
        if windows is not None and (not windows or min(windows) < 1):
            raise ValueError("give one positive window per layer of the repeating pattern, or None for full attention")
        return windows

    @field_validator("sink_token_length", mode="after")
    @classmethod
    def _check_sink(cls, sink_token_length: int | None) -> int | None:
        if sink_token_length:
            raise ValueError("sink tokens are not supported; leave it out")
        return sink_token_length

    @field_validator("use_uvm", mode="after")
    @classmethod
    def _check_uvm(cls, use_uvm: bool) -> bool:
        if use_uvm:
            raise ValueError("managed memory is not supported; use host_cache_size for a second level in host memory")
        return use_uvm

    @field_validator("dtype", mode="after")
    @classmethod
    def _check_dtype(cls, dtype: str) -> str:
        names = [member.value for member in DataType]
        if dtype != "auto" and dtype not in names:
            raise ValueError(f"give auto or one of {', '.join(names)}")
        return dtype

    @property
    def limits_memory_twice(self) -> bool:
        """Whether both ``max_tokens`` and ``free_gpu_memory_fraction`` were written down."""
        return self.max_tokens is not None and "free_gpu_memory_fraction" in self.model_fields_set

    def resolve_dtype(self, model: ModelConfig) -> DataType:
        """Element type of the cache: the one written here, or the model's for "auto"."""
        return model.dtype if self.dtype == "auto" else DataType(self.dtype)

    def resolve_attention_windows(self, model: ModelConfig) -> list[WindowSize]:
        """Window of each layer, cut to the longest sequence; layers with recurrent states have their own."""
        pattern = self.max_attention_window or (model.max_sequence_length,)
        windows = [min(pattern[layer % len(pattern)], model.max_sequence_length) for layer in range(model.num_layers)]
        for layer in model.linear_layer_indices:
            windows[layer] = RECURRENT_STATES
        return windows

    def to_settings(
        self,
        model: ModelConfig,
        blocks_per_window: Mapping[WindowSize, Sequence[int]],
        *,
        max_num_sequences: int,
        max_beam_width: int = 1,
        chunk_size: int | None = None,
        indexer_k_cache: IndexerKCacheSettings | None = None,
    ) -> CacheSettings:
        """Settings of a KVCacheManager for a model.

        ``blocks_per_window`` comes from trtkv.pools.memory.calculate_blocks_per_window.
        """
        return CacheSettings(
            tokens_per_block=self.tokens_per_block,
            layers=LayerSettings(
                model.heads_per_layer,
                model.size_per_head,
                self.resolve_dtype(model),
                model.cache_type,
                indexer_k_cache,
                model.linear_attention_metadata,
            ),
            windows=WindowsSettings(
                self.resolve_attention_windows(model), blocks_per_window, model.pool_configurations
            ),
            limits=SequenceLimits(model.max_sequence_length, max_num_sequences, max_beam_width, chunk_size),
            reuse=ReuseSettings(self.enable_block_reuse, self.enable_partial_reuse, self.copy_on_partial_reuse),
            eviction=EvictionSettings(secondary_offload_min_priority=self.secondary_offload_min_priority),
        )


class ModelConfig(_Config):
    """The part of a model that decides the size of its cache."""

    num_layers: int = Field(ge=1)
    """Layers with a cache on this rank."""

    num_kv_heads_per_layer: int | tuple[int, ...]
    """Key-value heads of a layer before tensor parallelism: one number for all layers, or one per layer."""

    size_per_head: int = Field(ge=1)
    """Elements of one key or value vector."""

    max_sequence_length: int = Field(ge=1)
    """Prompt and generated tokens of the longest request; windows are cut to it."""

    dtype: DataType = DataType.HALF
    """Element type of the cache unless KvCacheConfig names one."""

    cache_type: CacheType = CacheType.SELF
    """What the cache holds: "self", "cross", or "selfkonly" for layers that keep no values."""

    tp_size: int = Field(default=1, ge=1)
    """Ranks that share the heads; each holds its part, rounded up."""

    pool_configurations: tuple[PoolConfiguration, ...] = ()
    """Head size and element type of windows that differ from the model's."""

    linear_attention_metadata: LinearAttentionMetadata | None = None
    """Sizes and snapshot rules of recurrent states; their layers have the window RECURRENT_STATES."""

    linear_layer_indices: tuple[int, ...] = ()
    """Layers that keep recurrent states instead of keys and values."""

    @model_validator(mode="after")
    def _check_layers(self) -> ModelConfig:
        heads = self.num_kv_heads_per_layer
        if isinstance(heads, tuple) and len(heads) != self.num_layers:
            raise ValueError(f"num_kv_heads_per_layer has {len(heads)} entries for {self.num_layers} layers")
        if min(self.heads_per_layer) < 0 or sum(self.heads_per_layer) == 0:
            raise ValueError(f"num_kv_heads_per_layer is {heads}; give positive head counts")
        outside = [layer for layer in self.linear_layer_indices if not 0 <= layer < self.num_layers]
        if outside:
            raise ValueError(f"linear_layer_indices {outside} are not among the {self.num_layers} layers")
        if self.linear_layer_indices and self.linear_attention_metadata is None:
            raise ValueError("linear_layer_indices need linear_attention_metadata; give the sizes of the states")
        return self

    @property
    def heads_per_layer(self) -> list[int]:
        """Key-value heads of each layer on this rank."""
        heads = self.num_kv_heads_per_layer
        per_layer = [heads] * self.num_layers if isinstance(heads, int) else list(heads)
        return [-(-count // self.tp_size) for count in per_layer]

    @property
    def kv_factor(self) -> int:
        """2 for keys and values, 1 for keys only."""
        return 1 if self.cache_type is CacheType.SELFKONLY else 2


class SchedulerConfig(_Config):
    """Limits and policies of the two schedulers."""

    capacity_scheduler_policy: Literal["max_utilization", "guaranteed_no_evict", "static_batch"] = "guaranteed_no_evict"
    """How cache blocks decide who runs; see CapacitySchedulerPolicy."""

    max_batch_size: int = Field(default=64, ge=1)
    """Requests of one step."""

    max_num_tokens: int | None = Field(default=8192, ge=1)
    """Tokens computed in one step; None is no limit."""

    max_num_requests: int | None = Field(default=None, ge=1)
    """Requests that may hold blocks at a time; None is max_batch_size."""

    enable_chunked_prefill: bool = False
    """Whether prompts may be computed in pieces."""

    context_chunking_policy: Literal["equal_progress", "first_come_first_served", "force_chunk"] = (
        "first_come_first_served"
    )
    """How prompts share a step when they are computed in pieces; see ChunkingPolicy."""

    chunk_unit_size: int | None = Field(default=None, ge=1)
    """Tokens that pieces are rounded to, a multiple of the tokens per block; None is one block."""

    max_context_length: int | None = Field(default=None, ge=1)
    """Tokens computed at once for one prompt; None is no limit."""

    two_steps_look_ahead: bool = False
    """Whether max_utilization reserves blocks of two steps, as overlapped steps need."""
