"""Keys of configs that cannot change what a layer keeps, and words by which those that could are found.

A model type that is not known here is sized only if each of its keys is understood, harmless, or free of these words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

SUSPICIOUS_WORDS: Final = (
    "kv",
    "attn",
    "attention",
    "window",
    "head",
    "group",
    "share",
    "index",
    "sparse",
    "layer",
    "block",
    "loop",
    "cla",
    "linear",
    "conv",
    "mamba",
    "ssm",
    "state",
    "cache",
    "compress",
    "latent",
    "lora",
    "multi_query",
    "hybrid",
    "pattern",
    "recur",
    "repeat",
    "slid",
    "swa",
    "unroll",
    "ut_steps",
)
"""Parts of names of keys that may tell of another kind of cache."""

HARMLESS_ENDINGS: Final = (
    "_act",
    "_bias",
    "_coef",
    "_dropout",
    "_eps",
    "_epsilon",
    "_implementation",
    "_label",
    "_loss",
    "_pdrop",
    "_prob",
    "_std",
    "_token_id",
    "_token_ids",
    "_token_index",
)
"""Ends of names that are harmless whatever stands before."""

HARMLESS_KEYS: Final = frozenset(
    {
        # the library's own
        "_attn_implementation_autoset",
        "architectures",
        "attn_implementation",
        "cache_implementation",
        "class_name",
        "classifier_activation",
        "gradient_checkpointing",
        "ignore_index",
        "num_beam_groups",
        "output_attentions",
        "output_hidden_states",
        "pruned_heads",
        "use_cache",
        # queries, scores and norms
        "attention_multiplier",
        "attention_out_multiplier",
        "attention_in_multiplier",
        "attention_output_gate",
        "attn_bias",
        "attn_factor",
        "attn_logit_softcapping",
        "attn_output_gate",
        "attn_scale",
        "attn_output_multiplier",
        "attn_temperature_len",
        "attn_temperature_tuning",
        "max_attn_val",
        "max_attn_value",
        "clip_qkv",
        "gating_types",
        "head_dtype",
        "key_multiplier",
        "layer_norm_elementwise_affine",
        "layernorm_embedding",
        "logits_scaling",
        "lm_head",
        "lm_head_multiplier",
        "num_attention_heads_per_layer",
        "num_query_heads",
        "parallel_attn",
        "parallel_attn_mlp_res",
        "q_lora_rank",
        "qk_layernorm",
        "qkv_bias",
        "query_pre_attn_scalar",
        "residual_multiplier",
        "scale_attention_softmax_in_fp32",
        "attention_softmax_in_fp32",
        "scale_attn_by_inverse_layer_idx",
        "scale_attn_weights",
        "reorder_and_upcast_attn",
        "use_attention_gate",
        "use_flash_attn",
        "use_flash_attention",
        "use_logn_attn",
        "use_post_norm_per_layer",
        "apply_residual_connection_post_layernorm",
        "apply_query_key_layer_scaling",
        "do_layer_norm_before",
        "post_layer_norm",
        "use_head_norm",
        "attention_query_scale",
        "attention_norm_type",
        "attention_layer_norm",
        "layer_norm_type",
        "layerdrop",
        "norm_head",
        "qk_head_dim",
        "use_parallel_block",
        # positions
        "layer_rope_theta",
        "no_rope_layer_interval",
        "no_rope_layers",
        "nope_layer_interval",
        "rope_theta_per_layer",
        "rope_scaling_layers",
        # experts and dense parts
        "block_ff_dim",
        "decoder_sparse_step",
        "expert_layer_offset",
        "expert_layer_period",
        "first_k_dense_replace",
        "hidden_size_per_layer_input",
        "interleave_moe_layer_step",
        "mlp_layer_types",
        "mlp_only_layers",
        "moe_group_size",
        "moe_latent_size",
        "moe_layer_end_index",
        "moe_layer_freq",
        "moe_layer_interval",
        "moe_layer_start_index",
        "moe_layers",
        "moe_layers_enum",
        "moe_num_shared_experts",
        "moe_shared_expert_intermediate_size",
        "moe_shared_expert_overlap",
        "moe_router_use_group",
        "n_group",
        "n_shared_experts",
        "num_dense_layers",
        "num_expert_group",
        "num_shared_expert",
        "num_shared_experts",
        "share_expert_dim",
        "share_expert_dims",
        "share_q_dim",
        "shared_expert_combination_strategy",
        "shared_expert_intermediate_size",
        "shared_expert_gating_func",
        "shared_intermediate_size",
        "sparse_step",
        "topk_group",
        "use_grouped_topk",
        "vocab_size_per_layer_input",
        "activation_sparsity_pattern",
        # more predicted tokens
        "mtp_layers_block_type",
        "mtp_num_hidden_layers",
        "mtp_num_layers",
        "mtp_transformer_layers",
        "mtp_hybrid_override_pattern",
        "num_mtp_layers",
        "num_nextn_predict_layers",
        "index_share_for_mtp_iteration",
        # other modalities
        "audio_token_index",
        "image_grid_pinpoints",
        "downsample_block",
        "drop_vision_last_layer",
        "mm_vision_select_layer",
        "mm_hidden_size_share",
        "num_image_heads",
        "projector_num_layers",
        "select_layer",
        "vision_feature_layer",
        "vision_hidden_layers",
        "vision_token_share",
        "vit_num_hidden_layers",
    }
)
"""Names that look like a kind of cache and are none."""

MODALITY_WORDS: Final = (
    "vision",
    "visual",
    "image",
    "video",
    "audio",
    "speech",
    "talker",
    "wav",
    "tts",
    "vq",
    "encoder",
    "projector",
    "perceiver",
    "resampler",
    "draft",
    "eagle",
    "ffn",
    "mtp",
    "quantization",
    "rope",
)
"""Parts of names of objects that have layers of their own, which keep nothing of the text."""


ORDINARY_WORDS: Final = (
    "audio",
    "beam",
    "chunk_size",
    "context_length",
    "dense_intermediate",
    "ep_size",
    "expand",
    "expert",
    "ffn",
    "image",
    "inner",
    "intermediate",
    "label",
    "laurel",
    "logits",
    "max_length",
    "min_length",
    "moe",
    "mtp",
    "multiplier",
    "ngram",
    "patch",
    "position",
    "predict",
    "query_num",
    "pretraining",
    "return_sequences",
    "rope",
    "rotary",
    "seed",
    "softcap",
    "time_step",
    "token",
    "topk",
    "top_k",
    "version",
    "video",
    "vision",
    "vocab",
    "word_embed_proj",
)
"""Parts of names of numbers that every config may have."""


ELSEWHERE_WORDS: Final = ("moe", "expert", "vision", "visual", "image", "video", "audio", "mtp")
"""Parts of names of keys about experts, other modalities or more predicted tokens."""

CACHE_WORDS: Final = ("kv", "attn", "attention", "head", "cache", "window", "share")
"""Words that put a key of ELSEWHERE_WORDS in doubt again."""


def is_ordinary(key: str) -> bool:
    """Whether a number under this key cannot be a fact about layers and heads, by its name."""
    name = key.lower()
    return is_harmless(key) or any(word in name for word in ORDINARY_WORDS)


def is_harmless(key: str) -> bool:
    """Whether a key is known not to change what a layer keeps."""
    if key in HARMLESS_KEYS or key.endswith(HARMLESS_ENDINGS):
        return True
    name = key.lower()
    return any(word in name for word in ELSEWHERE_WORDS) and not any(word in name for word in CACHE_WORDS)


def suspicious_keys(keys: Iterable[str], words: Iterable[str] = SUSPICIOUS_WORDS) -> set[str]:
    """Those keys that have one of the words in their name and are not harmless."""
    words = tuple(words)
    return {key for key in keys if not is_harmless(key) and any(word in key.lower() for word in words)}
