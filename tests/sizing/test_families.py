"""Model types whose layers are described in ways of their own: what they keep, and what is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from trtkv.common import RECURRENT_STATES, CacheType, DataType
from trtkv.errors import InvalidInputError
from trtkv.sizing.hf_config import make_hf_config
from trtkv.sizing.model_shape import ModelShape, make_model_shape

STATES = RECURRENT_STATES

BASE = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 4,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


def shape(model_type: str, **keys: Any) -> ModelShape:
    values = {"model_type": model_type, **BASE, **keys}
    return make_model_shape(make_hf_config({k: v for k, v in values.items() if v is not ...}, "config.json"), "test")


def layers(model_type: str, **keys: Any) -> dict[tuple[Any, ...], int]:
    """Counted layers: window, KV heads, head size, index bytes."""
    return Counter(tuple(layer) for layer in shape(model_type, **keys).layers)


def block(**attention: Any) -> dict[str, Any]:
    return {"attention": {"n_heads_in_group": None, "no_op": False, **attention}}


MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
OTHER_SETTING = {"attention_type": "sliding_attention", "num_attention_groups": 2, "head_dim": 64}
SPARSE = {"sparse_attention_freq": [0, 1, 1, 1], "sparse_disable_index_value": [0, 1, 1, 0], "sparse_index_dim": 128}
KDA = {"full_attn_layers": [4], "kda_layers": [1, 2, 3], "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4}
LINEAR = {"linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4}
TYPES = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
NAS = [block(n_heads_in_group=8), block(no_op=True), block(n_heads_in_group=4, window_length=512), block(no_op=True)]


@pytest.mark.parametrize(
    ("model_type", "keys", "expected"),
    [
        ("nemotron-nas", {"block_configs": NAS}, {(None, 4, 128, 0): 1, (512, 8, 128, 0): 1}),
        (
            "deci",
            {"num_key_value_heads_per_layer": [4, 4, 2, 1]},
            {(None, 4, 128, 0): 2, (None, 2, 128, 0): 1, (None, 1, 128, 0): 1},
        ),
        (
            "openelm",
            {"num_hidden_layers": ..., "num_transformer_layers": 2, "num_kv_heads": [3, 5], "head_dim": 64},
            {(None, 3, 64, 0): 1, (None, 5, 64, 0): 1},
        ),
        (
            "chatglm",
            {
                "num_hidden_layers": ...,
                "num_layers": 3,
                "kv_channels": 64,
                "multi_query_attention": True,
                "multi_query_group_num": 2,
            },
            {(None, 2, 64, 0): 3},
        ),
        ("chatglm", {"num_hidden_layers": ..., "num_layers": 3}, {(None, 32, 128, 0): 3}),
        ("dbrx", {"attn_config": {"kv_n_heads": 8}}, {(None, 8, 128, 0): 4}),
        ("mpt", {"attn_config": {"kv_n_heads": 8}}, {(None, 8, 128, 0): 4}),
        ("mpt", {}, {(None, 32, 128, 0): 4}),
        ("mpt", {"attn_config": {"attn_type": "multiquery_attention"}}, {(None, 1, 128, 0): 4}),
        ("RefinedWeb", {"n_head_kv": 8}, {(None, 8, 128, 0): 4}),
        ("RefinedWebModel", {"multi_query": True}, {(None, 1, 128, 0): 4}),
        ("baichuan", {}, {(None, 32, 128, 0): 4}),
        ("gpt_bigcode", {"multi_query": False}, {(None, 32, 128, 0): 4}),
        ("step3_text", {"num_attention_groups": 1, "head_dim": 256}, {(None, 1, 256, 0): 4}),
        (
            "step3p5",
            {
                "num_attention_groups": 8,
                "sliding_window": 512,
                "layer_types": [*TYPES, "sliding_attention"],
                "num_nextn_predict_layers": 1,
                "attention_other_setting": OTHER_SETTING,
            },
            {(None, 8, 128, 0): 2, (512, 2, 64, 0): 2},
        ),
        ("longcat_flash", {**MLA, "num_layers": 3, "num_hidden_layers": 6}, {(None, 1, 576, 0): 6}),
        ("hunyuan_v1_moe", {"num_key_value_heads": 8, "use_cla": True, "cla_share_factor": 2}, {(None, 8, 128, 0): 2}),
        ("hunyuan_v1_moe", {"num_key_value_heads": 8, "use_cla": False, "cla_share_factor": 2}, {(None, 8, 128, 0): 4}),
        ("hunyuan", {"num_key_value_heads": 8, "use_mla": False, **MLA}, {(None, 8, 128, 0): 4}),
        (
            "minimax_text_01",
            {"num_key_value_heads": 8, "attn_type_list": [0, 0, 0, 1]},
            {(STATES, 8, 128, 0): 3, (None, 8, 128, 0): 1},
        ),
        (
            "minimax_m3",
            {"num_key_value_heads": 4, "sparse_attention_config": SPARSE},
            {(None, 4, 128, 0): 1, (None, 4, 128, 256): 2, (None, 4, 128, 512): 1},
        ),
        (
            "kimi_linear",
            {**MLA, "linear_attn_config": KDA, "model_max_length": 1024},
            {(STATES, 1, 576, 0): 3, (None, 1, 576, 0): 1},
        ),
        ("glm_moe_dsa", {**MLA, "index_head_dim": 128}, {(None, 1, 576, 132): 4}),
        (
            "glm_moe_dsa",
            {**MLA, "index_head_dim": 128, "indexer_types": ["full", "shared", "shared", "full"]},
            {(None, 1, 576, 132): 2, (None, 1, 576, 0): 2},
        ),
        ("glm_moe_dsa", {**MLA, "layer_types": ["deepseek_sparse_attention"] * 4}, {(None, 1, 576, 132): 4}),
        (
            "mimo",
            {"num_key_value_heads": 8, "sliding_window": 32768, "use_sliding_window": False},
            {(None, 8, 128, 0): 4},
        ),
        (
            "exaone4",
            {"num_key_value_heads": 8, "sliding_window": 4096, "sliding_window_pattern": "LLLG", "layer_types": TYPES},
            {(None, 8, 128, 0): 2, (4096, 8, 128, 0): 2},
        ),
        ("deepseek_v2", {"kv_lora_rank": None, "use_mla": False}, {(None, 32, 128, 0): 4}),
        (
            "exaone4",
            {"num_key_value_heads": 8, "sliding_window": 4096, "sliding_window_pattern": "LG"},
            {(None, 8, 128, 0): 2, (4096, 8, 128, 0): 2},
        ),
        ("gpt_bigcode", {"multi_query": True, "num_key_value_heads": 1, "n_inner": 512}, {(None, 1, 128, 0): 4}),
        ("RefinedWebModel", {"multi_query": False}, {(None, 32, 128, 0): 4}),
        ("dbrx", {"attn_config": {"kv_n_heads": 8}, "ffn_config": {"hidden_size": 4096}}, {(None, 8, 128, 0): 4}),
        (
            "bailing_moe",
            {"num_key_value_heads": 4, "max_window_layers": 2, "norm_head": True},
            {(None, 4, 128, 0): 4},
        ),
        (
            "granitemoehybrid",
            {"num_key_value_heads": 8, "layer_types": ["attention"] * 4, "mamba_d_head": 64, "mamba_n_heads": 128},
            {(None, 8, 128, 0): 4},
        ),
        (
            "cohere2_moe",
            {"num_key_value_heads": 8, "sliding_window": 512, "layer_types": TYPES, "sliding_window_pattern": 4},
            {(None, 8, 128, 0): 2, (512, 8, 128, 0): 2},
        ),
        (
            "step3p7",
            {"num_key_value_heads": 8, "sliding_window": 512, "layer_types": TYPES},
            {(None, 8, 128, 0): 2, (512, 8, 128, 0): 2},
        ),
        (
            "kimi_linear",
            {**MLA, "layer_types": ["linear_attention"] * 3 + ["full_attention"], **LINEAR},
            {(STATES, 1, 576, 0): 3, (None, 1, 576, 0): 1},
        ),
        (
            "gemma4_text",
            {
                "num_key_value_heads": 8,
                "head_dim": 256,
                "sliding_window": 512,
                "layer_types": TYPES,
                "attention_k_eq_v": True,
                "per_layer_config": {"00": {"head_dim": 512, "num_key_value_heads": 2}, "3": {"head_dim": 512}},
            },
            {(None, 2, 512, 0): 1, (None, 8, 512, 0): 1, (512, 8, 256, 0): 2},
        ),
        ("minimax_m2", {"num_key_value_heads": 8, "head_dim": 128, "attn_type_list": [1] * 4}, {(None, 8, 128, 0): 4}),
    ],
)
def test_layers_by_the_rule_of_the_type(model_type: str, keys: dict[str, Any], expected: object) -> None:
    assert layers(model_type, **keys) == expected


def test_longest_sequences_and_states() -> None:
    assert shape("chatglm", num_hidden_layers=..., num_layers=3, seq_length=131072).max_position_embeddings == 131072
    assert shape("step3_text", max_position_embedding=65536).max_position_embeddings == 65536
    assert shape("baichuan", max_position_embeddings=..., model_max_length=4096).max_position_embeddings == 4096
    kimi = shape("kimi_linear", **MLA, linear_attn_config=KDA, model_max_length=2**20)
    assert (kimi.cache_type, kimi.state_dtype, kimi.max_position_embeddings) == (
        CacheType.SELFKONLY,
        DataType.FLOAT,
        2**20,
    )
    assert kimi.states is not None
    assert kimi.states.bytes_of_layer(1, DataType.BF16, DataType.FLOAT) == 3 * 32 * 128 * 3 * 2 + 32 * 128 * 128 * 4
    lightning = shape("minimax_m1", num_key_value_heads=8, attn_type_list=[0, 1, 0, 1]).states
    assert lightning is not None
    assert lightning.bytes_of_layer(8, DataType.BF16, DataType.BF16) == 4 * 128 * 128 * 2


@pytest.mark.parametrize(
    ("model_type", "keys", "told"),
    [
        ("nemotron-nas", {"block_configs": NAS[:3]}, "block_configs has 3 entries, but the model has 4 layers"),
        ("nemotron-nas", {}, "block_configs is missing"),
        (
            "nemotron-nas",
            {"block_configs": [*NAS[:3], block(n_heads_in_group=5)]},
            r"block_configs\[3\].attention.n_heads_in_group is 5",
        ),
        ("nemotron-nas", {"block_configs": [*NAS[:3], block()]}, r"n_heads_in_group is None, not a whole number"),
        ("deci", {"num_key_value_heads_per_layer": [4, 4, 2, 0]}, r"num_key_value_heads_per_layer\[3\] is 0"),
        ("chatglm", {"num_layers": 3, "multi_query_group_num": 2}, "multi_query_attention is missing beside"),
        ("chatglm", {"num_layers": 3, "multi_query_attention": True}, "multi_query_group_num is missing"),
        ("dbrx", {}, "attn_config.kv_n_heads is missing"),
        ("RefinedWeb", {}, "n_head_kv is missing"),
        ("step3_text", {"num_attention_groups": None}, "num_key_value_heads is missing"),
        (
            "step3p5",
            {"num_attention_groups": 8, "layer_types": TYPES, "sliding_window": 512},
            "attention_other_setting is missing",
        ),
        (
            "step3p5",
            {"num_attention_groups": 8, "layer_types": [*TYPES, "full_attention"]},
            "layer_types lists 5 layers",
        ),
        ("longcat_flash", MLA, "num_layers is missing"),
        (
            "kimi_linear",
            {**MLA, "linear_attn_config": {**KDA, "kda_layers": [1, 2]}},
            "do not name each of the 4 layers once",
        ),
        ("minimax_m3", {"num_key_value_heads": 4}, "sparse_attention_config is missing"),
        ("glm_moe_dsa", {**MLA, "index_topk_freq": 4}, "index_topk_freq is 4, not 1 in a config without indexer_types"),
        ("glm_moe_dsa", {**MLA, "indexer_types": ["full", "odd", "full", "full"]}, r"indexer_types\[1\] is 'odd'"),
        ("deepseek_v2", {"kv_lora_rank": None, "qk_rope_head_dim": 64}, "kv_lora_rank is None"),
        ("llama", {"num_key_value_heads": 7}, "32 attention heads cannot share 7 KV heads evenly"),
        (
            "qwen2",
            {"use_sliding_window": False, "layer_types": TYPES, "sliding_window": 64, "num_key_value_heads": 4},
            "use_sliding_window is false, but 2 layers are sliding",
        ),
        ("falcon", {"num_kv_heads": 8, "multi_query": True}, "new_decoder_architecture is missing beside num_kv_heads"),
        (
            "deepseek_v4",
            {"compress_ratios": [0, 4, 128]},
            "one for 4 or 128 tokens, which the block manager cannot page",
        ),
        ("mimo_v2_flash", {}, "keys have 192 elements and values 128"),
        ("rwkv6", {}, "it has no attention layer"),
        ("whisper", {}, "an encoder-decoder model has two caches"),
        ("bert", {}, "it is an encoder, which keeps no cache"),
        ("llama", {"n_layer": 5}, "num_hidden_layers is 4, but n_layer is 5"),
        ("llama", {"loop_num": 2, "use_cla": True}, "loop_num, use_cla may change what layers keep, and the rule"),
        ("minimax_m2", {"num_key_value_heads": 8, "attn_type_list": [1, 0, 1, 1]}, "attn_type_list may change"),
        ("gpt_bigcode", {"multi_query": True, "num_key_value_heads": 8}, "num_key_value_heads is 8, not 1, although"),
        ("exaone4", {"sliding_window": 512, "sliding_window_pattern": "LX"}, "is 'LX', not a whole number, or a text"),
        ("cohere2_moe", {"num_key_value_heads": 8, "sliding_window": 512}, "layer_types is missing; it tells which"),
        ("llama", {"per_layer_config": {"4": {}}}, "per_layer_config names layer '4', but there are 4 layers"),
        ("llama", {"per_layer_config": {"0": {"head_dim": 0}}}, r"per_layer_config\.0\.head_dim is 0, not a whole"),
        ("llama", {"per_layer_config": {"0": 8}}, r"per_layer_config\.0 is 8, not an object"),
        (
            "llama",
            {"per_layer_config": {"0": {"num_key_value_heads": 7}}},
            "32 attention heads cannot share 7 KV heads",
        ),
        (
            "llama",
            {"per_layer_config": {"2": {"sliding_window": 8}}},
            "changes sliding_window of layer 2, which is not",
        ),
        ("deepseek_v3", {**MLA, "num_key_value_heads": 32, "per_layer_config": {"0": {}}}, "model of latent attention"),
    ],
)
def test_configs_that_contradict_themselves_or_say_too_little(model_type: str, keys: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        shape(model_type, **keys)


# -- types that are not known ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"attention_bias": True, "q_lora_rank": 1536, "mlp_layer_types": ["dense"] * 4, "n_group": 8, "lm_head": True},
        {"layer_types": TYPES, "sliding_window": 128, "sliding_window_pattern": 2},
        {"sliding_window_size": -1, "global_attn_every_n": 1, "max_attn_value": 30.0, "query_num": 64},
        {"sliding_window_size": -1, "cla_share_factor": 2, "layer_rope_theta": [1.0]},
        {"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 3},
        {"max_window_layers": 3, "moe_group_size": 2, "vision_layers": 24, "layerdrop": 0.1, "layer_norm_type": "rms"},
        {"attention_dropout": 0.1, "head_mask": None, "use_linear_attn": False, "kv_list": []},
    ],
)
def test_unknown_types_pass_where_every_key_is_understood(keys: dict[str, Any]) -> None:
    found = shape("brand_new", num_key_value_heads=8, **keys)
    assert sum(layer.num_kv_heads for layer in found.layers) == 32
    assert found.notes[0] == "model type 'brand_new' is not known here: read by the usual keys"


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"qwzyjf": 64}, "head_dim is missing, and qwzyjf may stand for it"),
        ({"total_ut_steps": 4}, "and total_ut_steps may change what its layers keep"),
        ({"loop_num": 2}, "and loop_num may change what its layers keep"),
        ({"layer_group_size": 8, "attn_type_list": [1]}, "and attn_type_list, layer_group_size may change"),
        ({"attn_config": {}, "use_cla": True, "cla_share_factor": 2}, "and cla_share_factor, use_cla may change"),
        ({"kv_lora_rank": 512}, "and kv_lora_rank may change"),
        ({"sliding_window": 512}, r"sliding_window may change what its layers keep; write layer_types"),
        (
            {"sliding_window": 512, "hybrid_pattern": [1]},
            r"hybrid_pattern, sliding_window may change .*; describe its layers",
        ),
        ({"num_key_value_heads": ...}, "and num_key_value_heads is missing; it may stand under another name"),
        ({f"kv_{i}": 1 for i in range(12)}, "kv_0, kv_1, kv_10, kv_11, kv_2, kv_3, kv_4, kv_5 and 4 more may change"),
        ({"kv\n\ud800": 1}, r"and 'kv\\n\\ud800' may change"),
    ],
)
def test_unknown_types_are_refused_with_the_keys_in_doubt(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInputError, match=f"config.json: .*{told}"):
        shape("brand_new", **{"num_key_value_heads": 8, **keys})


def test_the_advice_to_list_layers_stands_alone() -> None:
    """Written for a model with other keys in doubt, it would be sized wrong."""
    with pytest.raises(InvalidInputError) as raised:
        shape("brand_new", num_key_value_heads=8, sliding_window=512, swa_num_key_value_heads=4)
    assert "layer_types" not in str(raised.value)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"num_key_value_heads_": 8}, "num_key_value_heads is missing, and num_key_value_heads_ may stand for it"),
        ({"kv_groups": 8}, "num_key_value_heads is missing, and kv_groups may stand for it"),
        ({"num_key_value_heads": 8, "haed_dim": 64}, "head_dim is missing, and haed_dim may stand for it"),
        ({"num_key_value_heads": 8, "text_model": {"head_dim": 64}}, "head_dim is missing, and text_model may stand"),
        ({"num_key_value_heads": 8, "num_hidden_layers": ...}, "num_hidden_layers is missing"),
        ({"num_key_value_heads": 8, "qwzyjf": 64}, "head_dim is missing, and qwzyjf may stand for it"),
    ],
)
def test_known_types_do_not_fall_back_on_defaults_beside_a_misspelling(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        shape("llama", **keys)


def test_the_part_of_a_larger_model_may_leave_out_what_its_class_has() -> None:
    config = {"model_type": "llava", "text_config": {"model_type": "llama", "max_position_embeddings": 4096}}
    found = make_model_shape(make_hf_config(config, "config.json"), "llava")
    assert (len(found.layers), found.layers[0].num_kv_heads) == (32, 32)
    assert "not in the file, so the defaults of the model's class: num_hidden_layers 32" in found.notes[1]
    with pytest.raises(InvalidInputError, match="num_hidden_layers stands beside the text part and not in it"):
        make_model_shape(make_hf_config({**config, "num_hidden_layers": 40}, "config.json"), "llava")
    with pytest.raises(InvalidInputError, match="text_config and llm_config are both there"):
        make_hf_config({**config, "llm_config": {}}, "config.json")
    with pytest.raises(InvalidInputError, match="text_config is 'x', not an object"):
        make_hf_config({"text_config": "x"}, "config.json")


def test_facts_name_the_key_where_they_stood() -> None:
    found = shape("chatglm", num_hidden_layers=..., num_layers=3, multi_query_attention=True, multi_query_group_num=2)
    assert found.facts["num_hidden_layers"] == (3, "num_layers")
    assert found.facts["multi_query_group_num"] == (2, "multi_query_group_num")
    assert shape("dbrx", attn_config={"kv_n_heads": 8}).facts["attn_config.kv_n_heads"][0] == 8
