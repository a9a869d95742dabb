"""What configs of well-known models say about their cache, and configs that do not say it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.sizing.models import NAMES, shape_of, values
from trtkv.common import RECURRENT_STATES, CacheType, DataType
from trtkv.errors import ConfigurationError, InvalidInputError
from trtkv.sizing.model_shape import ModelShape, read_model_shape

KEYS_AND_VALUES, KEYS = CacheType.SELF, CacheType.SELFKONLY
STATES = RECURRENT_STATES

EXPECTED = {
    # layers by (window, KV heads, head size); all layers; cache; longest sequence
    "llama-3.1-8b": ({(None, 8, 128): 32}, 32, KEYS_AND_VALUES, 131072),
    "qwen2.5-7b": ({(None, 4, 128): 28}, 28, KEYS_AND_VALUES, 32768),
    "qwen3-8b": ({(None, 8, 128): 36}, 36, KEYS_AND_VALUES, 40960),
    "gemma-2-9b": ({(4096, 8, 256): 21, (None, 8, 256): 21}, 42, KEYS_AND_VALUES, 8192),
    "gemma-3-4b": ({(1024, 4, 256): 29, (None, 4, 256): 5}, 34, KEYS_AND_VALUES, 131072),
    "mistral-7b-v0.1": ({(4096, 8, 128): 32}, 32, KEYS_AND_VALUES, 32768),
    "mistral-nemo-12b": ({(None, 8, 128): 40}, 40, KEYS_AND_VALUES, 131072),
    "gpt-oss-20b": ({(128, 8, 64): 12, (None, 8, 64): 12}, 24, KEYS_AND_VALUES, 131072),
    "deepseek-v2-lite": ({(None, 1, 576): 27}, 27, KEYS, 163840),
    "deepseek-v3": ({(None, 1, 576): 61}, 61, KEYS, 163840),
    "deepseek-v3.2": ({(None, 1, 576): 61}, 61, KEYS, 163840),
    "nemotron-h-8b": ({(STATES, 8, 128): 24, (None, 8, 128): 4}, 52, KEYS_AND_VALUES, 8192),
    "jamba-v0.1": ({(STATES, 8, 128): 28, (None, 8, 128): 4}, 32, KEYS_AND_VALUES, 262144),
    "qwen3-next-80b": ({(STATES, 2, 256): 36, (None, 2, 256): 12}, 48, KEYS_AND_VALUES, 262144),
}


def counted(shape: ModelShape) -> Counter[tuple[int | None, int, int]]:
    """Layers by window, KV heads and head size."""
    return Counter(layer[:3] for layer in shape.layers)


def test_every_fixture_is_expected_to_be_something() -> None:
    assert sorted(EXPECTED) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_layers_of_a_model(name: str) -> None:
    shape = shape_of(name)
    assert (counted(shape), shape.num_layers, shape.cache_type, shape.max_position_embeddings) == EXPECTED[name]


def test_places_of_the_layers() -> None:
    windows = [layer.window for layer in shape_of("gemma-3-4b").layers]
    assert [i for i, window in enumerate(windows) if window is None] == [5, 11, 17, 23, 29]
    assert [layer.window for layer in shape_of("gemma-2-9b").layers[:3]] == [4096, None, 4096]
    jamba = shape_of("jamba-v0.1")
    assert [i for i in range(32) if i not in jamba.linear_layer_indices] == [4, 12, 20, 28]
    qwen = shape_of("qwen3-next-80b")
    assert [i for i in range(48) if i not in qwen.linear_layer_indices] == list(range(3, 48, 4))
    # Layers without a cache are left out: M-M-M-M*- has 4 states and then an attention layer.
    assert shape_of("nemotron-h-8b").linear_layer_indices[:5] == (0, 1, 2, 3, 5)


def test_states_are_as_large_as_worked_out_by_hand() -> None:
    half = DataType.HALF
    sizes = {
        "nemotron-h-8b": 128 * 64 * 128 * 2 + (128 * 64 + 2 * 8 * 128) * 3 * 2,
        "jamba-v0.1": 8192 * 16 * 2 + 8192 * 3 * 2,
        "qwen3-next-80b": 32 * 128 * 128 * 2 + (2 * 16 * 128 + 32 * 128) * 3 * 2,
    }
    for name, size in sizes.items():
        states = shape_of(name).states
        assert states is not None
        assert states.bytes_of_layer(1, half, half) == size
        assert states.bytes_of_layer(2, half, half) == size / 2
    nemotron = shape_of("nemotron-h-8b").states
    assert nemotron is not None
    assert nemotron.bytes_of_layer(1, half, DataType.FLOAT) == sizes["nemotron-h-8b"] + 128 * 64 * 128 * 2


def test_groups_that_cannot_be_split_are_on_every_rank() -> None:
    states = shape_of("nemotron-h-8b", n_groups=1).states
    assert states is not None
    assert states.bytes_of_layer(4, DataType.HALF, DataType.HALF) == 32 * 64 * 128 * 2 + (32 * 64 + 2 * 128) * 3 * 2
    with pytest.raises(ConfigurationError, match="128 heads and 1 groups cannot be shared by 3 ranks"):
        states.bytes_of_layer(3, DataType.HALF, DataType.HALF)


def test_element_types_come_from_the_config() -> None:
    assert shape_of("llama-3.1-8b").dtype is DataType.BF16
    assert shape_of("llama-3.1-8b", torch_dtype=..., dtype="float16").dtype is DataType.HALF
    assert shape_of("gemma-2-9b").dtype is DataType.FLOAT
    assert "--kv-dtype bf16" in shape_of("gemma-2-9b").notes[0]
    assert shape_of("gpt-oss-20b").dtype is DataType.BF16
    assert shape_of("gpt-oss-20b").notes[0] == "the config names no dtype; bf16 is assumed"
    assert shape_of("qwen3-next-80b", mamba_ssm_dtype="float32").state_dtype is DataType.FLOAT
    with pytest.raises(InvalidInputError, match=r"llama-3\.1-8b\.json: dtype is 'float7', not one of float32"):
        shape_of("llama-3.1-8b", torch_dtype="float7")


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ({"quant_method": "fp8"}, DataType.BF16),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, DataType.FP8),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, DataType.FP8),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "int"}}, DataType.INT8),
        ({"kv_cache_scheme": None}, DataType.BF16),
    ],
)
def test_a_quantised_checkpoint_may_ask_for_a_cache_type(quantization: dict[str, object], dtype: DataType) -> None:
    assert shape_of("llama-3.1-8b", quantization_config=quantization).kv_dtype is dtype


def test_an_unknown_cache_type_of_a_checkpoint_is_refused() -> None:
    with pytest.raises(
        InvalidInputError, match=r"kv_cache_scheme is 'int of 3 bits', not a cache type known here \(FP8, INT8, NVFP4\)"
    ):
        shape_of("llama-3.1-8b", quantization_config={"kv_cache_scheme": {"num_bits": 3, "type": "int"}})


def test_sliding_windows_count_only_where_they_are_used() -> None:
    assert {layer.window for layer in shape_of("qwen2.5-7b").layers} == {None}
    used = shape_of("qwen2.5-7b", use_sliding_window=True, sliding_window=4096, max_window_layers=20)
    assert [layer.window for layer in used.layers] == [None] * 20 + [4096] * 8
    assert {layer.window for layer in shape_of("mistral-7b-v0.1", sliding_window=None).layers} == {None}
    assert {layer.window for layer in shape_of("llama-3.1-8b", sliding_window=512).layers} == {None}
    every_third = shape_of("gemma-3-4b", text_config={"model_type": "gemma3_text", "sliding_window_pattern": 3})
    assert [layer.window for layer in every_third.layers[:4]] == [4096, 4096, None, 4096]


def test_missing_and_null_values() -> None:
    assert shape_of("llama-3.1-8b", num_key_value_heads=None).layers[0].num_kv_heads == 32
    assert shape_of("llama-3.1-8b", head_dim=None).layers[0].size_per_head == 128
    assert shape_of("llama-3.1-8b", head_dim=64).layers[0].size_per_head == 64
    assert shape_of("llama-3.1-8b", model_type="gpt2", hidden_size=..., n_embd=2048).layers[0].size_per_head == 64
    with pytest.raises(InvalidInputError, match="hidden_size 4095 is not a multiple of num_attention_heads 32"):
        shape_of("llama-3.1-8b", hidden_size=4095)
    with pytest.raises(InvalidInputError, match=r"num_hidden_layers is '32', not a whole number of at least 1"):
        shape_of("llama-3.1-8b", num_hidden_layers="32")
    with pytest.raises(InvalidInputError, match="num_attention_heads is missing"):
        shape_of("llama-3.1-8b", model_type="new", num_attention_heads=...)


def test_one_key_value_head_for_all_queries() -> None:
    falcon = {"model_type": "falcon", "num_key_value_heads": ..., "multi_query": True}
    assert shape_of("llama-3.1-8b", **falcon).layers[0].num_kv_heads == 1
    assert shape_of("llama-3.1-8b", **falcon, new_decoder_architecture=True, num_kv_heads=4).layers[0].num_kv_heads == 4


def test_layers_that_share_keys_with_earlier_ones_keep_nothing() -> None:
    shape = shape_of("gemma-3-4b", text_config={"model_type": "gemma3n_text"})
    assert (len(shape.layers), shape.num_layers) == (20, 35)
    assert Counter(layer.window for layer in shape.layers) == {512: 16, None: 4}
    with pytest.raises(InvalidInputError, match="num_kv_shared_layers is 40, not fewer than the 35 layers"):
        shape_of("gemma-3-4b", text_config={"model_type": "gemma3n_text", "num_kv_shared_layers": 40})


def test_full_layers_may_have_heads_of_their_own() -> None:
    text = {"model_type": "gemma4_text", "attention_k_eq_v": True, "num_global_key_value_heads": 2}
    assert counted(shape_of("gemma-3-4b", text_config=text)) == {(512, 4, 256): 25, (None, 2, 512): 5}


def test_unknown_model_types_are_read_by_the_usual_keys_and_say_so() -> None:
    shape = shape_of("llama-3.1-8b", model_type="brand_new")
    assert shape.layers == shape_of("llama-3.1-8b").layers
    assert shape.notes == ("model type 'brand_new' is not known here: read by the usual keys",)
    typed = shape_of("gpt-oss-20b", model_type="brand_new")
    assert counted(typed) == EXPECTED["gpt-oss-20b"][0]


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        (
            "mistral-7b-v0.1",
            {"model_type": "brand_new"},
            "'brand_new' is not known here, and sliding_window may change",
        ),
        ("jamba-v0.1", {"model_type": "brand_new"}, "attn_layer_offset, attn_layer_period, mamba_d_conv"),
        (
            "qwen3-next-80b",
            {"model_type": "x", "layer_types": ["linear_attention"] * 47 + ["full_attention"]},
            "linear_conv_kernel",
        ),
        ("llama-3.1-8b", {"layer_types": ["full_attention"] * 31}, "layer_types lists 31 layers, but num_hidden_l"),
        (
            "llama-3.1-8b",
            {"layer_types": ["wavelet"] * 32},
            r"layer_types\[0\] is 'wavelet', not one of full_attention",
        ),
        ("llama-3.1-8b", {"layer_types": "full"}, "layer_types is 'full', not a list"),
        ("nemotron-h-8b", {"hybrid_override_pattern": "MX"}, r"hybrid_override_pattern\[1\] is 'X'"),
        ("nemotron-h-8b", {"hybrid_override_pattern": "M" * 52}, "no layer has attention"),
        ("llama-3.1-8b", {"model_type": "mamba2"}, "the cache of mamba2 cannot be sized: it has no attention layer"),
        ("llama-3.1-8b", {"model_type": "falcon_h1"}, "its layers have attention and a recurrent state each"),
        ("llama-3.1-8b", {"is_encoder_decoder": True}, "an encoder-decoder model has two caches"),
        ("gpt-oss-20b", {"sliding_window": None}, "sliding_window is missing"),
        ("deepseek-v3", {"kv_lora_rank": 0}, "kv_lora_rank is 0, not a whole number of at least 1"),
    ],
)
def test_configs_that_do_not_tell_are_refused(name: str, changes: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        shape_of(name, **changes)


def test_a_folder_stands_for_its_config_and_gives_the_name(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**values("llama-3.1-8b")}))
    for path in (folder, folder / "config.json"):
        assert read_model_shape(path).name == "my-model"
    assert read_model_shape(folder).layers == shape_of("llama-3.1-8b").layers


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "bad JSON"),
        ("[1]", "not a JSON object"),
        ("{", "bad JSON"),
        (None, "No such file"),
        ("[" * 100000, "nested"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, text: str | None, told: str) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidInputError, match=told):
        read_model_shape(path)
