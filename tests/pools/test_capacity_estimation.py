"""Sizes from bytes, shares of windows and blocks per sequence, with numbers small enough to check by hand."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from trtkv.common import RECURRENT_STATES, DataType
from trtkv.errors import ConfigurationError, InvalidInputError
from trtkv.pools import capacity_estimation as estimation
from trtkv.records.linear_attention import LinearAttentionMetadata
from trtkv.records.window_size_metadata import PoolConfiguration


def float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def max_num_blocks(**changes: Any) -> dict[int, tuple[int, int]]:
    """One layer, one head of 2 half elements, K and V: 8 bytes a token, 4 tokens a block."""
    arguments: dict[str, Any] = {
        "dtype": DataType.HALF,
        "num_kv_heads_per_layer": [1],
        "size_per_head": 2,
        "tokens_per_block": 4,
        "window_size_to_layers": {16: [0]},
        "allotted_primary_mem_bytes": 320,
        "allotted_secondary_mem_bytes": 0,
        "kv_factor": 2,
    }
    return estimation.calculate_max_num_blocks(**(arguments | changes))


TWO_WINDOWS: dict[str, Any] = {"num_kv_heads_per_layer": [1, 1], "window_size_to_layers": {64: [1], 16: [0]}}
HYBRID: dict[str, Any] = {
    "num_kv_heads_per_layer": [1, 1, 1],
    "window_size_to_layers": {64: [0], RECURRENT_STATES: [1, 2]},
    "linear_attention_metadata": LinearAttentionMetadata(all_recurrent_states_bytes=10),
}


def test_layers_are_grouped_by_the_repeated_window_list_in_ascending_windows() -> None:
    groups = estimation.group_layers_by_window_size([64, 16, 16], 7)
    assert groups == {16: [1, 2, 4, 5], 64: [0, 3, 6]}
    assert list(groups) == [16, 64]


def test_an_empty_window_list_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one window"):
        estimation.group_layers_by_window_size([], 2)


def test_cache_size_per_token_adds_the_heads_of_the_named_layers() -> None:
    size = estimation.calculate_cache_size_per_token_for_single_window_size([8, 2, 4], 64, [0, 2], 2)
    assert size == 2 * 64 * 12


def test_a_layer_without_head_count_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="layer 3 is not among the 3 layers"):
        estimation.calculate_cache_size_per_token_for_single_window_size([8, 2, 4], 64, [3], 2)


@pytest.mark.parametrize(
    ("dtype", "expected"), [(DataType.HALF, 64), (DataType.FP8, 32), (DataType.FLOAT, 128), (DataType.NVFP4, 18)]
)
def test_bytes_of_elements_follow_the_type_and_four_bit_types_carry_scales(dtype: DataType, expected: int) -> None:
    assert estimation.calculate_bytes_of_elements(32, dtype) == expected


def test_primary_blocks_round_up_and_secondary_blocks_round_down() -> None:
    assert max_num_blocks(allotted_primary_mem_bytes=328, allotted_secondary_mem_bytes=328) == {16: (11, 10)}


def test_max_tokens_limits_primary_blocks_of_a_single_window_only() -> None:
    assert max_num_blocks(max_tokens=9, allotted_secondary_mem_bytes=320) == {16: (3, 10)}
    assert max_num_blocks(max_tokens=10_000) == {16: (10, 0)}
    assert max_num_blocks(**TWO_WINDOWS, max_tokens=1) == {16: (5, 0), 64: (5, 0)}


def test_extra_cost_is_taken_off_first_and_must_fit() -> None:
    assert max_num_blocks(extra_cost_memory=96) == {16: (7, 0)}
    with pytest.raises(ConfigurationError, match="extra cost of 321 bytes exceeds the 320 bytes"):
        max_num_blocks(extra_cost_memory=321)


def test_block_counts_beyond_32_bits_are_not_narrowed() -> None:
    counts = max_num_blocks(allotted_secondary_mem_bytes=8 * 2**33)
    assert counts[16] == (10, 2**31)


def test_equal_shares_are_rounded_to_float32() -> None:
    three = {"num_kv_heads_per_layer": [1, 1, 1], "window_size_to_layers": {1: [0], 2: [1], 3: [2]}}
    # float32(1/3) is a little more than a third; of 3 * 2**30 bytes that is 32 bytes too many.
    total = 3 * 2**30
    expected = int(total * float32(1 / 3)) // 8
    assert expected == 2**27 + 4
    counts = max_num_blocks(**three, allotted_primary_mem_bytes=total)
    assert counts == dict.fromkeys((1, 2, 3), (2**25 + 1, 0))


def test_configured_shares_go_to_ascending_windows_and_are_normalised() -> None:
    assert max_num_blocks(**TWO_WINDOWS, window_size_shares="0.2,0.6") == {16: (3, 0), 64: (8, 0)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.5", "holds 1 shares for 2 windows"),
        ("2,0.1", "share 2.0 .* outside 0 to 1"),
        ("0,0", "adds up to 0"),
        ("0.5;0.5", "cannot be read"),
        ("nan,1", "outside 0 to 1"),
    ],
)
def test_bad_shares_are_refused_with_their_text(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        max_num_blocks(**TWO_WINDOWS, window_size_shares=text)


def test_shares_are_read_from_the_environment_given() -> None:
    assert estimation.read_window_size_shares({"TRTLLM_WINDOW_SIZE_SHARES": "0.4,0.6"}) == "0.4,0.6"
    assert estimation.read_window_size_shares({}) is None


def test_a_pool_configuration_replaces_head_size_and_type_of_its_window() -> None:
    pools = [PoolConfiguration(64, 4, DataType.FP8)]  # 8 bytes a token as well, by other means
    assert max_num_blocks(**TWO_WINDOWS, pool_configurations=pools) == {16: (5, 0), 64: (5, 0)}
    pools = [PoolConfiguration(64, 4, DataType.HALF)]
    assert max_num_blocks(**TWO_WINDOWS, pool_configurations=pools) == {16: (5, 0), 64: (3, 0)}


def test_two_pool_configurations_of_one_window_are_refused() -> None:
    pools = [PoolConfiguration(16, 4, DataType.FP8), PoolConfiguration(16, 2, DataType.HALF)]
    with pytest.raises(ConfigurationError, match="window 16 has two pool configurations"):
        max_num_blocks(pool_configurations=pools)


def test_recurrent_states_share_the_memory_when_reuse_is_on() -> None:
    counts = max_num_blocks(**HYBRID, allotted_secondary_mem_bytes=100)
    assert counts == {RECURRENT_STATES: (8, 2), 64: (5, 1)}


def test_recurrent_states_without_reuse_are_reserved_for_the_batch_first() -> None:
    counts = max_num_blocks(**HYBRID, enable_block_reuse=False, max_batch_size=8, allotted_secondary_mem_bytes=100)
    assert counts == {RECURRENT_STATES: (8, 0), 64: (5, 3)}


def test_recurrent_states_that_leave_nothing_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="take 320 bytes and leave nothing of 320"):
        max_num_blocks(**HYBRID, enable_block_reuse=False, max_batch_size=16)


def test_recurrent_states_need_their_sizes() -> None:
    with pytest.raises(ConfigurationError, match="needs linear_attention_metadata"):
        max_num_blocks(**(HYBRID | {"linear_attention_metadata": None}))


def test_window_shares_weigh_window_and_cache_size() -> None:
    shares = estimation.calculate_window_size_to_share({16: [0], 64: [1]}, {16: 4, 64: 1})
    assert shares == {16: 0.5, 64: 0.5}
    assert estimation.calculate_window_size_to_share({16: [0]}, {16: 4}) == {16: 1.0}


def test_a_share_sum_that_misses_one_by_rounding_is_refused_in_compatibility_mode_only() -> None:
    layers = {128: [0], 512: [1], 1000: [2]}
    sizes = {128: 3, 512: 12288, 1000: 4}
    shares = estimation.calculate_window_size_to_share(layers, sizes)
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-6)
    with pytest.raises(ConfigurationError, match="add up to"):
        estimation.calculate_window_size_to_share(layers, sizes, compatibility=True)


def test_a_window_without_share_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"window 16 would get a share of 0\.0"):
        estimation.calculate_window_size_to_share({16: [0], 64: [1]}, {16: 0, 64: 1})


@pytest.mark.parametrize(("sink", "bubble"), [(0, 0), (1, 3), (4, 0), (6, 2)])
def test_sink_bubble_fills_the_last_sink_block(sink: int, bubble: int) -> None:
    assert estimation.get_sink_bubble_length(sink, 4) == bubble


@pytest.mark.parametrize(("length", "blocks"), [(1, 1), (8, 2), (16, 4), (17, 5)])
def test_a_sequence_past_its_window_needs_one_block_more(length: int, blocks: int) -> None:
    assert estimation.calculate_max_block_requirements_per_beam(length, 0, 16, 4) == blocks


def test_beams_share_full_prompt_blocks() -> None:
    # 10 prompt tokens: 2 shared blocks; the other 2 tokens and 3 generated ones take 2 blocks per beam.
    assert estimation.calculate_max_block_requirements(10, 3, 0, 100, 4, 4) == 2 + 4 * 2


def test_beams_that_generate_a_whole_window_share_nothing() -> None:
    assert estimation.calculate_max_block_requirements(10, 20, 0, 16, 2, 4) == 2 * (4 + 1)


def test_attention_window_shrinks_to_what_the_blocks_hold() -> None:
    assert estimation.calculate_max_attention_window(100, 8, 0, 30, 1, 4) == 108
    assert estimation.calculate_max_attention_window(100, 8, 0, 10, 1, 4) == 8 + 8 * 4
    assert estimation.calculate_max_attention_window(100, 80, 0, 10, 2, 4) == 20
    with pytest.raises(InvalidInputError, match="beam_width is 0"):
        estimation.calculate_max_attention_window(100, 8, 0, 10, 0, 4)
