"""The transformers library as a second opinion: defaults of model types, layers, and caches that models really fill."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sizing.models import NAMES, shape_of, values
from trtkv.common import RECURRENT_STATES, CacheType, DataType
from trtkv.sizing.hf_config import make_hf_config
from trtkv.sizing.model_families import FAMILIES
from trtkv.sizing.model_shape import ModelShape, make_model_shape

pytestmark = pytest.mark.slow

NUM_TOKENS = 7
HALF_BYTES = 2
RUNNABLE = [name for name in NAMES if not name.startswith("deepseek")]
"""Models whose cache holds there what it holds here; that of MLA models is not compressed there."""


NO_MODEL = ("bamba", "granitemoehybrid", "nemotron_h")
"""Their defaults there are a layout that no model has."""

WITH_DEFAULTS = sorted(name for name, family in FAMILIES.items() if family.defaults and name not in NO_MODEL)


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="transformers is not installed")


def text_config(transformers: Any, name: str) -> Any:
    found = values(name)
    model_type = found.pop("model_type")
    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} does not know {model_type}")
    return transformers.CONFIG_MAPPING[model_type](**found).get_text_config(decoder=True)


def windows_there(config: Any) -> list[int | None]:
    """Windows of the layers with a cache, as the library makes its own cache; chunks do not count as windows here."""
    from transformers.cache_utils import get_layer_types_and_kwargs

    types, settings = get_layer_types_and_kwargs(config)
    special = {"linear_attention": RECURRENT_STATES, "chunked_attention": None}
    return [
        special[kind] if kind in special else setting.get("sliding_window")
        for kind, setting in zip(types, settings, strict=True)
        if kind != "dummy"
    ]


@pytest.mark.parametrize("name", NAMES)
def test_layers_of_the_fixtures(transformers: Any, name: str) -> None:
    config = text_config(transformers, name)
    shape = shape_of(name)
    assert [layer.window for layer in shape.layers] == windows_there(config)
    assert shape.max_position_embeddings == config.max_position_embeddings


def shape_of_defaults(model_type: str) -> ModelShape:
    # Inside a larger config, where a part leaves out what its class has by default.
    return make_model_shape(make_hf_config({"text_config": {"model_type": model_type}}, model_type), model_type)


@pytest.mark.parametrize("model_type", WITH_DEFAULTS)
def test_defaults_of_model_types(transformers: Any, model_type: str) -> None:
    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} does not know {model_type}")
    config = transformers.CONFIG_MAPPING[model_type]().get_text_config(decoder=True)
    shape = shape_of_defaults(model_type)
    assert [layer.window for layer in shape.layers] == windows_there(config)
    assert shape.max_position_embeddings == config.max_position_embeddings
    heads = getattr(config, "num_key_value_heads", None)
    if shape.cache_type is CacheType.SELF and model_type not in ("falcon", "gemma4_text", "gemma4_unified_text"):
        assert {layer.num_kv_heads for layer in shape.layers} == {heads or config.num_attention_heads}
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        assert {layer.size_per_head for layer in shape.layers} == {size}
    if shape.cache_type is CacheType.SELFKONLY:
        assert shape.layers[0].size_per_head == config.kv_lora_rank + config.qk_rope_head_dim


@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
def test_a_model_fills_as_many_bytes(transformers: Any, name: str) -> None:
    """A forward pass without weights; what its cache then holds is what a token takes here."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    config = text_config(transformers, name)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        cache = transformers.DynamicCache(config=config)
        model(input_ids=torch.zeros(1, NUM_TOKENS, dtype=torch.long), past_key_values=cache, use_cache=True)
    shape = shape_of(name)
    held = [layer for layer in cache.layers if getattr(layer, "keys", None) is not None and layer.keys.numel()]
    num_bytes = sum((layer.keys.numel() + layer.values.numel()) * HALF_BYTES for layer in held)
    attention = [layer for layer in shape.layers if layer.window != RECURRENT_STATES]
    assert num_bytes == NUM_TOKENS * HALF_BYTES * sum(2 * a.num_kv_heads * a.size_per_head for a in attention)
    if shape.states is not None:
        states = next(layer for layer in cache.layers if hasattr(layer, "recurrent_states"))
        recurrent, conv = states.recurrent_states[0], states.conv_states[0]
        # There the convolution keeps as many columns as its kernel is wide, here one fewer.
        channels, columns = conv.shape[1], conv.shape[2] - 1
        expected = (recurrent[0].numel() + channels * columns) * HALF_BYTES
        assert shape.states.bytes_of_layer(1, DataType.HALF, DataType.HALF) == expected
