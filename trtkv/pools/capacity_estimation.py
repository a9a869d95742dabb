"""Pure arithmetic of cache sizes: bytes to blocks, window shares, blocks per sequence. Nothing here keeps state.

Shares are rounded to float32 step by step, because the block counts of the reference depend on it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from typing import Final

from trtkv.checks import check_count, check_integer
from trtkv.common import (
    RECURRENT_STATES,
    SWA_EXTRA_BLOCK,
    BlocksPerWindow,
    DataType,
    WindowSize,
    ceil_div,
)
from trtkv.errors import ConfigurationError
from trtkv.records.linear_attention import LinearAttentionMetadata, has_recurrent_states_cache
from trtkv.records.window_size_metadata import PoolConfiguration

WINDOW_SIZE_SHARES_VARIABLE: Final = "TRTLLM_WINDOW_SIZE_SHARES"
"""Environment variable with one share per window, ascending windows, separated by commas."""

NVFP4_ELEMENTS_PER_SCALE: Final = 16
"""Elements that share one scale byte in a 4-bit cache."""

_FLOAT32: Final = struct.Struct("f")


def _float32(value: float) -> float:
    """The float32 nearest to a value, as a Python float."""
    return float(_FLOAT32.unpack(_FLOAT32.pack(value))[0])


# -- layers and windows -----------------------------------------------------------------------------


def group_layers_by_window_size(
    max_attention_window_vec: Sequence[WindowSize], num_layers: int
) -> dict[WindowSize, list[int]]:
    """Layers of each window, ascending windows; the window list is repeated over the layers."""
    if not max_attention_window_vec:
        raise ConfigurationError("the list of attention windows is empty; give at least one window")
    check_count("num_layers", num_layers, error=ConfigurationError)
    layers: dict[WindowSize, list[int]] = {}
    for layer_idx in range(num_layers):
        window = max_attention_window_vec[layer_idx % len(max_attention_window_vec)]
        layers.setdefault(window, []).append(layer_idx)
    return dict(sorted(layers.items()))


def calculate_cache_size_per_token_for_single_window_size(
    num_kv_heads_per_layer: Sequence[int], size_per_head: int, window_size_layers: Sequence[int], kv_factor: int
) -> int:
    """Elements (not bytes) that one token takes in the layers of one window."""
    num_layers = len(num_kv_heads_per_layer)
    for layer in window_size_layers:
        if not 0 <= layer < num_layers:
            raise ConfigurationError(f"layer {layer} is not among the {num_layers} layers with a head count")
    return kv_factor * size_per_head * sum(num_kv_heads_per_layer[layer] for layer in window_size_layers)


def calculate_bytes_of_elements(num_elements: int, dtype: DataType) -> int:
    """Bytes of elements of a type, rounded up; a 4-bit type includes its scale bytes."""
    num_bytes = ceil_div(num_elements * dtype.num_bits, 8)
    if dtype is DataType.NVFP4:
        num_bytes += ceil_div(num_elements, NVFP4_ELEMENTS_PER_SCALE)
    return num_bytes


# -- shares of the windows ----------------------------------------------------------------------------


def read_window_size_shares(environ: Mapping[str, str] | None = None) -> str | None:
    """Value of TRTLLM_WINDOW_SIZE_SHARES in a mapping (default: the process environment), or None."""
    return (os.environ if environ is None else environ).get(WINDOW_SIZE_SHARES_VARIABLE)


def parse_window_size_shares(text: str, num_windows: int) -> list[float]:
    """Shares as float32 values that are divided by their sum; one number from 0 to 1 per window."""
    try:
        shares = [_float32(float(part)) for part in text.split(",")]
    except (ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"{WINDOW_SIZE_SHARES_VARIABLE}={text!r} cannot be read ({error}); write numbers like 0.4,0.6"
        ) from error
    if len(shares) != num_windows:
        raise ConfigurationError(
            f"{WINDOW_SIZE_SHARES_VARIABLE}={text!r} holds {len(shares)} shares for {num_windows} windows; "
            "give one per window, smallest window first"
        )
    total = 0.0
    for share in shares:
        if not 0.0 <= share <= 1.0:
            raise ConfigurationError(
                f"share {share} in {WINDOW_SIZE_SHARES_VARIABLE}={text!r} is outside 0 to 1; give a part of the whole"
            )
        total = _float32(total + share)
    if total <= 0.0:
        raise ConfigurationError(f"{WINDOW_SIZE_SHARES_VARIABLE}={text!r} adds up to 0; give some window a share")
    return [_float32(share / total) for share in shares]


def calculate_window_size_to_share(
    window_size_to_layers: Mapping[WindowSize, Sequence[int]],
    window_size_to_cache_size_per_token: Mapping[WindowSize, int],
    *,
    compatibility: bool = False,
) -> dict[WindowSize, float]:
    """Share of each window by window size times cache size per token; float32 values that add up to 1.

    In compatibility mode a sum that misses 1 by rounding is refused, as in the recordings.
    """
    windows = sorted(window_size_to_layers)
    if len(windows) == 1:
        return {windows[0]: 1.0}
    missing = [window for window in windows if window not in window_size_to_cache_size_per_token]
    if missing:
        raise ConfigurationError(f"no cache size per token for windows {missing}; give one per window")
    cache_sizes = {window: window_size_to_cache_size_per_token[window] for window in windows}
    sum_of_sizes = sum(cache_sizes.values())
    if sum_of_sizes <= 0:
        raise ConfigurationError(f"cache sizes per token {cache_sizes} add up to {sum_of_sizes}; give positive sizes")
    weights = {window: _float32(_float32(cache_sizes[window] / sum_of_sizes) * window) for window in windows}
    total_weight = sum(weights.values())
    if total_weight == 0.0:
        raise ConfigurationError(f"windows {windows} with cache sizes {cache_sizes} have no weight to share by")
    shares = {window: _float32(weight / total_weight) for window, weight in weights.items()}
    _check_shares(shares, exact_sum=compatibility)
    return shares


def _check_shares(shares: Mapping[WindowSize, float], *, exact_sum: bool) -> None:
    total = 0.0
    for window, share in shares.items():
        if not 0.0 < share <= 1.0:
            raise ConfigurationError(f"window {window} would get a share of {share}; each needs more than 0, at most 1")
        total = _float32(total + share)
    if exact_sum and total != 1.0:
        raise ConfigurationError(f"shares {dict(shares)} add up to {total} in float32 instead of 1")


def _compute_window_size_shares(windows: Sequence[WindowSize], window_size_shares: str | None) -> list[float]:
    """Shares of the windows in their order: as configured, or equal ones. C++: computeWindowSizeShares."""
    if window_size_shares is not None:
        return parse_window_size_shares(window_size_shares, len(windows))
    return [_float32(1.0 / len(windows))] * len(windows)


# -- bytes to blocks -------------------------------------------------------------------------------------


def calculate_bytes_per_token(
    dtype: DataType,
    num_kv_heads_per_layer: Sequence[int],
    size_per_head: int,
    window_size_to_layers: Mapping[WindowSize, Sequence[int]],
    kv_factor: int,
    pool_configurations: Sequence[PoolConfiguration] = (),
) -> dict[WindowSize, int]:
    """Bytes one token takes in each attention window; windows of recurrent states are left out.

    A pool configuration replaces head size and element type of its window.
    """
    pools: dict[WindowSize, PoolConfiguration] = {}
    for pool in pool_configurations:
        if pool.window_size in pools:
            raise ConfigurationError(f"window {pool.window_size} has two pool configurations; give one per window")
        pools[pool.window_size] = pool
    result: dict[WindowSize, int] = {}
    for window in sorted(window_size_to_layers):
        if has_recurrent_states_cache(window):
            continue
        pool = pools.get(window, PoolConfiguration(window, size_per_head, dtype))
        num_elements = calculate_cache_size_per_token_for_single_window_size(
            num_kv_heads_per_layer, pool.size_per_head, window_size_to_layers[window], kv_factor
        )
        result[window] = calculate_bytes_of_elements(num_elements, pool.dtype)
        if result[window] <= 0:
            raise ConfigurationError(f"a token takes {result[window]} bytes in window {window}; give heads and layers")
    return result


def calculate_max_num_blocks(
    *,
    dtype: DataType,
    num_kv_heads_per_layer: Sequence[int],
    size_per_head: int,
    tokens_per_block: int,
    window_size_to_layers: Mapping[WindowSize, Sequence[int]],
    allotted_primary_mem_bytes: int,
    allotted_secondary_mem_bytes: int,
    kv_factor: int,
    extra_cost_memory: int = 0,
    max_batch_size: int = 1,
    max_tokens: int | None = None,
    enable_block_reuse: bool = True,
    linear_attention_metadata: LinearAttentionMetadata | None = None,
    pool_configurations: Sequence[PoolConfiguration] = (),
    window_size_shares: str | None = None,
) -> BlocksPerWindow:
    """Primary and secondary block counts per window, ascending windows, of one rank.

    Bytes are split by equal shares, or by ``window_size_shares`` (the value of TRTLLM_WINDOW_SIZE_SHARES).
    Primary blocks are rounded up (the pool may exceed its budget by less than one block), secondary ones
    down. ``max_tokens`` limits the primary blocks, with a single window only. Without reuse, a model of one
    full window and recurrent states reserves ``max_batch_size`` states first and gives the rest to the
    full window. ``extra_cost_memory`` bytes are taken off the primary bytes beforehand.
    """
    windows = sorted(window_size_to_layers)
    _check_budget_arguments(windows, tokens_per_block, allotted_primary_mem_bytes, extra_cost_memory)
    check_integer("allotted_secondary_mem_bytes", allotted_secondary_mem_bytes, error=ConfigurationError)
    check_count("max_batch_size", max_batch_size, error=ConfigurationError)
    if max_tokens is not None:
        check_integer("max_tokens", max_tokens, error=ConfigurationError)
    bytes_per_state = _bytes_per_recurrent_state(window_size_to_layers, linear_attention_metadata)
    bytes_per_token = calculate_bytes_per_token(
        dtype, num_kv_heads_per_layer, size_per_head, window_size_to_layers, kv_factor, pool_configurations
    )
    shares = dict(zip(windows, _compute_window_size_shares(windows, window_size_shares), strict=True))
    primary_bytes = allotted_primary_mem_bytes - extra_cost_memory
    has_static_states = bytes_per_state > 0 and len(windows) == 2 and not enable_block_reuse
    if has_static_states:
        primary_bytes -= _reserve_static_states(primary_bytes, max_batch_size * bytes_per_state)
        shares = {window: float(not has_recurrent_states_cache(window)) for window in windows}

    result: BlocksPerWindow = {}
    for window in windows:
        primary = int(float(primary_bytes) * shares[window])
        secondary = int(float(allotted_secondary_mem_bytes) * shares[window])
        if window in bytes_per_token:
            num_tokens = primary // bytes_per_token[window]
            if max_tokens is not None and len(windows) == 1:
                num_tokens = min(num_tokens, max_tokens)
            num_secondary_tokens = secondary // bytes_per_token[window]
            result[window] = (ceil_div(num_tokens, tokens_per_block), num_secondary_tokens // tokens_per_block)
        elif has_static_states:
            result[window] = (max_batch_size, 0)
        else:
            result[window] = (primary // bytes_per_state, secondary // bytes_per_state)
    return result


def _check_budget_arguments(
    windows: Sequence[WindowSize], tokens_per_block: int, primary_bytes: int, extra_cost_memory: int
) -> None:
    if not windows:
        raise ConfigurationError("there is no attention window; give at least one window with its layers")
    check_count("tokens_per_block", tokens_per_block, 1, error=ConfigurationError)
    check_integer("allotted_primary_mem_bytes", primary_bytes, error=ConfigurationError)
    check_integer("extra_cost_memory", extra_cost_memory, error=ConfigurationError)
    if extra_cost_memory > primary_bytes:
        raise ConfigurationError(
            f"extra cost of {extra_cost_memory} bytes exceeds the {primary_bytes} bytes allotted to the cache; "
            "raise the memory or lower the extra cost"
        )


def _bytes_per_recurrent_state(
    window_size_to_layers: Mapping[WindowSize, Sequence[int]], metadata: LinearAttentionMetadata | None
) -> int:
    """Bytes of one block of recurrent states over its layers; 0 without such a window."""
    if RECURRENT_STATES not in window_size_to_layers:
        return 0
    if metadata is None:
        raise ConfigurationError("a window of recurrent states needs linear_attention_metadata; give the state sizes")
    num_bytes = metadata.all_recurrent_states_bytes * len(window_size_to_layers[RECURRENT_STATES])
    if num_bytes <= 0:
        raise ConfigurationError(f"a recurrent state takes {num_bytes} bytes; give layers and state bytes above 0")
    return num_bytes


def _reserve_static_states(primary_bytes: int, reserved_bytes: int) -> int:
    """The bytes to take off for one recurrent state per sequence. C++: reserveStaticHybridLinearStates."""
    if primary_bytes <= reserved_bytes:
        raise ConfigurationError(
            f"recurrent states of the whole batch take {reserved_bytes} bytes and leave nothing of {primary_bytes}; "
            "raise the memory or lower max_batch_size"
        )
    return reserved_bytes


# -- blocks per sequence ---------------------------------------------------------------------------------


def get_sink_bubble_length(sink_token_length: int, tokens_per_block: int) -> int:
    """Unused tokens between the sink tokens and the next block boundary."""
    check_count("tokens_per_block", tokens_per_block, 1)
    return -check_count("sink_token_length", sink_token_length) % tokens_per_block


def calculate_max_block_requirements_per_beam(
    sequence_length: int, sink_token_length: int, window_size: WindowSize, tokens_per_block: int
) -> int:
    """Blocks a sequence of one beam holds at most, one more when it slides past its window."""
    check_integer("sequence_length", sequence_length)
    check_integer("window_size", window_size)
    bubble = get_sink_bubble_length(sink_token_length, tokens_per_block)
    num_blocks = ceil_div(min(sequence_length, window_size) + bubble, tokens_per_block)
    return num_blocks + (SWA_EXTRA_BLOCK if sequence_length > window_size else 0)


def calculate_max_block_requirements(
    input_length: int,
    output_length: int,
    sink_token_length: int,
    window_size: WindowSize,
    beam_width: int,
    tokens_per_block: int,
) -> int:
    """Blocks a sequence of these lengths holds at most: full prompt blocks are shared by its beams."""
    check_integer("input_length", input_length)
    check_integer("output_length", output_length)
    check_integer("window_size", window_size)
    check_count("beam_width", beam_width, 1)
    whole_length = input_length + output_length
    if beam_width == 1:
        return calculate_max_block_requirements_per_beam(whole_length, sink_token_length, window_size, tokens_per_block)
    if window_size <= output_length:
        per_beam = calculate_max_block_requirements_per_beam(
            output_length, sink_token_length, window_size, tokens_per_block
        )
        return per_beam * beam_width
    num_context_tokens = min(window_size, whole_length) - output_length
    bubble = get_sink_bubble_length(sink_token_length, tokens_per_block)
    num_context_blocks = (num_context_tokens + bubble) // tokens_per_block
    num_leftover_tokens = num_context_tokens - num_context_blocks * tokens_per_block
    num_output_blocks = ceil_div(output_length + num_leftover_tokens, tokens_per_block)
    if whole_length > window_size:
        num_output_blocks += SWA_EXTRA_BLOCK
    return num_context_blocks + num_output_blocks * beam_width


def calculate_max_attention_window(
    input_length: int,
    output_length: int,
    sink_token_length: int,
    block_capacity: int,
    beam_width: int,
    tokens_per_block: int,
) -> WindowSize:
    """Largest window whose sequence of these lengths fits into a number of blocks."""
    check_count("beam_width", beam_width, 1)
    check_integer("block_capacity", block_capacity)
    needed_for_output = calculate_max_block_requirements(
        0, output_length, sink_token_length, output_length, beam_width, tokens_per_block
    )
    if needed_for_output > block_capacity:
        return block_capacity // beam_width * tokens_per_block
    num_free_blocks = block_capacity - needed_for_output
    return min(output_length + num_free_blocks * tokens_per_block, input_length + output_length)
