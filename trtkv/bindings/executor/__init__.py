"""``tensorrt_llm.bindings.executor``: configurations that requests and managers carry."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from enum import Enum
from typing import Any, ClassVar

from trtkv.bindings._border import raise_translated
from trtkv.bindings._types import Comparable
from trtkv.bindings.executor import kv_cache as kv_cache
from trtkv.common import KvCacheTransferMode as KvCacheTransferMode
from trtkv.errors import RetentionRangeError, TrtkvError
from trtkv.records import retention_config as core


class CapacitySchedulerPolicy(Enum):
    """How cache blocks decide who runs."""

    MAX_UTILIZATION = 0
    GUARANTEED_NO_EVICT = 1
    STATIC_BATCH = 2


class ContextChunkingPolicy(Enum):
    """How contexts share the tokens of a step."""

    EQUAL_PROGRESS = 0
    FIRST_COME_FIRST_SERVED = 1
    FORCE_CHUNK = 2


class FinishReason(Enum):
    """Why a beam ended."""

    NOT_FINISHED = 0
    END_ID = 1
    STOP_WORDS = 2
    LENGTH = 3
    TIMED_OUT = 4
    CANCELLED = 5


class RequestType(Enum):
    """Which phases of a request a server runs."""

    REQUEST_TYPE_CONTEXT_AND_GENERATION = 0
    REQUEST_TYPE_CONTEXT_ONLY = 1
    REQUEST_TYPE_GENERATION_ONLY = 2


def _read_duration(name: str, value: object) -> int | None:
    """Milliseconds of a timedelta or of a float of seconds; an int is refused, as by the bindings."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        return round(value / timedelta(milliseconds=1))
    if isinstance(value, float):
        return round(value * 1000)
    raise TypeError(f"{name} must be a timedelta or a float of seconds, not {value!r}")


def _show_duration(duration_ms: int | None) -> timedelta | None:
    return None if duration_ms is None else timedelta(milliseconds=duration_ms)


class TokenRangeRetentionConfig(Comparable):
    """Priority for the tokens [token_start, token_end); None means up to the end."""

    def __init__(self, token_start: int, token_end: int | None, priority: int, duration_ms: object = None) -> None:
        self.token_start = token_start
        self.token_end = token_end
        self.priority = priority
        self._duration_ms = _read_duration("duration_ms", duration_ms)

    @property
    def duration_ms(self) -> timedelta | None:
        """How long the priority holds."""
        return _show_duration(self._duration_ms)

    @duration_ms.setter
    def duration_ms(self, value: object) -> None:
        self._duration_ms = _read_duration("duration_ms", value)

    def to_core(self) -> core.TokenRangeRetentionConfig:
        """The record that managers take."""
        return core.TokenRangeRetentionConfig(self.token_start, self.token_end, self.priority, self._duration_ms)


TokenRange = TokenRangeRetentionConfig


class KvCacheRetentionConfig(Comparable):
    """Priorities and durations of a request's blocks. Wrong or overlapping ranges are a ValueError."""

    TokenRangeRetentionConfig: ClassVar = TokenRangeRetentionConfig

    def __init__(
        self,
        token_range_retention_configs: Sequence[TokenRange],
        decode_retention_priority: int = core.DEFAULT_RETENTION_PRIORITY,
        decode_duration_ms: object = None,
        transfer_mode: KvCacheTransferMode = KvCacheTransferMode.DRAM,
        directory: str | None = None,
    ) -> None:
        self._ranges = list(token_range_retention_configs)
        self._decode_retention_priority = decode_retention_priority
        self._decode_duration_ms = _read_duration("decode_duration_ms", decode_duration_ms)
        self._transfer_mode = transfer_mode
        self._directory = directory
        try:
            self.to_core()
        except RetentionRangeError as error:
            raise ValueError(str(error)) from error
        except TrtkvError as error:
            raise_translated(error)

    @property
    def token_range_retention_configs(self) -> list[TokenRange]:
        """The ranges as given."""
        return list(self._ranges)

    @property
    def decode_retention_priority(self) -> int:
        """Priority of blocks allocated while generating."""
        return self._decode_retention_priority

    @property
    def decode_duration_ms(self) -> timedelta | None:
        """How long that priority holds."""
        return _show_duration(self._decode_duration_ms)

    @property
    def transfer_mode(self) -> KvCacheTransferMode:
        """How blocks travel between levels."""
        return self._transfer_mode

    @property
    def directory(self) -> str | None:
        """Directory of the file modes."""
        return self._directory

    def to_core(self) -> core.KvCacheRetentionConfig:
        """The record that managers take."""
        return core.KvCacheRetentionConfig(
            [entry.to_core() for entry in self._ranges],
            self._decode_retention_priority,
            self._decode_duration_ms,
            self._transfer_mode,
            self._directory or "",
        )


class RuntimeDefaults(Comparable):
    """Values of a checkpoint that fill what a user left out."""

    def __init__(self, max_attention_window: list[int] | None = None, sink_token_length: int | None = None) -> None:
        self._max_attention_window = max_attention_window
        self._sink_token_length = sink_token_length

    @property
    def max_attention_window(self) -> list[int] | None:
        """Windows of the layers."""
        return self._max_attention_window

    @property
    def sink_token_length(self) -> int | None:
        """Sink tokens."""
        return self._sink_token_length


class KvCacheConfig(Comparable):
    """How an executor sizes and uses its KV cache."""

    def __init__(
        self,
        enable_block_reuse: bool = True,
        max_tokens: int | None = None,
        max_attention_window: list[int] | None = None,
        sink_token_length: int | None = None,
        free_gpu_memory_fraction: float | None = None,
        host_cache_size: int | None = None,
        onboard_blocks: bool = True,
        cross_kv_cache_fraction: float | None = None,
        secondary_offload_min_priority: int | None = None,
        event_buffer_max_size: int = 0,
        *,
        enable_partial_reuse: bool = True,
        copy_on_partial_reuse: bool = True,
        use_uvm: bool = False,
        attention_dp_events_gather_period_ms: int = 5,
        runtime_defaults: RuntimeDefaults | None = None,
        max_gpu_total_bytes: int = 0,
    ) -> None:
        self.enable_block_reuse = enable_block_reuse
        self.max_tokens = max_tokens
        self.max_attention_window = max_attention_window
        self.sink_token_length = sink_token_length
        self.free_gpu_memory_fraction = free_gpu_memory_fraction
        self.host_cache_size = host_cache_size
        self.onboard_blocks = onboard_blocks
        self.cross_kv_cache_fraction = cross_kv_cache_fraction
        self.secondary_offload_min_priority = secondary_offload_min_priority
        self.event_buffer_max_size = event_buffer_max_size
        self.enable_partial_reuse = enable_partial_reuse
        self.copy_on_partial_reuse = copy_on_partial_reuse
        self.use_uvm = use_uvm
        self.attention_dp_events_gather_period_ms = attention_dp_events_gather_period_ms
        self.max_gpu_total_bytes = max_gpu_total_bytes
        if runtime_defaults is not None:
            self.fill_empty_fields_from_runtime_defaults(runtime_defaults)

    def fill_empty_fields_from_runtime_defaults(self, runtime_defaults: RuntimeDefaults) -> None:
        """Take the defaults where nothing was given."""
        if self.max_attention_window is None:
            self.max_attention_window = runtime_defaults.max_attention_window
        if self.sink_token_length is None:
            self.sink_token_length = runtime_defaults.sink_token_length


class DynamicBatchConfig(Comparable):
    """Tuning of batch sizes while running; kept, not used."""

    def __init__(
        self,
        enable_batch_size_tuning: bool,
        enable_max_num_tokens_tuning: bool,
        dynamic_batch_moving_average_window: int,
    ) -> None:
        self.enable_batch_size_tuning = enable_batch_size_tuning
        self.enable_max_num_tokens_tuning = enable_max_num_tokens_tuning
        self.dynamic_batch_moving_average_window = dynamic_batch_moving_average_window


class SchedulerConfig(Comparable):
    """Policies of the schedulers. Read-only."""

    def __init__(
        self,
        capacity_scheduler_policy: CapacitySchedulerPolicy = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT,
        context_chunking_policy: ContextChunkingPolicy | None = None,
        dynamic_batch_config: DynamicBatchConfig | None = None,
        enable_prefix_aware_scheduling: bool = True,
    ) -> None:
        self._capacity_scheduler_policy = capacity_scheduler_policy
        self._context_chunking_policy = context_chunking_policy
        self._dynamic_batch_config = dynamic_batch_config
        self._enable_prefix_aware_scheduling = enable_prefix_aware_scheduling

    @property
    def capacity_scheduler_policy(self) -> CapacitySchedulerPolicy:
        """Policy of the capacity scheduler."""
        return self._capacity_scheduler_policy

    @property
    def context_chunking_policy(self) -> ContextChunkingPolicy | None:
        """Policy of chunked prefill."""
        return self._context_chunking_policy

    @property
    def dynamic_batch_config(self) -> DynamicBatchConfig | None:
        """Tuning of batch sizes."""
        return self._dynamic_batch_config

    @property
    def enable_prefix_aware_scheduling(self) -> bool:
        """Whether cached prefixes count in scheduling."""
        return self._enable_prefix_aware_scheduling


class SamplingConfig(Comparable):
    """Sampling parameters as a client gives them: single values."""

    def __init__(
        self,
        beam_width: int = 1,
        top_k: int | None = None,
        top_p: float | None = None,
        top_p_min: float | None = None,
        top_p_reset_ids: int | None = None,
        top_p_decay: float | None = None,
        seed: int | None = None,
        temperature: float | None = None,
        min_tokens: int | None = None,
        beam_search_diversity_rate: float | None = None,
        repetition_penalty: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        length_penalty: float | None = None,
        early_stopping: int | None = None,
        no_repeat_ngram_size: int | None = None,
        num_return_sequences: int | None = None,
        min_p: float | None = None,
        beam_width_array: list[int] | None = None,
    ) -> None:
        for name, value in list(locals().items()):
            if name != "self":
                setattr(self, name, value)

    beam_width: int
    min_tokens: int | None


class PeftCacheConfig(Comparable):
    """Sizes of an adapter cache; kept, not used."""

    def __init__(self, **fields: object) -> None:
        for name, value in fields.items():
            setattr(self, name, value)


class Request:
    """A request as a client sends it; attributes are kept as given."""

    def __init__(self, *args: object, **fields: object) -> None:
        self.args = args
        for name, value in fields.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Result(Request):
    """A result as a client receives it; attributes are kept as given."""


class Response(Request):
    """A response as a client receives it; attributes are kept as given."""


class KvCacheStats(Comparable):
    """Statistics as the executor reports them: without windows and bytes."""

    def __init__(self) -> None:
        self.max_num_blocks = 0
        self.free_num_blocks = 0
        self.used_num_blocks = 0
        self.tokens_per_block = 0
        self.alloc_total_blocks = 0
        self.alloc_new_blocks = 0
        self.reused_blocks = 0
        self.missed_blocks = 0
        self.cache_hit_rate = 0.0
