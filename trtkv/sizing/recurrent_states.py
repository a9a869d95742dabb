"""RecurrentStates: what a layer of linear attention keeps of a sequence, whatever its length."""

from __future__ import annotations

from typing import NamedTuple

from trtkv.common import DataType, ceil_div
from trtkv.errors import ConfigurationError
from trtkv.sizing.hf_config import HfConfig
from trtkv.sizing.kv_heads import read_size_per_head
from trtkv.sizing.model_families import StateKind


class RecurrentStates(NamedTuple):
    """Sizes of the two states of a layer, before tensor parallelism, in elements.

    A convolution keeps the inputs that its next step needs, one fewer than its kernel is wide. Queries (or C) and keys
    (or B) come in groups, values in heads; Mamba 1 has neither and is a single group of its inner size.
    """

    conv_columns: int
    num_heads: int
    head_size: int
    """Values of a head."""
    state_size: int
    """State elements of each value."""
    num_groups: int
    """Groups of B and C, or heads of queries and keys; 0 where they take no part in the convolution."""

    def bytes_of_layer(self, tp_size: int, conv_dtype: DataType, state_dtype: DataType) -> int:
        """Bytes of both states on one rank; heads are shared evenly, a group that cannot be split is on each rank."""
        heads, rest = divmod(self.num_heads, tp_size)
        if rest or (self.num_groups % tp_size and tp_size % self.num_groups):
            raise ConfigurationError(
                f"recurrent states of {self.num_heads} heads and {self.num_groups} groups cannot be shared by "
                f"{tp_size} ranks; choose a tensor parallel size that divides both"
            )
        groups = ceil_div(self.num_groups, tp_size)
        channels = heads * self.head_size + 2 * groups * self.state_size
        conv_bytes = channels * self.conv_columns * conv_dtype.num_bits // 8
        return conv_bytes + heads * self.head_size * self.state_size * state_dtype.num_bits // 8


def read_recurrent_states(config: HfConfig, kind: StateKind) -> RecurrentStates:
    """Sizes from the keys that models of this kind write."""
    if kind == "gated_delta":
        return _gated_delta(config)
    if kind == "kda":
        return _kimi_delta(config)
    if kind == "lightning":
        return _lightning(config)
    return _mamba1(config) if kind == "mamba1" else _mamba2(config)


def _mamba1(config: HfConfig) -> RecurrentStates:
    inner_size = config.integer("mamba_expand") * config.integer("hidden_size")
    return RecurrentStates(config.integer("mamba_d_conv") - 1, inner_size, 1, config.integer("mamba_d_state"), 0)


def _mamba2(config: HfConfig) -> RecurrentStates:
    num_heads = _first(config, "mamba_num_heads", "mamba_n_heads")
    return RecurrentStates(
        _first(config, "conv_kernel", "mamba_d_conv") - 1,
        num_heads,
        _mamba2_head_size(config, num_heads),
        _first(config, "ssm_state_size", "mamba_d_state"),
        _first(config, "n_groups", "mamba_n_groups"),
    )


def _mamba2_head_size(config: HfConfig, num_heads: int) -> int:
    if config.get("mamba_d_head") == "auto":
        return config.integer("mamba_expand") * config.integer("hidden_size") // num_heads
    return _first(config, "mamba_head_dim", "mamba_d_head")


def _gated_delta(config: HfConfig) -> RecurrentStates:
    return RecurrentStates(
        config.integer("linear_conv_kernel_dim") - 1,
        config.integer("linear_num_value_heads"),
        config.integer("linear_value_head_dim"),
        config.integer("linear_key_head_dim"),
        config.integer("linear_num_key_heads"),
    )


def _kimi_delta(config: HfConfig) -> RecurrentStates:
    linear = config.part("linear_attn_config")
    if linear is None:  # as newer versions of transformers write it
        heads, size = config.integer("linear_num_heads"), config.integer("linear_head_dim")
        return RecurrentStates(config.integer("linear_conv_kernel_dim") - 1, heads, size, size, heads)
    heads, size = linear.integer("num_heads"), linear.integer("head_dim")
    return RecurrentStates(linear.integer("short_conv_kernel_size") - 1, heads, size, size, heads)


def _lightning(config: HfConfig) -> RecurrentStates:
    """A square matrix of each query head, without a convolution."""
    size = read_size_per_head(config)
    return RecurrentStates(0, config.integer("num_attention_heads"), size, size, 0)


def _first(config: HfConfig, key: str, other_key: str) -> int:
    """The key that is there; the first one is asked for when neither is."""
    return config.integer(other_key if config.get(key) is None and config.get(other_key) is not None else key)
