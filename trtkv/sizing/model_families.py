"""What model types say without writing it down: values of absent keys, which layers slide, which keep states."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

Value = int | str | bool | None

SlidingRule = Literal["none", "all", "from_max_window_layers", "pattern", "listed"]
"""Layers that use ``sliding_window`` where no layer_types are given; pattern: all but every n-th;
listed: layer_types have to be there."""

StateKind = Literal["mamba1", "mamba2", "gated_delta", "kda", "lightning"]
"""Shapes of recurrent states."""

KvHeadsRule = Literal[
    "usual", "written", "all_heads", "one_if_multi_query", "falcon", "groups", "refined_web", "attn_config"
]
"""Where the number of KV heads stands.

usual: ``num_key_value_heads``, else as many as query heads; written: it has to be there; all_heads: the type knows no
other number; one_if_multi_query (GPTBigCode), falcon, groups (ChatGLM), refined_web (first Falcon), attn_config (DBRX,
MPT): see model_shape.
"""

LayerRule = Literal[
    "usual",
    "twice",
    "block_configs",
    "heads_per_layer",
    "attn_type_list",
    "shared_by_neighbours",
    "linear_attn_config",
    "other_setting",
    "sparse_attention",
    "indexed",
]
"""How layers are described; all but the usual one are functions of layer_rules."""


class ModelFamily(NamedTuple):
    """One model_type."""

    sliding: SlidingRule = "none"
    pattern: int | None = None
    """One of this many layers has full attention."""
    states: StateKind | None = None
    full_attention_interval: int | None = None
    """One of this many layers has full attention, the others keep recurrent states."""
    last_is_full: bool = False
    """Whether the last layer has full attention whatever the pattern says."""
    defaults: Mapping[str, Value] = MappingProxyType({})
    """Values of keys that a config may leave out."""
    kv_heads: KvHeadsRule = "usual"
    layers: LayerRule = "usual"
    is_latent: bool = False
    """Whether ``kv_lora_rank`` means one latent vector instead of keys and values."""
    names: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Keys that stand under names of their own in this type."""


def _family(
    layers: int,
    hidden_size: int,
    heads: int,
    kv_heads: int | None,
    positions: int | None,
    head_dim: int | None = None,
    *,
    sliding: SlidingRule = "none",
    window: int | None = None,
    pattern: int | None = None,
    states: StateKind | None = None,
    full_attention_interval: int | None = None,
    last_is_full: bool = False,
    rule: LayerRule = "usual",
    kv_rule: KvHeadsRule = "usual",
    names: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
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
    return ModelFamily(
        sliding,
        pattern,
        states,
        full_attention_interval,
        last_is_full,
        MappingProxyType(defaults),
        kv_rule,
        rule,
        "kv_lora_rank" in more,
        names,
    )


_AS_WRITTEN: Final = ModelFamily(kv_heads="written")
"""Full attention in every layer, by a class that comes with the checkpoint: nothing is known but what is written."""

_ALL_HEADS: Final = ModelFamily(kv_heads="all_heads")
"""As many KV heads as query heads; the type has no key for another number."""

_ATTENTION_GROUPS: Final = {"num_key_value_heads": ("num_attention_groups",)}

_GROUPS_OR_HEADS: Final = {"num_key_value_heads": ("num_attention_groups", "num_key_value_heads")}


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
        30,
        2304,
        8,
        4,
        131072,
        256,
        sliding="pattern",
        window=512,
        pattern=6,
        last_is_full=True,
        global_head_dim=512,
        num_kv_shared_layers=0,
    ),
    "gemma4_unified_text": _family(
        30,
        2304,
        8,
        4,
        262144,
        256,
        sliding="pattern",
        window=1024,
        pattern=6,
        last_is_full=True,
        global_head_dim=512,
        num_kv_shared_layers=0,
    ),
    "phi": _family(24, 2048, 32, None, 2048),
    "phi3": _family(32, 3072, 32, None, 4096, sliding="all"),
    "phimoe": _family(32, 4096, 32, 8, 131072, sliding="all"),
    "gpt_oss": _family(36, 2880, 64, 8, 131072, 64, sliding="pattern", window=128, pattern=2),
    "cohere": _family(40, 8192, 64, None, 8192),
    "cohere2": _family(40, 8192, 64, None, 8192, sliding="pattern", window=4096, pattern=4),
    "cohere2_moe": ModelFamily(kv_heads="written", sliding="listed"),
    "olmo": _family(32, 4096, 32, None, 2048),
    "olmo2": _family(32, 4096, 32, None, 2048),
    "olmo3": _family(32, 4096, 32, None, 2048, sliding="pattern", window=4096, pattern=4),
    "starcoder2": _family(30, 3072, 24, 2, 4096, sliding="all"),
    "granite": _family(32, 4096, 32, None, 2048),
    "granitemoe": _family(32, 4096, 32, None, 2048),
    "smollm3": _family(36, 2048, 16, 4, 32768),
    "glm": _family(40, 4096, 32, 2, 131072, 128),
    "glm4": _family(40, 4096, 32, 2, 131072, 128),
    "glm4_moe": ModelFamily(kv_heads="written"),
    "minimax_m2": _family(62, 3072, 48, 8, 196608, 128),
    "stablelm": _family(32, 2560, 32, 32, 4096),
    "nemotron": _family(32, 6144, 48, None, 4096),
    "seed_oss": _family(64, 4096, 80, 8, 524288, 128),
    "gpt2": _family(12, 768, 12, None, 1024),
    "gpt_neox": _family(44, 6144, 64, None, 2048),
    "opt": _family(12, 768, 12, None, 2048),
    "falcon": _family(32, 4544, 71, None, 2048, kv_rule="falcon", multi_query=True),
    "deepseek_v2": _family(32, 4096, 32, None, 2048, kv_lora_rank=512, qk_rope_head_dim=64),
    "deepseek_v3": _family(61, 7168, 128, 128, 4096, kv_lora_rank=512, qk_rope_head_dim=64),
    "kimi_k2": ModelFamily(is_latent=True),
    "deepseek_v32": _family(
        61, 7168, 128, 128, 163840, rule="indexed", kv_lora_rank=512, qk_rope_head_dim=64, index_head_dim=128
    ),
    "glm_moe_dsa": _family(
        78, 6144, 64, 64, 202752, rule="indexed", kv_lora_rank=512, qk_rope_head_dim=64, index_head_dim=128
    ),
    "glm4_moe_lite": _family(47, 2048, 20, 20, 202752, kv_lora_rank=512, qk_rope_head_dim=64),
    "apertus": _family(32, 4096, 32, None, 65536),
    "arcee": _family(32, 2560, 32, None, 4096),
    "aria_text": _family(32, 4096, 32, None, 2048),
    "bitnet": _family(30, 2560, 20, 5, 2048),
    "chameleon": _family(32, 4096, 32, 32, 4096),
    "diffllama": _family(16, 2048, 32, None, 2048),
    "emu3_text_model": _family(32, 4096, 32, 8, 9216),
    "ernie4_5": _family(18, 1024, 16, 2, 131072, 128),
    "ernie4_5_moe": _family(28, 2560, 20, 4, 131072),
    "ernie4_5_vl_moe_text": _family(28, 2560, 20, 4, 131072),
    "exaone": _family(32, 4096, 32, 8, 4096),
    "exaone4": _family(32, 4096, 32, 32, 2048, sliding="pattern", window=4096, pattern=4),
    "exaone_moe": _family(32, 4096, 32, 32, 2048, sliding="pattern", window=4096, pattern=4),
    "flex_olmo": _family(32, 4096, 32, None, 4096),
    "glm4v_text": _family(40, 4096, 32, 2, 32768),
    "glm4v_moe_text": ModelFamily(kv_heads="written"),
    "glm_ocr_text": _family(16, 1024, 16, 8, 131072),
    "granitemoeshared": _family(32, 4096, 32, None, 2048),
    "helium": _family(24, 2560, 20, 20, 4096, 128),
    "hunyuan": ModelFamily(kv_heads="written", layers="shared_by_neighbours", is_latent=True),
    "hunyuan_v1_dense": _family(32, 4096, 32, None, 2048, rule="shared_by_neighbours"),
    "hunyuan_v1_moe": _family(32, 4096, 32, None, 2048, rule="shared_by_neighbours"),
    "hy_v3": _family(80, 4096, 64, 8, 131072, 128),
    "hyperclovax": _family(32, 4096, 32, None, 2048),
    "internlm3": _family(48, 4096, 32, 2, 32768, 128),
    "iquestcoder": _family(80, 5120, 40, 8, 131072, 128),
    "jais2": _family(32, 3328, 26, None, 8192),
    "laguna": _family(40, 2048, 48, 8, 131072, 128, window=512),
    "mellum": _family(28, 2304, 32, 4, 131072, 128, window=1024),
    "molmo2_text": _family(36, 4096, 32, 8, 36864, 128),
    "nanochat": _family(12, 768, 6, None, 2048),
    "olmoe": _family(16, 2048, 16, None, 4096),
    "paddleocr_vl_text": _family(18, 1024, 16, 2, 131072, 128),
    "persimmon": _family(36, 4096, 64, None, 16384),
    "phi4_multimodal": _family(32, 3072, 32, 8, 131072, sliding="all"),
    "qwen2_5_omni_text": _family(
        28, 3584, 28, 4, 32768, sliding="from_max_window_layers", window=32768, max_window_layers=28
    ),
    "qwen3_omni_moe_text": ModelFamily(kv_heads="written", sliding="from_max_window_layers"),
    "sarvam_moe": _family(19, 4096, 64, 4, 131072, 64),
    "solar_open": _family(48, 4096, 64, 8, 131072, 128),
    "vaultgemma": _family(26, 2304, 8, 4, 8192, 256, sliding="pattern", window=4096, pattern=2),
    "afmoe": _family(
        32,
        2048,
        16,
        None,
        16384,
        128,
        sliding="pattern",
        window=1024,
        pattern=4,
        names={"sliding_window_pattern": ("global_attn_every_n_layers",)},
    ),
    "bloom": ModelFamily(kv_heads="all_heads"),
    "codegen": _family(28, 4096, 16, None, 2048, kv_rule="all_heads"),
    "gptj": _family(28, 4096, 16, None, 2048, kv_rule="all_heads"),
    "gpt_bigcode": _family(12, 768, 12, None, 1024, kv_rule="one_if_multi_query", multi_query=True),
    "dbrx": ModelFamily(kv_heads="attn_config"),
    "mpt": ModelFamily(kv_heads="attn_config"),
    "axk1": _family(61, 7168, 64, 64, 32768, kv_lora_rank=512, qk_rope_head_dim=64),
    "minicpm3": _family(62, 2560, 40, 40, 32768, kv_lora_rank=256, qk_rope_head_dim=32),
    "mistral4": _family(36, 4096, 32, 32, 1048576, kv_lora_rank=256, qk_rope_head_dim=64),
    "sarvam_mla": _family(32, 4096, 64, None, 4096, kv_lora_rank=512, qk_rope_head_dim=64),
    "youtu": _family(32, 2048, 16, 16, 131072, kv_lora_rank=512, qk_rope_head_dim=64),
    "longcat_flash": ModelFamily(layers="twice", is_latent=True, names={"num_layers": ("num_layers",)}),
    "kimi_linear": ModelFamily(
        states="kda",
        layers="linear_attn_config",
        is_latent=True,
        names={"max_position_embeddings": ("model_max_length", "max_position_embeddings")},
    ),
    "minimax": ModelFamily(kv_heads="written", states="lightning", layers="attn_type_list"),
    "minimax_text_01": ModelFamily(kv_heads="written", states="lightning", layers="attn_type_list"),
    "minimax_m1": ModelFamily(kv_heads="written", states="lightning", layers="attn_type_list"),
    "minimax_m3": ModelFamily(kv_heads="written", layers="sparse_attention"),
    "minimax_m3_vl": ModelFamily(kv_heads="written", layers="sparse_attention"),
    "minimax_m3_vl_text": ModelFamily(kv_heads="written", layers="sparse_attention"),
    # Classes that come with the checkpoint.
    "Yi": _AS_WRITTEN,
    "aquila": _AS_WRITTEN,
    "arctic": ModelFamily(kv_heads="written", sliding="all"),
    "bailing_moe": ModelFamily(kv_heads="written", sliding="from_max_window_layers"),
    "bailing_moe_v2": ModelFamily(kv_heads="written", sliding="from_max_window_layers"),
    "deepseek": _AS_WRITTEN,
    "ernie4_5_moe_vl": _AS_WRITTEN,
    "internlm2": _AS_WRITTEN,
    "minicpm": _AS_WRITTEN,
    "minicpmo": ModelFamily(kv_heads="written", sliding="from_max_window_layers"),
    "minicpmv": ModelFamily(kv_heads="written", sliding="from_max_window_layers"),
    "molmo": _AS_WRITTEN,
    "orion": _AS_WRITTEN,
    "skywork": _AS_WRITTEN,
    "stablelm_epoch": _AS_WRITTEN,
    "mimo": ModelFamily(kv_heads="written", sliding="from_max_window_layers"),
    "phi3_v": ModelFamily(sliding="all"),
    "phi4mm": ModelFamily(kv_heads="written", sliding="all"),
    "baichuan": _ALL_HEADS,
    "internlm": _ALL_HEADS,
    "qwen": ModelFamily(kv_heads="all_heads", names={"head_dim": ("kv_channels", "head_dim")}),
    "xverse": ModelFamily(),
    "chatglm": ModelFamily(
        kv_heads="groups",
        names={
            "num_hidden_layers": ("num_layers",),
            "head_dim": ("kv_channels",),
            "max_position_embeddings": ("seq_length", "max_sequence_length"),
        },
    ),
    "deci": ModelFamily(layers="heads_per_layer"),
    "nemotron-nas": ModelFamily(layers="block_configs"),
    "openelm": ModelFamily(
        layers="heads_per_layer",
        names={
            "num_hidden_layers": ("num_transformer_layers",),
            "num_key_value_heads_per_layer": ("num_kv_heads",),
            "max_position_embeddings": ("max_context_length",),
        },
    ),
    "RefinedWeb": ModelFamily(kv_heads="refined_web"),
    "RefinedWebModel": ModelFamily(kv_heads="refined_web"),
    "step3_text": _family(
        61,
        7168,
        64,
        1,
        65536,
        256,
        names={**_ATTENTION_GROUPS, "max_position_embeddings": ("max_position_embedding", "max_seq_len")},
    ),
    "step3p5": ModelFamily(kv_heads="written", layers="other_setting", names=_GROUPS_OR_HEADS),
    "step3p7": ModelFamily(kv_heads="written", layers="other_setting", names=_GROUPS_OR_HEADS),
    "dots1": _family(62, 4608, 32, 32, 2048, sliding="from_max_window_layers", window=4096, max_window_layers=62),
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
    "olmo_hybrid": _family(
        32,
        3840,
        30,
        None,
        65536,
        states="gated_delta",
        full_attention_interval=4,
        linear_num_key_heads=30,
        linear_num_value_heads=30,
        linear_key_head_dim=96,
        linear_value_head_dim=192,
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

_NO_ATTENTION: Final = "it has no attention layer, so there are no tokens to page"
_OWN_SHARING: Final = "its attention layers share weights and caches in a way of their own"
_TWO_CACHES: Final = "an encoder-decoder model has two caches, whose sizes depend on the input"
_CONVOLUTIONS: Final = "its layers keep the inputs of convolutions"

REFUSED: Final[Mapping[str, str]] = {
    "falcon_h1": "its layers have attention and a recurrent state each",
    "zamba": _OWN_SHARING,
    "zamba2": _OWN_SHARING,
    "lfm2": _CONVOLUTIONS,
    "lfm2_moe": _CONVOLUTIONS,
    "lfm3": _CONVOLUTIONS,
    "bailing_hybrid": "the sizes of its linear attention's states are not known here",
    "recurrent_gemma": "the sizes of its recurrent states are not known here",
    "mimo_v2_flash": "keys have 192 elements and values 128, and one pool has one head size",
    "deepseek_v4": "its layers keep compressed entries, one for several tokens, which the block manager cannot page",
    "gpt_neo": "its local layers have windows in a form that is not known here",
    "mllama_text_model": "its cross-attention layers keep keys of images",
    "mllama": "its cross-attention layers keep keys of images",
    **dict.fromkeys(
        ("mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv4", "rwkv5", "rwkv6", "rwkv7", "xlstm", "retnet"),
        _NO_ATTENTION,
    ),
    **dict.fromkeys(
        (
            "albert",
            "bert",
            "bert-generation",
            "big_bird",
            "camembert",
            "data2vec-text",
            "deberta",
            "deberta-v2",
            "distilbert",
            "electra",
            "ernie",
            "megatron-bert",
            "modernbert",
            "mpnet",
            "nomic_bert",
            "rembert",
            "roberta",
            "roberta-prelayernorm",
            "roc_bert",
            "roformer",
            "xlm-roberta",
            "xlm-roberta-xl",
            "xmod",
        ),
        "it is an encoder, which keeps no cache",
    ),
    **dict.fromkeys(
        (
            "bart",
            "blenderbot",
            "blenderbot-small",
            "encoder-decoder",
            "fsmt",
            "led",
            "longt5",
            "m2m_100",
            "marian",
            "mbart",
            "moonshine",
            "mt5",
            "mvp",
            "nllb-moe",
            "pegasus",
            "pegasus_x",
            "plbart",
            "prophetnet",
            "seamless_m4t",
            "seamless_m4t_v2",
            "speech-encoder-decoder",
            "speech_to_text",
            "switch_transformers",
            "t5",
            "t5gemma",
            "umt5",
            "vision-encoder-decoder",
            "whisper",
        ),
        _TWO_CACHES,
    ),
}
"""Model types whose cache cannot be derived here, and why."""
