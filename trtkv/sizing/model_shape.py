"""ModelShape: what of a model decides the size of its cache, read from its config.json."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from trtkv.common import RECURRENT_STATES, CacheType, DataType, WindowSize
from trtkv.errors import InvalidInputError
from trtkv.sizing.checkpoint_cache_type import CheckpointCacheType, quant_file_beside, read_checkpoint_cache_type
from trtkv.sizing.hf_config import CONFIG_FILE_NAME, HfConfig, config_file, read_hf_config
from trtkv.sizing.key_check import check_keys_of_unknown_type, check_keys_that_are_left
from trtkv.sizing.kv_heads import check_kv_heads, read_global_heads, read_num_kv_heads, read_size_per_head
from trtkv.sizing.layer_kinds import WHOLE_SEQUENCE, Layer, LayerKind
from trtkv.sizing.layer_rules import read_layers
from trtkv.sizing.model_families import FAMILIES, REFUSED, ModelFamily
from trtkv.sizing.recurrent_states import RecurrentStates, read_recurrent_states

DEFAULT_DTYPE: Final = DataType.BF16
"""Taken for a config without an element type."""

INDEX_KEYS_PER_SCALE: Final = 128
"""Elements of an index key that share a scale of 4 bytes."""

_DTYPES: Final[Mapping[str, DataType]] = {
    "float32": DataType.FLOAT,
    "float": DataType.FLOAT,
    "float16": DataType.HALF,
    "half": DataType.HALF,
    "bfloat16": DataType.BF16,
}


class CachedLayer(NamedTuple):
    """One layer that keeps something of a sequence."""

    window: WindowSize | None
    """Tokens; None: all of the sequence; RECURRENT_STATES: a state."""
    num_kv_heads: int
    """Before tensor parallelism."""
    size_per_head: int
    index_bytes: int = 0
    """Bytes of a token's index key beside its keys and values, the same on every rank."""


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
    """Elements of an index key in 8 bits; 0 without, or where index keys have the model's type."""
    notes: tuple[str, ...]
    """What a reader of the sizes should know."""
    facts: Mapping[str, tuple[object, str | None]] = field(default_factory=dict)
    """What was read: value and the key where it stood, None for a default of the model type."""
    positions: tuple[int, ...] = ()
    """Number of each of ``layers`` among all layers of the model; empty: they are all of them."""
    source: str = ""
    """Path that was read, or ``known``."""

    @property
    def has_even_index_keys(self) -> bool:
        """Whether every layer has the same index key, as a manager's own pool of index keys has."""
        return self.index_head_dim > 0 and len({layer.index_bytes for layer in self.layers}) == 1

    @property
    def layer_numbers(self) -> tuple[int, ...]:
        """Number of each of ``layers`` among all layers of the model."""
        return self.positions or tuple(range(len(self.layers)))

    @property
    def linear_layer_indices(self) -> tuple[int, ...]:
        """Positions in ``layers`` of those that keep recurrent states."""
        return tuple(i for i, layer in enumerate(self.layers) if layer.window == RECURRENT_STATES)


def read_model_shape(path: str | os.PathLike[str], *, ask_checkpoint: bool = True) -> ModelShape:
    """The shape of the model whose config.json (or folder with one) this is.

    ``ask_checkpoint``: whether its files may ask for an element type of the cache. Raises InvalidInputError when a
    file cannot be read or does not tell what the layers keep.
    """
    file = config_file(path)
    config = read_hf_config(file)
    name = file.resolve().parent.name if file.name == CONFIG_FILE_NAME else file.name.removesuffix(".json")
    name = name.encode("utf-8", "replace").decode("utf-8")
    return make_model_shape(config, name, quant_file=quant_file_beside(file), ask_checkpoint=ask_checkpoint)


def make_model_shape(
    config: HfConfig, name: str, *, quant_file: Path | None = None, ask_checkpoint: bool = True
) -> ModelShape:
    """The shape of a config that is read already; ``quant_file`` is the hf_quant_config.json beside it."""
    model_type = _read_model_type(config)
    family = FAMILIES.get(model_type)
    notes: list[str] = []
    if family is None:
        check_keys_of_unknown_type(config, model_type)
        notes.append(f"model type {model_type!r} is not known here: read by the usual keys")
    else:
        config = config.of_family(family.defaults, family.names)
    layers = read_layers(config, family)
    kinds = [layer.kind for layer in layers]
    if not any(kind in (*WHOLE_SEQUENCE, LayerKind.SLIDING) for kind in kinds):
        raise InvalidInputError(f"{config.source}: no layer has attention, so there are no tokens to page")
    _check_sliding(config, kinds)
    is_latent = _is_latent(config, family)
    dtype = _read_dtype(config, notes)
    states = _read_states(config, kinds, family)
    cached = _cached_layers(config, family, layers, dtype, is_latent=is_latent)
    shape = ModelShape(
        name=name,
        model_type=model_type,
        num_layers=len(layers),
        layers=cached,
        dtype=dtype,
        kv_dtype=dtype,
        cache_type=CacheType.SELFKONLY if is_latent else CacheType.SELF,
        max_position_embeddings=config.optional_integer("max_position_embeddings"),
        states=states,
        state_dtype=_read_state_dtype(config, family, dtype),
        positions=tuple(i for i, kind in enumerate(kinds) if kind is not LayerKind.NOTHING),
        index_head_dim=config.integer("index_head_dim") if LayerKind.INDEXED in kinds else 0,
        notes=(),
    )
    check_keys_that_are_left(config, family or ModelFamily(kv_heads="written"), is_latent=is_latent)
    asked = read_checkpoint_cache_type(config, quant_file) if ask_checkpoint else CheckpointCacheType(None, ())
    notes += [*_default_notes(config), *_layer_notes(config, layers, cached, is_latent), *asked.notes]
    return replace(shape, kv_dtype=asked.dtype or dtype, notes=tuple(notes), facts=config.facts)


def _read_model_type(config: HfConfig) -> str:
    """The type of the text part, or of the whole where it has none; refuses what cannot be sized."""
    own = config.optional_text("model_type")
    outer = config.get_outermost("model_type")
    if outer is not None and not isinstance(outer, str):
        raise config.fault("model_type", outer, "a text")
    model_type = own or outer or ""
    reason = _compressed_entries(config)
    for name in (model_type, outer or ""):
        reason = reason or REFUSED.get(name)
    if reason is None and config.get_outer("is_encoder_decoder") not in (None, False):
        reason = "an encoder-decoder model has two caches, whose sizes depend on the input"
    if reason is not None:
        raise InvalidInputError(f"{config.source}: the cache of {model_type or 'this model'} cannot be sized: {reason}")
    return model_type


def _compressed_entries(config: HfConfig) -> str | None:
    ratios = config.get("compress_ratios")
    if not ratios:
        return None
    numbers = sorted({ratio for ratio in ratios if type(ratio) is int and ratio > 1}) if type(ratios) is list else []
    each = " or ".join(map(str, numbers[:4])) or "several"
    return f"its layers keep compressed entries, one for {each} tokens, which the block manager cannot page"


def _check_sliding(config: HfConfig, kinds: list[LayerKind]) -> None:
    """Layers that are listed as sliding contradict a switch that is off."""
    if LayerKind.SLIDING in kinds and config.get("use_sliding_window") is False:
        raise InvalidInputError(
            f"{config.source}: use_sliding_window is false, but {kinds.count(LayerKind.SLIDING)} layers are sliding"
        )


def _is_latent(config: HfConfig, family: ModelFamily | None) -> bool:
    """Whether layers keep a latent vector (MLA) instead of keys and values."""
    if family is None or not family.is_latent or config.get("use_mla") is False:
        return False
    if config.get("kv_lora_rank") is not None:
        return True
    for key in ("qk_rope_head_dim", "qk_nope_head_dim"):
        if config.is_written(key) and config.get(key) != 0:
            raise config.fault("kv_lora_rank", None, f"a whole number, although {key} is {config.get(key)!r:.80}")
    return False


def _cached_layers(
    config: HfConfig, family: ModelFamily | None, layers: list[Layer], dtype: DataType, *, is_latent: bool
) -> tuple[CachedLayer, ...]:
    """The layers that keep something; all of one kind and heads are one object."""
    made: dict[Layer, CachedLayer] = {}
    for layer in layers:
        if layer.kind is not LayerKind.NOTHING and layer not in made:
            made[layer] = _cached_layer(config, family, layer, dtype, is_latent=is_latent)
    return tuple(made[layer] for layer in layers if layer.kind is not LayerKind.NOTHING)


def _cached_layer(
    config: HfConfig, family: ModelFamily | None, layer: Layer, dtype: DataType, *, is_latent: bool
) -> CachedLayer:
    window = layer.window
    if layer.kind is LayerKind.SLIDING and window is None:
        window = config.integer("sliding_window")
    index_bytes = layer.num_index_values * dtype.num_bits // 8
    if layer.kind is LayerKind.INDEXED:
        size = config.integer("index_head_dim")
        index_bytes += size + size // INDEX_KEYS_PER_SCALE * 4
    if is_latent:
        size = config.integer("kv_lora_rank") + config.integer("qk_rope_head_dim")
        return CachedLayer(RECURRENT_STATES if layer.kind is LayerKind.STATES else window, 1, size, index_bytes)
    size_per_head = layer.size_per_head or read_size_per_head(config)
    num_kv_heads = read_num_kv_heads(config, family) if layer.num_kv_heads is None else layer.num_kv_heads
    if layer.num_kv_heads is None:
        check_kv_heads(config, num_kv_heads)
    if layer.kind is LayerKind.STATES:
        return CachedLayer(RECURRENT_STATES, num_kv_heads, size_per_head)
    has_global_heads = family is not None and "global_head_dim" in family.defaults
    if layer.kind in WHOLE_SEQUENCE and has_global_heads and not config.is_written("per_layer_config"):
        num_kv_heads, size_per_head = read_global_heads(config, num_kv_heads, size_per_head)
    return CachedLayer(window, num_kv_heads, size_per_head, index_bytes)


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


def _read_state_dtype(config: HfConfig, family: ModelFamily | None, dtype: DataType) -> DataType:
    for key in ("mamba_ssm_cache_dtype", "mamba_ssm_dtype"):
        written = config.get(key)
        if written is not None and written != "auto":
            return _named_dtype(config, key, written)
    # Engines keep the state of Kimi's delta attention in 32 bits; its config does not say so.
    return DataType.FLOAT if family is not None and family.states == "kda" else dtype


def _named_dtype(config: HfConfig, key: str, written: object) -> DataType:
    name = written.removeprefix("torch.") if isinstance(written, str) else ""
    if name not in _DTYPES:
        raise config.fault(key, written, f"one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


_SIZE_FACTS: Final = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "head_dim",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "sliding_window",
    "index_head_dim",
    "max_position_embeddings",
)


def _default_notes(config: HfConfig) -> list[str]:
    """Facts that the file leaves to the class of the model."""
    facts = config.facts
    taken = [f"{key} {facts[key][0]}" for key in _SIZE_FACTS if key in facts and facts[key][1] is None]
    return [f"not in the file, so the defaults of the model's class: {', '.join(taken)}"] if taken else []


def _layer_notes(config: HfConfig, layers: list[Layer], cached: tuple[CachedLayer, ...], is_latent: bool) -> list[str]:
    notes = []
    counts = Counter(layer.kind for layer in layers)
    if len(counts) > 1 or LayerKind.CHUNKED in counts:
        listed = ", ".join(f"{count} {kind.value}" for kind, count in counts.items())
        notes.append(f"{len(layers)} layers: {listed}")
    if counts[LayerKind.CHUNKED]:
        notes.append("layers of chunked attention are sized for the whole sequence")
    if is_latent:
        notes.append("multi-head latent attention: one latent vector per token, the same on every rank")
    num_indexed = sum(layer.index_bytes > 0 for layer in cached)
    if 0 < num_indexed < len(cached):
        notes.append(
            f"index keys are counted in the {num_indexed} layers that build them; TensorRT-LLM's own pool may have "
            "them in every layer"
        )
    num_predictors = config.optional_integer("num_nextn_predict_layers", 0)
    if num_predictors:
        notes.append(f"{num_predictors} more layers for predicting several tokens are not counted")
    return notes
