"""CachePlan: windows, pools and blocks of a model's cache on one rank, for given bytes of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from trtkv.checks import check_integer
from trtkv.common import RECURRENT_STATES, BlocksPerWindow, DataType, WindowSize
from trtkv.errors import ConfigurationError, InvalidInputError
from trtkv.pools.capacity_estimation import (
    calculate_bytes_per_token,
    calculate_max_block_requirements_per_beam,
    calculate_max_num_blocks,
    group_layers_by_window_size,
    read_window_size_shares,
)
from trtkv.pools.memory import (
    CacheMemory,
    calculate_blocks_per_window,
    reduce_block_counts,
)
from trtkv.records.config import KvCacheConfig, ModelConfig
from trtkv.records.linear_attention import LinearAttentionMetadata
from trtkv.records.window_size_metadata import PoolConfiguration
from trtkv.sizing.pipeline_stages import split_into_stages

if TYPE_CHECKING:
    from trtkv.sizing.model_shape import ModelShape

KV_DTYPES: Final = ("auto", "float", "half", "bf16", "fp8", "int8", "nvfp4")
"""Element types that a cache may have."""


@dataclass(frozen=True, slots=True)
class SizingOptions:
    """What a user chooses beside the model."""

    memory_bytes: int
    """Bytes of the cache in device memory, on each rank."""
    host_memory_bytes: int = 0
    """Bytes of the host tier, on each rank."""
    kv_dtype: str = "auto"
    """One of KV_DTYPES; auto: what the checkpoint asks for."""
    tokens_per_block: int = 32
    max_sequence_length: int | None = None
    """Longest sequence in tokens; None: max_position_embeddings of the model."""
    tp_size: int = 1
    """Ranks that share the heads."""
    pp_size: int = 1
    """Stages that share the layers; the figures are those of a rank of the tightest one."""
    reserved_bytes: int = 0
    """Bytes of the device memory that are not the cache's, beside ``memory_bytes``; for reports only."""
    windows: tuple[WindowSize | None, ...] = ()
    """Attention windows repeated over the layers instead of the model's own; None in it is full attention."""
    max_batch_size: int = 1
    """Sequences at a time; counts for recurrent states without reuse only."""
    block_reuse: bool = True
    snapshot_interval: int | None = None
    """Tokens between two snapshots of recurrent states; None: 256, or one block where that is longer."""
    window_size_shares: str | None = None
    """Value of TRTLLM_WINDOW_SIZE_SHARES; None reads the environment."""


class WindowPlan(NamedTuple):
    """What one window gets on one rank."""

    window_size: WindowSize
    is_full: bool
    """Whether it holds the longest sequence."""
    num_layers: int
    kv_heads: tuple[int, ...]
    """Different numbers of KV heads of its layers on this rank, ascending; one pool each."""
    size_per_head: int
    dtype: DataType
    bytes_per_token: int | None
    """Over all its layers; None for recurrent states, which do not grow with tokens."""
    bytes_per_block: int
    """A block of tokens, or one state of all its layers."""
    primary_blocks: int
    secondary_blocks: int
    tokens_per_block: int
    index_bytes_per_token: int
    """The part of bytes_per_token that is index keys."""
    blocks_per_sequence: int
    """Blocks that the longest sequence holds at most, once it generates; for recurrent states its snapshots too."""

    @property
    def keeps_states(self) -> bool:
        """Whether blocks are recurrent states."""
        return self.bytes_per_token is None

    @property
    def primary_tokens(self) -> int | None:
        """Tokens that fit into device memory; None for recurrent states."""
        return None if self.keeps_states else self.primary_blocks * self.tokens_per_block

    @property
    def secondary_tokens(self) -> int | None:
        """Tokens that fit into host memory; None for recurrent states."""
        return None if self.keeps_states else self.secondary_blocks * self.tokens_per_block

    @property
    def primary_bytes(self) -> int:
        """Bytes of its pools in device memory."""
        return self.primary_blocks * self.bytes_per_block

    @property
    def secondary_bytes(self) -> int:
        """Bytes of its pools in host memory."""
        return self.secondary_blocks * self.bytes_per_block

    @property
    def num_sequences(self) -> int:
        """Longest sequences that it holds at a time."""
        return self.primary_blocks // self.blocks_per_sequence


@dataclass(frozen=True, slots=True)
class CachePlan:
    """A model's cache on one rank."""

    shape: ModelShape
    options: SizingOptions
    max_sequence_length: int
    model_config: ModelConfig
    kv_cache_config: KvCacheConfig
    windows: tuple[WindowPlan, ...]
    """Ascending windows, recurrent states first."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes of a token that is inside every window."""
        return sum(window.bytes_per_token or 0 for window in self.windows)

    @property
    def primary_bytes(self) -> int:
        """Bytes of all pools in device memory."""
        return sum(window.primary_bytes for window in self.windows)

    @property
    def secondary_bytes(self) -> int:
        """Bytes of all pools in host memory."""
        return sum(window.secondary_bytes for window in self.windows)

    @property
    def num_sequences(self) -> int:
        """Longest sequences that fit at a time: as many as the tightest window holds."""
        return min(window.num_sequences for window in self.windows)

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt that can be admitted: until its first token it is whole in every window."""
        tokens = [window.primary_tokens for window in self.windows if window.primary_tokens is not None]
        return min(self.max_sequence_length, *tokens)

    @property
    def blocks_per_window(self) -> BlocksPerWindow:
        """Primary and secondary blocks, as a manager takes them."""
        return {window.window_size: (window.primary_blocks, window.secondary_blocks) for window in self.windows}

    def attention_windows(self) -> list[WindowSize]:
        """The window of each layer with a cache."""
        return self.kv_cache_config.resolve_attention_windows(self.model_config)


def make_cache_plan(shape: ModelShape, options: SizingOptions) -> CachePlan:
    """Size a cache with the manager's own arithmetic (calculate_max_num_blocks).

    With pipeline stages it is the cache of the stage that holds most bytes of a token, and every window has the fewest
    blocks of any stage, as ranks agree on. Raises ConfigurationError for options that cannot be combined, and when a
    window gets no block.
    """
    _check(options)
    stages = split_into_stages(shape, options.pp_size)
    plans = [_plan_stage(stage, options) for stage in stages]
    if len(plans) == 1:
        return plans[0]
    return _agreed(plans)


def _agreed(plans: Sequence[CachePlan]) -> CachePlan:
    """The fullest of the stages' plans with the blocks that all stages have."""
    blocks = reduce_block_counts([plan.blocks_per_window for plan in plans])
    number, plan = max(enumerate(plans), key=lambda entry: (entry[1].bytes_per_token, -entry[0]))
    windows = tuple(
        window._replace(primary_blocks=blocks[window.window_size][0], secondary_blocks=blocks[window.window_size][1])
        for window in plan.windows
    )
    numbers = plan.shape.layer_numbers
    note = (
        f"pipeline stage {number + 1} of {len(plans)}, with layers {numbers[0]} to {numbers[-1]}, holds most bytes of "
        "a token; every window has the fewest blocks of any stage"
    )
    return replace(plan, windows=windows, shape=replace(plan.shape, notes=(*plan.shape.notes, note)))


def _plan_stage(shape: ModelShape, options: SizingOptions) -> CachePlan:
    layout = make_layout(shape, options)
    blocks = calculate_blocks_per_window(
        layout.cache_config,
        layout.model_config,
        layout.without_index_keys(CacheMemory(options.memory_bytes, options.host_memory_bytes)),
        max_batch_size=options.max_batch_size,
        window_size_shares=options.window_size_shares,
    )
    return layout.plan(blocks)


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Windows of one stage and what a token takes in each, whatever the memory."""

    shape: ModelShape
    options: SizingOptions
    cache_config: KvCacheConfig
    model_config: ModelConfig
    layers_by_window: Mapping[WindowSize, list[int]]
    bytes_per_token: Mapping[WindowSize, int]
    """Keys and values; without index keys and states."""

    def without_index_keys(self, memory: CacheMemory) -> CacheMemory:
        """The part of the memory that is left for keys and values when some tokens have index keys beside them."""
        index_bytes = sum(layer.index_bytes for layer in self.shape.layers)
        if not index_bytes:
            return memory
        data_bytes = sum(self.bytes_per_token.values())
        all_bytes = data_bytes + index_bytes
        return CacheMemory(
            memory.primary_bytes * data_bytes // all_bytes, memory.secondary_bytes * data_bytes // all_bytes
        )

    def count_primary_blocks(self, memory_bytes: int) -> dict[WindowSize, int]:
        """Primary blocks of each window in this many bytes of device memory; 0 where there is no room for one."""
        model, cache = self.model_config, self.cache_config
        shares = self.options.window_size_shares
        memory = self.without_index_keys(CacheMemory(memory_bytes, 0))
        blocks = calculate_max_num_blocks(
            dtype=DataType(cache.dtype),
            num_kv_heads_per_layer=model.heads_per_layer,
            size_per_head=model.size_per_head,
            tokens_per_block=cache.tokens_per_block,
            window_size_to_layers=self.layers_by_window,
            allotted_primary_mem_bytes=memory.primary_bytes,
            allotted_secondary_mem_bytes=0,
            kv_factor=model.kv_factor,
            max_batch_size=self.options.max_batch_size,
            enable_block_reuse=cache.enable_block_reuse,
            linear_attention_metadata=model.linear_attention_metadata,
            pool_configurations=model.pool_configurations,
            window_size_shares=read_window_size_shares() if shares is None else shares,
        )
        return {window: primary for window, (primary, _) in blocks.items()}

    def plan(self, blocks: BlocksPerWindow) -> CachePlan:
        """The plan with these primary and secondary blocks of each window."""
        index_bytes = [layer.index_bytes for layer in self.shape.layers]
        return CachePlan(
            shape=self.shape,
            options=self.options,
            max_sequence_length=self.model_config.max_sequence_length,
            model_config=self.model_config,
            kv_cache_config=self.cache_config,
            windows=tuple(
                _window_plan(
                    self.model_config,
                    self.cache_config,
                    window,
                    layers,
                    self.bytes_per_token.get(window),
                    index_bytes,
                    blocks[window],
                )
                for window, layers in self.layers_by_window.items()
            ),
        )


def make_layout(shape: ModelShape, options: SizingOptions) -> CacheLayout:
    """The layout of one stage. Raises ConfigurationError for options that do not suit the model."""
    max_sequence_length = options.max_sequence_length or shape.max_position_embeddings
    if max_sequence_length is None:
        raise ConfigurationError(f"{shape.name} names no longest sequence; give it with --max-seq-len")
    cache_config = _cache_config(shape, options, max_sequence_length)
    model_config = _model_config(shape, options, max_sequence_length, DataType(cache_config.dtype))
    windows = group_layers_by_window_size(cache_config.resolve_attention_windows(model_config), model_config.num_layers)
    bytes_per_token = _bytes_per_token(model_config, windows, cache_config.resolve_dtype(model_config))
    return CacheLayout(shape, options, cache_config, model_config, windows, bytes_per_token)


def _check(options: SizingOptions) -> None:
    for name, value, least in (
        ("memory", options.memory_bytes, 1),
        ("host memory", options.host_memory_bytes, 0),
        ("tokens per block", options.tokens_per_block, 1),
        ("tensor parallel size", options.tp_size, 1),
        ("number of pipeline stages", options.pp_size, 1),
        ("reserved memory", options.reserved_bytes, 0),
        ("batch size", options.max_batch_size, 1),
    ):
        check_integer(name, value, least)
    if options.max_sequence_length is not None:
        check_integer("longest sequence", options.max_sequence_length)
        if options.max_sequence_length < 1:
            raise InvalidInputError(f"longest sequence is {options.max_sequence_length} tokens; give at least 1")
    if options.kv_dtype not in KV_DTYPES:
        raise InvalidInputError(f"kv dtype is {options.kv_dtype!r}; give one of {', '.join(KV_DTYPES)}")
    for window in options.windows:
        if window is not None and check_integer("attention window", window) < 1:
            raise InvalidInputError(f"attention window is {window} tokens; give at least 1, or full")


def _cache_config(shape: ModelShape, options: SizingOptions, max_sequence_length: int) -> KvCacheConfig:
    chosen = options.windows or tuple(layer.window for layer in shape.layers)
    return KvCacheConfig(
        tokens_per_block=options.tokens_per_block,
        dtype=shape.kv_dtype.value if options.kv_dtype == "auto" else options.kv_dtype,
        enable_block_reuse=options.block_reuse,
        enable_partial_reuse=shape.states is None,
        host_cache_size=options.host_memory_bytes or None,
        # A window of states is put in by the manager; what stands in its place here does not matter.
        max_attention_window=tuple(max_sequence_length if not w or w < 0 else w for w in chosen),
    )


def _model_config(
    shape: ModelShape, options: SizingOptions, max_sequence_length: int, kv_dtype: DataType
) -> ModelConfig:
    return ModelConfig(
        num_layers=len(shape.layers),
        num_kv_heads_per_layer=tuple(layer.num_kv_heads for layer in shape.layers),
        size_per_head=_main_size_per_head(shape),
        max_sequence_length=max_sequence_length,
        dtype=kv_dtype,
        cache_type=shape.cache_type,
        tp_size=options.tp_size,
        pool_configurations=_pool_configurations(shape, options, max_sequence_length, kv_dtype),
        linear_attention_metadata=_linear_attention(shape, options),
        linear_layer_indices=shape.linear_layer_indices,
    )


def _main_size_per_head(shape: ModelShape) -> int:
    """Head size of the first attention layer."""
    size = next((layer.size_per_head for layer in shape.layers if layer.window != RECURRENT_STATES), None)
    if size is None:
        raise ConfigurationError(f"a pipeline stage of {shape.name} has no attention layer; choose fewer stages")
    return size


def _pool_configurations(
    shape: ModelShape, options: SizingOptions, max_sequence_length: int, kv_dtype: DataType
) -> tuple[PoolConfiguration, ...]:
    """Head sizes of windows that differ from the first one, and bytes for states of a cache in 4 bits."""
    sizes: dict[WindowSize, set[int]] = {}
    for position, layer in enumerate(shape.layers):
        if layer.window != RECURRENT_STATES:
            pattern = options.windows
            window = pattern[position % len(pattern)] if pattern else layer.window
            sizes.setdefault(min(window or max_sequence_length, max_sequence_length), set()).add(layer.size_per_head)
    mixed = {window: sorted(found) for window, found in sizes.items() if len(found) > 1}
    if mixed:
        raise ConfigurationError(
            f"layers of one window have different head sizes ({mixed}), which one pool cannot hold; "
            "give --max-seq-len beyond the sliding window, and no --window"
        )
    main_size = _main_size_per_head(shape)
    pools = [
        PoolConfiguration(window, size, kv_dtype) for window, (size,) in sorted(sizes.items()) if size != main_size
    ]
    if shape.states is not None and kv_dtype is DataType.NVFP4:
        pools.insert(0, PoolConfiguration(RECURRENT_STATES, main_size, DataType.INT8))
    return tuple(pools)


def _linear_attention(shape: ModelShape, options: SizingOptions) -> LinearAttentionMetadata | None:
    if shape.states is None:
        return None
    interval = options.snapshot_interval
    if interval is None:
        interval = max(256 // options.tokens_per_block, 1) * options.tokens_per_block
    elif interval < 0 or interval % options.tokens_per_block:
        raise ConfigurationError(
            f"snapshot interval is {interval} tokens; give a multiple of a block of {options.tokens_per_block} tokens"
        )
    return LinearAttentionMetadata(
        linear_layer_indices=shape.linear_layer_indices,
        all_recurrent_states_bytes=shape.states.bytes_of_layer(options.tp_size, shape.dtype, shape.state_dtype),
        states_snapshot_interval=interval if options.block_reuse else 0,
        save_last_snapshot=options.block_reuse,
    )


def _bytes_per_token(
    model: ModelConfig, windows: Mapping[WindowSize, list[int]], dtype: DataType
) -> dict[WindowSize, int]:
    return calculate_bytes_per_token(
        dtype, model.heads_per_layer, model.size_per_head, windows, model.kv_factor, model.pool_configurations
    )


def _window_plan(
    model: ModelConfig,
    cache: KvCacheConfig,
    window: WindowSize,
    layers: list[int],
    data_bytes_per_token: int | None,
    index_bytes: Sequence[int],
    counts: tuple[int, ...],
) -> WindowPlan:
    pool = next((pool for pool in model.pool_configurations if pool.window_size == window), None)
    heads = model.heads_per_layer
    linear = model.linear_attention_metadata
    if data_bytes_per_token is None:
        bytes_per_token = None
        bytes_per_block = len(layers) * (linear.all_recurrent_states_bytes if linear else 0)
        blocks_per_sequence = (
            linear.count_states(model.max_sequence_length, cache.tokens_per_block, cache.enable_block_reuse)
            if linear
            else 1
        )
    else:
        bytes_per_token = data_bytes_per_token + sum(index_bytes[layer] for layer in layers)
        bytes_per_block = bytes_per_token * cache.tokens_per_block
        blocks_per_sequence = calculate_max_block_requirements_per_beam(
            model.max_sequence_length, 0, window, cache.tokens_per_block
        )
    return WindowPlan(
        window_size=window,
        is_full=window >= model.max_sequence_length,
        num_layers=len(layers),
        kv_heads=tuple(sorted({heads[layer] for layer in layers})),
        size_per_head=model.size_per_head if pool is None else pool.size_per_head,
        dtype=model.dtype if pool is None else pool.dtype,
        bytes_per_token=bytes_per_token,
        bytes_per_block=bytes_per_block,
        primary_blocks=counts[0],
        secondary_blocks=counts[1],
        tokens_per_block=cache.tokens_per_block,
        index_bytes_per_token=sum(index_bytes[layer] for layer in layers),
        blocks_per_sequence=blocks_per_sequence,
    )
