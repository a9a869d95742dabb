"""Ops on functions that need no manager: budgets, keys, retention and linear attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trtkv.common import DataType
from trtkv.records.linear_attention import LinearAttentionMetadata
from trtkv.verify.json_kinds import (
    BOOL,
    INT,
    INTS,
    STR,
    Args,
    JsonValue,
    Kind,
    by_number,
    hash_text,
    list_of,
    nullable,
)
from trtkv.verify.machine_state import MachineState
from trtkv.verify.op_spec import OpSpec
from trtkv.verify.trace_values import (
    DTYPE_KIND,
    KEY_KIND,
    LINEAR_ATTENTION_KIND,
    POOL_CONFIGURATION_KIND,
    RETENTION_KIND,
    read_key,
    read_linear_attention,
    read_pool_configurations,
    read_retention,
    to_float32,
    write_hash,
    write_packed_key,
)


def get_sink_bubble_length(state: MachineState, args: Args) -> int:
    """Unused tokens behind the sink."""
    from trtkv.pools.capacity_estimation import get_sink_bubble_length

    return get_sink_bubble_length(**args)


def group_layers_by_window_size(state: MachineState, args: Args) -> JsonValue:
    """Layers of each window."""
    from trtkv.pools.capacity_estimation import group_layers_by_window_size

    layers = group_layers_by_window_size(**args)
    return {str(window): list(indices) for window, indices in layers.items()}


def calculate_window_size_to_share(state: MachineState, args: Args) -> JsonValue:
    """Share of the memory per window."""
    from trtkv.pools.capacity_estimation import calculate_window_size_to_share

    shares = calculate_window_size_to_share(
        _by_window(args["window_size_to_layers"]),
        _by_window(args["window_size_to_cache_size_per_token"]),
        compatibility=state.compatibility,
    )
    return {str(window): to_float32(share) for window, share in shares.items()}


def _by_window(value: Mapping[str, JsonValue]) -> dict[int, JsonValue]:
    return {int(window): item for window, item in value.items()}


def calculate_cache_size_per_token(state: MachineState, args: Args) -> int:
    """Elements of one token in one window."""
    from trtkv.pools.capacity_estimation import calculate_cache_size_per_token_for_single_window_size

    return calculate_cache_size_per_token_for_single_window_size(**args)


def calculate_max_num_blocks(state: MachineState, args: Args) -> JsonValue:
    """Blocks per window that fit into memory."""
    from trtkv.pools.capacity_estimation import calculate_max_num_blocks

    blocks_per_window = calculate_max_num_blocks(
        dtype=DataType(args["dtype"]),
        num_kv_heads_per_layer=args["num_kv_heads_per_layer"],
        size_per_head=args["size_per_head"],
        tokens_per_block=args["tokens_per_block"],
        window_size_to_layers=_by_window(args["window_size_to_layers"]),
        allotted_primary_mem_bytes=args["allotted_primary_mem_bytes"],
        allotted_secondary_mem_bytes=args["allotted_secondary_mem_bytes"],
        kv_factor=args["kv_factor"],
        extra_cost_memory=args.get("extra_cost_memory", 0),
        max_batch_size=args.get("max_batch_size", 1),
        max_tokens=args.get("max_tokens"),
        enable_block_reuse=args.get("enable_block_reuse", True),
        linear_attention_metadata=read_linear_attention(args.get("linear_attention")),
        pool_configurations=read_pool_configurations(args.get("pool_configurations", ())),
        window_size_shares=args.get("env_window_size_shares"),
    )
    return {str(window): list(counts) for window, counts in blocks_per_window.items()}


def calculate_max_attention_window(state: MachineState, args: Args) -> int:
    """Largest window that fits into a number of blocks."""
    from trtkv.pools.capacity_estimation import calculate_max_attention_window

    return calculate_max_attention_window(**args)


def calculate_max_block_requirements(state: MachineState, args: Args) -> int:
    """Most blocks of a sequence."""
    from trtkv.pools.capacity_estimation import calculate_max_block_requirements

    return calculate_max_block_requirements(**args)


def calculate_max_block_requirements_per_beam(state: MachineState, args: Args) -> int:
    """Most blocks of a beam."""
    from trtkv.pools.capacity_estimation import calculate_max_block_requirements_per_beam

    return calculate_max_block_requirements_per_beam(**args)


def block_key_hash(state: MachineState, args: Args) -> str:
    """Hash of a key behind a parent."""
    return write_hash(read_key(args["key"]).hash(int(args["parent_hash"], 16)))


def block_key_num_matching_tokens(state: MachineState, args: Args) -> int:
    """Leading tokens that two keys share."""
    return read_key(args["key"]).num_matching_tokens(read_key(args["other"]))


def block_key_equal(state: MachineState, args: Args) -> bool:
    """Whether two keys are equal."""
    return read_key(args["key"]) == read_key(args["other"])


def retention_per_block(state: MachineState, args: Args) -> JsonValue:
    """Priority and duration of each block."""
    config = read_retention(args["retention"])
    entries = config.get_per_block_retention_priority_duration(args["tokens_per_block"], args["seq_len"])
    return [list(entry) for entry in entries]


def chop_vector_into_blocks(state: MachineState, args: Args) -> JsonValue:
    """Tokens cut into blocks."""
    from trtkv.keys.key_builder import chop_vector_into_blocks

    blocks = chop_vector_into_blocks(
        args["tokens"], args["usable_size"], args["tokens_per_block"], args["allow_partial"]
    )
    return [list(block) for block in blocks]


def linear_should_allocate(state: MachineState, args: Args) -> bool:
    """Whether a context block keeps a recurrent state."""
    metadata = LinearAttentionMetadata(**args["linear_attention"])
    return metadata.should_allocate_recurrent_states(args["block_end"], args["prompt_len"], args["tokens_per_block"])


def linear_blocks_needed(state: MachineState, args: Args) -> int:
    """Recurrent blocks of a prompt."""
    metadata = LinearAttentionMetadata(**args["linear_attention"])
    return metadata.calc_num_blocks_needed_for_req(args["prompt_len"], args["tokens_per_block"], args["enable_reuse"])


def linear_additional_blocks_needed(state: MachineState, args: Args) -> int:
    """Recurrent blocks still to come."""
    metadata = LinearAttentionMetadata(**args["linear_attention"])
    return metadata.calc_num_additional_blocks_needed_for_req(
        args["num_tokens"], args["prompt_len"], args["tokens_per_block"], args["enable_reuse"]
    )


def build_block_keys(state: MachineState, args: Args) -> JsonValue:
    """Keys of a request with their chained hashes."""
    from trtkv.keys.key_builder import build_block_keys
    from trtkv.keys.key_hash import hash_block_key
    from trtkv.keys.recorded_keys import to_recorded_keys

    request = state.get_request(args["id"])
    usable_size = args.get("usable_size")
    if usable_size is None:
        usable_size = request.get_num_tokens()
    keys = build_block_keys(request, args["tokens_per_block"], usable_size, args.get("allow_partial", True))
    keys = to_recorded_keys(keys)
    result: list[JsonValue] = []
    chain_hash = 0
    for packed in keys:
        chain_hash = hash_block_key(packed, chain_hash)
        result.append({**write_packed_key(packed), "chain_hash": write_hash(chain_hash)})
    return result


_TWO_KEYS: Final[dict[str, Kind]] = {"key": KEY_KIND, "other": KEY_KIND}
_LINEAR: Final[dict[str, Kind]] = {
    "linear_attention": LINEAR_ATTENTION_KIND,
    "prompt_len": INT,
    "tokens_per_block": INT,
}


def _ints(*names: str) -> dict[str, Kind]:
    return dict.fromkeys(names, INT)


PURE_OPS: Final[dict[str, OpSpec]] = {
    "get_sink_bubble_length": OpSpec(get_sink_bubble_length, _ints("sink_token_length", "tokens_per_block")),
    "group_layers_by_window_size": OpSpec(
        group_layers_by_window_size, {"max_attention_window_vec": INTS, "num_layers": INT}
    ),
    "calculate_window_size_to_share": OpSpec(
        calculate_window_size_to_share,
        {"window_size_to_layers": by_number(INTS), "window_size_to_cache_size_per_token": by_number(INT)},
    ),
    "calculate_cache_size_per_token_for_single_window_size": OpSpec(
        calculate_cache_size_per_token,
        {"num_kv_heads_per_layer": INTS, "size_per_head": INT, "window_size_layers": INTS, "kv_factor": INT},
    ),
    "calculate_max_num_blocks": OpSpec(
        calculate_max_num_blocks,
        {
            "dtype": DTYPE_KIND,
            "num_kv_heads_per_layer": INTS,
            "window_size_to_layers": by_number(INTS),
            **_ints("size_per_head", "tokens_per_block", "kv_factor"),
            **_ints("allotted_primary_mem_bytes", "allotted_secondary_mem_bytes"),
        },
        {
            **_ints("extra_cost_memory", "max_batch_size"),
            "max_tokens": nullable(INT),
            "enable_block_reuse": BOOL,
            "linear_attention": nullable(LINEAR_ATTENTION_KIND),
            "pool_configurations": list_of(POOL_CONFIGURATION_KIND),
            "env_window_size_shares": nullable(STR),
        },
    ),
    "calculate_max_attention_window": OpSpec(
        calculate_max_attention_window,
        {
            **_ints("input_length", "output_length", "sink_token_length"),
            **_ints("block_capacity", "beam_width", "tokens_per_block"),
        },
    ),
    "calculate_max_block_requirements": OpSpec(
        calculate_max_block_requirements,
        {
            **_ints("input_length", "output_length", "sink_token_length"),
            **_ints("window_size", "beam_width", "tokens_per_block"),
        },
    ),
    "calculate_max_block_requirements_per_beam": OpSpec(
        calculate_max_block_requirements_per_beam,
        _ints("sequence_length", "sink_token_length", "window_size", "tokens_per_block"),
    ),
    "block_key_hash": OpSpec(block_key_hash, {"key": KEY_KIND, "parent_hash": hash_text}),
    "block_key_num_matching_tokens": OpSpec(block_key_num_matching_tokens, _TWO_KEYS),
    "block_key_equal": OpSpec(block_key_equal, _TWO_KEYS),
    "retention_per_block": OpSpec(
        retention_per_block, {"retention": RETENTION_KIND, **_ints("tokens_per_block", "seq_len")}
    ),
    "chop_vector_into_blocks": OpSpec(
        chop_vector_into_blocks,
        {"tokens": INTS, **_ints("usable_size", "tokens_per_block"), "allow_partial": BOOL},
    ),
    "linear_should_allocate": OpSpec(linear_should_allocate, {**_LINEAR, "block_end": INT}),
    "linear_blocks_needed": OpSpec(linear_blocks_needed, {**_LINEAR, "enable_reuse": BOOL}),
    "linear_additional_blocks_needed": OpSpec(
        linear_additional_blocks_needed, {**_LINEAR, "num_tokens": INT, "enable_reuse": BOOL}
    ),
    "build_block_keys": OpSpec(
        build_block_keys, _ints("id", "tokens_per_block"), {"usable_size": nullable(INT), "allow_partial": BOOL}
    ),
}
