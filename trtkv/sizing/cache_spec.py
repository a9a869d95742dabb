"""Cache specs: what the layers of a model keep, as a small JSON object that people can write by hand.

docs/sizing.md describes the form. A spec stands in place of a config.json for models that cannot be read from theirs.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Final

from trtkv.common import RECURRENT_STATES, CacheType, DataType
from trtkv.errors import InvalidInputError
from trtkv.sizing.hf_config import MAX_LAYERS, HfConfig, listed_keys, read_json_object
from trtkv.sizing.model_shape import CachedLayer, ModelShape
from trtkv.sizing.recurrent_states import RecurrentStates

SPEC_KEY: Final = "cache_spec"
"""Key of the JSON report of ``trtkv size`` under which its spec stands."""

_KINDS: Final = ("full", "sliding", "latent", "states", "nothing")
_KEYS_OF_SPEC: Final = ("name", "dtype", "kv_dtype", "max_sequence_length", "states", "layers")
_KEYS_OF_KIND: Final = {
    "full": ("kv_heads", "head_size", "index_bytes"),
    "sliding": ("kv_heads", "head_size", "window", "index_bytes"),
    "latent": ("head_size", "window", "index_bytes"),
    "states": (),
    "nothing": (),
}
_KEYS_OF_STATES: Final = ("conv_columns", "heads", "head_size", "state_size", "groups", "dtype")
_MODEL_DTYPES: Final = (DataType.FLOAT, DataType.HALF, DataType.BF16)
_CACHE_DTYPES: Final = (*_MODEL_DTYPES, DataType.FP8, DataType.INT8, DataType.NVFP4)


def read_cache_spec(path: str | os.PathLike[str]) -> ModelShape:
    """The shape that a spec describes; the file is a spec, or a JSON report of ``trtkv size`` with one.

    Raises InvalidInputError, which names the file and the key, for anything that is missing, unknown or out of range.
    """
    file = Path(path)
    values = read_json_object(file, "the cache spec", "docs/sizing.md describes its form")
    inner = values.get(SPEC_KEY, values)
    if not isinstance(inner, dict):
        raise InvalidInputError(f"{file}: {SPEC_KEY} is {inner!r:.80}, not an object")
    return make_spec_shape(HfConfig(inner, str(file)), file.name.removesuffix(".json"))


def make_spec_shape(spec: HfConfig, default_name: str) -> ModelShape:
    """The shape of a spec that is read already."""
    _check_keys(spec, _KEYS_OF_SPEC, spec.source)
    dtype = _dtype(spec, "dtype", _MODEL_DTYPES) or DataType.BF16
    entries = spec.optional_list("layers")
    if not entries:
        raise spec.fault("layers", entries, "a list of layers")
    kinds: list[str] = []
    layers: list[CachedLayer] = []
    positions: list[int] = []
    num_layers = 0
    states = spec.part("states")
    for position, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise spec.fault(f"layers[{position}]", entry, "an object")
        layer = HfConfig(entry, f"{spec.source}: layers[{position}]")
        kind, count = _read_kind(layer), layer.optional_integer("count", 1, MAX_LAYERS) or 1
        if num_layers + count > MAX_LAYERS:
            raise InvalidInputError(f"{spec.source}: more than {MAX_LAYERS:,} layers")
        kinds.append(kind)
        if kind != "nothing":
            layers += [_read_layer(layer, kind)] * count
            positions += range(num_layers, num_layers + count)
        num_layers += count
    return ModelShape(
        name=spec.optional_text("name") or default_name,
        model_type="",
        num_layers=num_layers,
        layers=_with_heads_for_states(spec, layers, kinds),
        dtype=dtype,
        kv_dtype=_dtype(spec, "kv_dtype", _CACHE_DTYPES) or dtype,
        cache_type=CacheType.SELFKONLY if "latent" in kinds else CacheType.SELF,
        max_position_embeddings=spec.optional_integer("max_sequence_length"),
        states=_read_states(spec, states, kinds),
        state_dtype=(None if states is None else _dtype(states, "dtype", _MODEL_DTYPES)) or dtype,
        index_head_dim=0,
        notes=("sized from a cache spec",),
        positions=tuple(positions),
    )


def _check_keys(part: HfConfig, known: tuple[str, ...], where: str) -> None:
    unknown = part.written_keys - set(known)
    if unknown:
        raise InvalidInputError(f"{where}: {listed_keys(unknown)} not known in a cache spec; known: {', '.join(known)}")


def _read_kind(layer: HfConfig) -> str:
    kind = layer.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise layer.fault("kind", kind, f"one of {', '.join(_KINDS)}")
    _check_keys(layer, ("kind", "count", *_KEYS_OF_KIND[kind]), layer.source)
    return kind


def _read_layer(layer: HfConfig, kind: str) -> CachedLayer:
    if kind == "states":
        return CachedLayer(RECURRENT_STATES, 1, 1)
    heads = 1 if kind == "latent" else layer.integer("kv_heads")
    window = layer.integer("window") if kind == "sliding" else layer.optional_integer("window")
    return CachedLayer(window, heads, layer.integer("head_size"), layer.optional_integer("index_bytes", 0) or 0)


def _with_heads_for_states(spec: HfConfig, layers: list[CachedLayer], kinds: list[str]) -> tuple[CachedLayer, ...]:
    """Layers with states get the heads of the first attention layer, which their blocks do not use."""
    if "latent" in kinds and {"full", "sliding"} & set(kinds):
        raise InvalidInputError(
            f"{spec.source}: latent layers beside full or sliding ones; a block manager holds one or the other"
        )
    attention = next((layer for layer in layers if layer.window != RECURRENT_STATES), None)
    if attention is None:
        raise InvalidInputError(f"{spec.source}: no layer has attention, so there are no tokens to page")
    stand_in = CachedLayer(RECURRENT_STATES, attention.num_kv_heads, attention.size_per_head)
    return tuple(stand_in if layer.window == RECURRENT_STATES else layer for layer in layers)


def _read_states(spec: HfConfig, states: HfConfig | None, kinds: list[str]) -> RecurrentStates | None:
    if (states is None) != ("states" not in kinds):
        raise InvalidInputError(f"{spec.source}: states and layers of kind states need each other; give both or none")
    if states is None:
        return None
    _check_keys(states, _KEYS_OF_STATES, f"{spec.source}: states")
    return RecurrentStates(
        states.integer("conv_columns", 0),
        states.integer("heads"),
        states.integer("head_size"),
        states.integer("state_size", 0),
        states.optional_integer("groups", 0) or 0,
    )


def _dtype(part: HfConfig, key: str, known: tuple[DataType, ...]) -> DataType | None:
    value = part.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or value not in {dtype.value for dtype in known}:
        raise part.fault(key, value, f"one of {', '.join(dtype.value for dtype in known)}")
    return DataType(value)


def cache_spec_json(shape: ModelShape) -> dict[str, object]:
    """The spec of a shape; reading it back gives the same sizes."""
    spec: dict[str, object] = {
        "name": shape.name,
        "dtype": shape.dtype.value,
        "kv_dtype": shape.kv_dtype.value,
        "max_sequence_length": shape.max_position_embeddings,
    }
    if shape.states is not None:
        state = shape.states
        spec["states"] = {
            "conv_columns": state.conv_columns,
            "heads": state.num_heads,
            "head_size": state.head_size,
            "state_size": state.state_size,
            "groups": state.num_groups,
            "dtype": shape.state_dtype.value,
        }
    every: list[CachedLayer | None] = [None] * shape.num_layers
    for number, layer in zip(shape.layer_numbers, shape.layers, strict=True):
        every[number] = layer
    is_latent = shape.cache_type is CacheType.SELFKONLY
    spec["layers"] = [
        _layer_json(layer, len(list(run)), is_latent=is_latent) for layer, run in itertools.groupby(every)
    ]
    return spec


def _layer_json(layer: CachedLayer | None, count: int, *, is_latent: bool) -> dict[str, object]:
    if layer is None:
        return {"kind": "nothing", "count": count}
    if layer.window == RECURRENT_STATES:
        return {"kind": "states", "count": count}
    entry: dict[str, object] = {"kind": "latent" if is_latent else "full" if layer.window is None else "sliding"}
    entry["count"] = count
    if not is_latent:
        entry["kv_heads"] = layer.num_kv_heads
    entry["head_size"] = layer.size_per_head
    if layer.window is not None:
        entry["window"] = layer.window
    if layer.index_bytes:
        entry["index_bytes"] = layer.index_bytes
    return entry
