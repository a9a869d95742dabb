"""What model types say without writing it down: values of absent keys, which layers slide, which keep states."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

Value = int | str | bool | None

SlidingRule = Literal["none", "all", "from_max_window_layers", "pattern"]
"""Layers that use ``sliding_window`` where no layer_types are given; pattern: all but every n-th."""

StateKind = Literal["mamba1", "mamba2", "gated_delta"]
"""Shapes of recurrent states."""


class ModelFamily(NamedTuple):
    """One model_type."""

    sliding: SlidingRule = "none"
    pattern: int | None = None
    """Every so many layers one has full attention."""
    states: StateKind | None = None
    full_attention_interval: int | None = None
    """Every so many layers one has full attention, the others keep recurrent states."""
    last_is_full: bool = False
    """Whether the last layer has full attention whatever the pattern says."""
    defaults: Mapping[str, Value] = MappingProxyType({})
    """Values of keys that a config may leave out."""


def _family(
    layers: int,
    hidden_size: int,
    heads: int,
    kv_heads: int | None,
    positions: int,
    head_dim: int | None = None,
    *,
    sliding: SlidingRule = "none",
    window: int | None = None,
    pattern: int | None = None,
    states: StateKind | None = None,
    full_attention_interval: int | None = None,
    last_is_full: bool = False,
    **more: Value,
) -> ModelFamily:
    defaults: dict[str, Value] = {
        "num_hidden_layers": layers,
        "hidden_size": hidden_size,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": positions,
        "head_dim": head_dim,
        "sliding_window": window,
        **more,
    }
    return ModelFamily(sliding, pattern, states, full_attention_interval, last_is_full, MappingProxyType(defaults))


FAMILIES: Final[Mapping[str, ModelFamily]] = {
    "llama": _family(32, 4096, 32, None, 2048),
    "llama4_text": _family(48, 5120, 40, 8, 131072, 128),
    "mistral": _family(32, 4096, 32, 8, 131072, sliding="all", window=4096),
    "ministral": _family(32, 4096, 32, 8, 131072, sliding="all", window=4096),
    "ministral3": _family(34, 4096, 32, 8, 262144, 128, sliding="all"),
    "mixtral": _family(32, 4096, 32, 8, 131072, sliding="all"),
    "qwen2": _family(32, 4096, 32, 32, 32768, sliding="from_max_window_layers", window=4096, max_window_layers=28),
    "qwen2_moe": _family(24, 2048, 16, 16, 32768, sliding="from_max_window_layers", window=4096, max_window_layers=28),
    "qwen2_vl": _family(80, 8192, 64, 8, 32768, sliding="from_max_window_layers", window=4096, max_window_layers=80),
    "qwen2_vl_text": _family(
        80, 8192, 64, 8, 32768, sliding="from_max_window_layers", window=4096, max_window_layers=80
    ),
    "qwen2_5_vl": _family(80, 8192, 64, 8, 32768, sliding="from_max_window_layers", window=4096, max_window_layers=80),
    "qwen2_5_vl_text": _family(
        80, 8192, 64, 8, 32768, sliding="from_max_window_layers", window=4096, max_window_layers=80
    ),
    "qwen3": _family(32, 4096, 32, 32, 32768, 128, sliding="from_max_window_layers", window=4096, max_window_layers=28),
    "qwen3_moe": _family(24, 2048, 32, 4, 32768, sliding="from_max_window_layers", window=4096, max_window_layers=28),
    "qwen3_vl_text": _family(32, 4096, 32, 32, 128000, 128),
    "qwen3_vl_moe_text": _family(24, 2048, 16, 16, 128000, 128),
    "gemma": _family(28, 3072, 16, 16, 8192, 256),
    "gemma2": _family(26, 2304, 8, 4, 8192, 256, sliding="pattern", window=4096, pattern=2),
    "gemma3_text": _family(26, 2304, 8, 4, 131072, 256, sliding="pattern", window=4096, pattern=6),
    "gemma3n_text": _family(
        35, 2048, 8, 2, 32768, 256, sliding="pattern", window=512, pattern=5, num_kv_shared_layers=15
    ),
    "gemma4_text": _family(
        30, 2304, 8, 4, 131072, 256, sliding="pattern", window=512, pattern=6, last_is_full=True, global_head_dim=512
    ),
    "phi": _family(24, 2048, 32, None, 2048),
    "phi3": _family(32, 3072, 32, None, 4096, sliding="all"),
    "phimoe": _family(32, 4096, 32, 8, 131072, sliding="all"),
    "gpt_oss": _family(36, 2880, 64, 8, 131072, 64, sliding="pattern", window=128, pattern=2),
    "cohere": _family(40, 8192, 64, None, 8192),
    "cohere2": _family(40, 8192, 64, None, 8192, sliding="pattern", window=4096, pattern=4),
    "olmo": _family(32, 4096, 32, None, 2048),
    "olmo2": _family(32, 4096, 32, None, 2048),
    "olmo3": _family(32, 4096, 32, None, 2048, sliding="pattern", window=4096, pattern=4),
    "starcoder2": _family(30, 3072, 24, 2, 4096, sliding="all"),
    "granite": _family(32, 4096, 32, None, 2048),
    "granitemoe": _family(32, 4096, 32, None, 2048),
    "smollm3": _family(36, 2048, 16, 4, 32768),
    "glm": _family(40, 4096, 32, 2, 131072, 128),
    "glm4": _family(40, 4096, 32, 2, 131072, 128),
    "glm4_moe": ModelFamily(),
    "minimax_m2": _family(62, 3072, 48, 8, 196608, 128),
    "stablelm": _family(32, 2560, 32, 32, 4096),
    "nemotron": _family(32, 6144, 48, None, 4096),
    "seed_oss": _family(64, 4096, 80, 8, 524288, 128),
    "gpt2": _family(12, 768, 12, None, 1024),
    "gpt_neox": _family(44, 6144, 64, None, 2048),
    "opt": _family(12, 768, 12, None, 2048),
    "falcon": _family(32, 4544, 71, None, 2048, multi_query=True),
    "deepseek_v2": _family(32, 4096, 32, None, 2048, kv_lora_rank=512, qk_rope_head_dim=64),
    "deepseek_v3": _family(61, 7168, 128, 128, 4096, kv_lora_rank=512, qk_rope_head_dim=64),
    "kimi_k2": ModelFamily(),
    "deepseek_v32": _family(61, 7168, 128, 128, 163840, kv_lora_rank=512, qk_rope_head_dim=64, index_head_dim=128),
    "glm4_moe_lite": _family(47, 2048, 20, 20, 202752, kv_lora_rank=512, qk_rope_head_dim=64),
    "jamba": _family(
        32,
        4096,
        32,
        8,
        262144,
        states="mamba1",
        attn_layer_period=8,
        attn_layer_offset=4,
        mamba_d_state=16,
        mamba_d_conv=4,
        mamba_expand=2,
    ),
    "bamba": _family(
        32,
        4096,
        32,
        8,
        262144,
        states="mamba2",
        mamba_n_heads=128,
        mamba_d_head="auto",
        mamba_n_groups=1,
        mamba_d_state=256,
        mamba_d_conv=4,
        mamba_expand=2,
    ),
    "granitemoehybrid": _family(
        32,
        4096,
        32,
        None,
        2048,
        states="mamba2",
        mamba_n_heads=128,
        mamba_d_head="auto",
        mamba_n_groups=1,
        mamba_d_state=256,
        mamba_d_conv=4,
        mamba_expand=2,
    ),
    "nemotron_h": _family(
        52,
        4096,
        32,
        8,
        4096,
        128,
        states="mamba2",
        mamba_num_heads=128,
        mamba_head_dim=64,
        n_groups=8,
        ssm_state_size=128,
        conv_kernel=4,
    ),
    "qwen3_next": _family(
        48,
        2048,
        16,
        2,
        32768,
        256,
        states="gated_delta",
        full_attention_interval=4,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
    ),
    "qwen3_5_text": _family(
        32,
        4096,
        16,
        4,
        32768,
        256,
        states="gated_delta",
        full_attention_interval=4,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
    ),
    "qwen3_5_moe_text": _family(
        40,
        2048,
        16,
        2,
        32768,
        256,
        states="gated_delta",
        full_attention_interval=4,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
    ),
}
"""Model types that are known. Values are those of the model classes in the transformers library."""

REFUSED: Final[Mapping[str, str]] = {
    "falcon_h1": "its layers have attention and a recurrent state each",
    "zamba": "its attention layers share weights and caches in a way of their own",
    "zamba2": "its attention layers share weights and caches in a way of their own",
    "lfm2": "its layers keep the inputs of convolutions",
    "minimax": "its lightning attention keeps states of a shape of their own",
    "mamba": "it has no attention layer, so there are no tokens to page",
    "mamba2": "it has no attention layer, so there are no tokens to page",
    "falcon_mamba": "it has no attention layer, so there are no tokens to page",
    "rwkv": "it has no attention layer, so there are no tokens to page",
    "mllama_text_model": "its cross-attention layers keep keys of images",
    "mllama": "its cross-attention layers keep keys of images",
}
"""Model types whose cache cannot be derived here, and why."""
