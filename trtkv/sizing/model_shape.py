"""ModelShape: what of a model decides the size of its cache, read from its config.json."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from trtkv.common import RECURRENT_STATES, CacheType, DataType, WindowSize
from trtkv.errors import InvalidInputError
from trtkv.sizing.hf_config import CONFIG_FILE_NAME, HfConfig, read_hf_config
from trtkv.sizing.layer_kinds import LayerKind, read_layer_kinds
from trtkv.sizing.model_families import FAMILIES, REFUSED, ModelFamily
from trtkv.sizing.recurrent_states import RecurrentStates, read_recurrent_states

DEFAULT_DTYPE: Final = DataType.BF16
"""Taken for a config without an element type."""

_DTYPES: Final[Mapping[str, DataType]] = {
    "float32": DataType.FLOAT,
    "float": DataType.FLOAT,
    "float16": DataType.HALF,
    "half": DataType.HALF,
    "bfloat16": DataType.BF16,
}
_KV_ALGORITHMS: Final[Mapping[str, DataType]] = {"FP8": DataType.FP8, "INT8": DataType.INT8, "NVFP4": DataType.NVFP4}
_KV_SCHEMES: Final[Mapping[str, DataType]] = {
    "float8": DataType.FP8,
    "int8": DataType.INT8,
    "float4": DataType.NVFP4,
}
_WHOLE_SEQUENCE: Final = (LayerKind.FULL, LayerKind.CHUNKED, LayerKind.INDEXED)


class CachedLayer(NamedTuple):
    """One layer that keeps something of a sequence."""

    window: WindowSize | None
    """Tokens; None: all of the sequence; RECURRENT_STATES: a state."""
    num_kv_heads: int
    """Before tensor parallelism."""
    size_per_head: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Layers with a cache, in order, and what they hold."""

    name: str
    model_type: str
    num_layers: int
    """All layers of the model."""
    layers: tuple[CachedLayer, ...]
    dtype: DataType
    """Element type of the model."""
    kv_dtype: DataType
    """Element type of the cache that the checkpoint asks for; mostly the one of the model."""
    cache_type: CacheType
    max_position_embeddings: int | None
    states: RecurrentStates | None
    state_dtype: DataType
    """Element type of recurrent states other than those of convolutions."""
    index_head_dim: int
    """Elements of an index key beside each token, in bytes; 0 without."""
    notes: tuple[str, ...]
    """What a reader of the sizes should know."""

    @property
    def linear_layer_indices(self) -> tuple[int, ...]:
        """Positions in ``layers`` of those that keep recurrent states."""
        return tuple(i for i, layer in enumerate(self.layers) if layer.window == RECURRENT_STATES)


def read_model_shape(path: str | os.PathLike[str]) -> ModelShape:
    """The shape of the model whose config.json (or folder with one) this is.

    Raises InvalidInputError when the file cannot be read or does not tell what the layers keep.
    """
    file = Path(path)
    name = file.resolve().parent.name if file.name == CONFIG_FILE_NAME else file.name.removesuffix(".json")
    return make_model_shape(read_hf_config(file), name)


def make_model_shape(config: HfConfig, name: str) -> ModelShape:
    """The shape of a config that is read already."""
    model_type = config.optional_text("model_type") or ""
    _refuse(config, model_type)
    family = FAMILIES.get(model_type)
    notes: list[str] = []
    if family is None:
        notes.append(f"model type {model_type!r} is not known here: read by the usual keys")
    else:
        config = config.with_defaults(family.defaults)
    kinds = read_layer_kinds(config, family)
    if not any(kind in (*_WHOLE_SEQUENCE, LayerKind.SLIDING) for kind in kinds):
        raise InvalidInputError(f"{config.source}: no layer has attention, so there are no tokens to page")
    states = _read_states(config, kinds, family)
    is_latent = config.get("kv_lora_rank") is not None
    layers = tuple(_make_layer(config, kind, is_latent) for kind in kinds if kind is not LayerKind.NOTHING)
    dtype = _read_dtype(config, notes)
    notes += _layer_notes(config, kinds, is_latent)
    index_head_dim = config.optional_integer("index_head_dim", 0) or 0
    return ModelShape(
        name=name,
        model_type=model_type,
        num_layers=len(kinds),
        layers=layers,
        dtype=dtype,
        kv_dtype=_read_kv_dtype(config, notes) or dtype,
        cache_type=CacheType.SELFKONLY if is_latent else CacheType.SELF,
        max_position_embeddings=config.optional_integer("max_position_embeddings"),
        states=states,
        state_dtype=_read_state_dtype(config, dtype),
        index_head_dim=index_head_dim if is_latent else 0,
        notes=tuple(notes),
    )


def _refuse(config: HfConfig, model_type: str) -> None:
    if model_type in REFUSED:
        raise InvalidInputError(f"{config.source}: the cache of {model_type} cannot be sized: {REFUSED[model_type]}")
    if config.get_outer("is_encoder_decoder") is True:
        raise InvalidInputError(
            f"{config.source}: an encoder-decoder model has two caches, whose sizes depend on the input; not sized here"
        )


def _make_layer(config: HfConfig, kind: LayerKind, is_latent: bool) -> CachedLayer:
    window = config.integer("sliding_window") if kind is LayerKind.SLIDING else None
    if is_latent:
        size = config.integer("kv_lora_rank") + config.integer("qk_rope_head_dim")
        return CachedLayer(window, 1, size)
    num_kv_heads, size_per_head = _num_kv_heads(config), _size_per_head(config)
    if kind is LayerKind.STATES:
        return CachedLayer(RECURRENT_STATES, num_kv_heads, size_per_head)
    if kind in _WHOLE_SEQUENCE:
        size_per_head = config.optional_integer("global_head_dim") or size_per_head
        if config.boolean("attention_k_eq_v"):
            num_kv_heads = config.optional_integer("num_global_key_value_heads") or num_kv_heads
    return CachedLayer(window, num_kv_heads, size_per_head)


def _num_kv_heads(config: HfConfig) -> int:
    if config.boolean("multi_query") and not config.boolean("new_decoder_architecture"):
        return 1
    num_heads = config.optional_integer("num_key_value_heads")
    return config.integer("num_attention_heads") if num_heads is None else num_heads


def _size_per_head(config: HfConfig) -> int:
    size = config.optional_integer("head_dim")
    if size is not None:
        return size
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if hidden_size % num_heads:
        raise InvalidInputError(
            f"{config.source}: hidden_size {hidden_size} is no multiple of num_attention_heads {num_heads}, and "
            "head_dim is missing"
        )
    return hidden_size // num_heads


def _read_states(config: HfConfig, kinds: list[LayerKind], family: ModelFamily | None) -> RecurrentStates | None:
    if LayerKind.STATES not in kinds:
        return None
    if family is None or family.states is None:
        raise InvalidInputError(
            f"{config.source}: layers of model type {config.get('model_type')!r} keep recurrent states, "
            "whose sizes are not known here"
        )
    return read_recurrent_states(config, family.states)


def _read_dtype(config: HfConfig, notes: list[str]) -> DataType:
    written = config.get_outer("dtype")
    if written is None:
        notes.append(f"the config names no dtype; {DEFAULT_DTYPE.value} is assumed")
        return DEFAULT_DTYPE
    dtype = _named_dtype(config, "dtype", written)
    if dtype is DataType.FLOAT:
        notes.append("the config says float32; servers mostly keep 16 bits: choose with --kv-dtype bf16")
    return dtype


def _read_state_dtype(config: HfConfig, dtype: DataType) -> DataType:
    for key in ("mamba_ssm_cache_dtype", "mamba_ssm_dtype"):
        written = config.get(key)
        if written is not None and written != "auto":
            return _named_dtype(config, key, written)
    return dtype


def _named_dtype(config: HfConfig, key: str, written: object) -> DataType:
    name = written.removeprefix("torch.") if isinstance(written, str) else ""
    if name not in _DTYPES:
        raise config.fault(key, written, f"one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _read_kv_dtype(config: HfConfig, notes: list[str]) -> DataType | None:
    """The cache type of a quantised checkpoint, or None."""
    quantization = config.get_outer("quantization_config")
    if not isinstance(quantization, dict):
        return None
    found = _KV_ALGORITHMS.get(str(quantization.get("kv_cache_quant_algo")).upper())
    scheme = quantization.get("kv_cache_scheme")
    if found is None and isinstance(scheme, dict):
        found = _KV_SCHEMES.get(f"{scheme.get('type')}{scheme.get('num_bits')}")
        if found is None:
            raise config.fault("quantization_config.kv_cache_scheme", scheme, "a cache type known here")
    if found is not None:
        notes.append(f"the checkpoint asks for a cache of {found.value}")
    return found


def _layer_notes(config: HfConfig, kinds: list[LayerKind], is_latent: bool) -> list[str]:
    notes = []
    counts = Counter(kinds)
    if len(counts) > 1 or LayerKind.CHUNKED in counts:
        listed = ", ".join(f"{count} {kind.value}" for kind, count in counts.items())
        notes.append(f"{len(kinds)} layers: {listed}")
    if counts[LayerKind.CHUNKED]:
        notes.append("layers of chunked attention are sized for the whole sequence")
    if is_latent:
        notes.append("multi-head latent attention: one latent vector per token, the same on every rank")
    num_predictors = config.optional_integer("num_nextn_predict_layers", 0)
    if num_predictors:
        notes.append(f"{num_predictors} more layers for predicting several tokens are not counted")
    return notes
