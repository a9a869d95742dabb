"""Which layers of a model keep what: everything, a window, a state, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from trtkv.errors import InvalidInputError
from trtkv.sizing.hf_config import HfConfig
from trtkv.sizing.model_families import ModelFamily


class LayerKind(Enum):
    """What a layer keeps of a sequence."""

    FULL = "full attention"
    SLIDING = "sliding window"
    CHUNKED = "chunked attention"
    INDEXED = "full attention with index keys"
    STATES = "recurrent states"
    NOTHING = "nothing"


_LAYER_TYPES: Final[Mapping[str, LayerKind]] = {
    "full_attention": LayerKind.FULL,
    "attention": LayerKind.FULL,
    "sliding_attention": LayerKind.SLIDING,
    "chunked_attention": LayerKind.CHUNKED,
    "indexed_attention": LayerKind.INDEXED,
    "linear_attention": LayerKind.STATES,
    "mamba": LayerKind.STATES,
    "mamba2": LayerKind.STATES,
    "moe": LayerKind.NOTHING,
    "mlp": LayerKind.NOTHING,
}
_PATTERN_LETTERS: Final[Mapping[str, LayerKind]] = {
    "*": LayerKind.FULL,
    "M": LayerKind.STATES,
    "-": LayerKind.NOTHING,
    "E": LayerKind.NOTHING,
}
_UNKNOWN_CACHE_HINTS: Final = (
    "mamba",
    "ssm_",
    "linear_",
    "conv_",
    "rnn",
    "lru_",
    "rwkv",
    "recurrent",
    "attn_layer_",
    "block_types",
    "cross_attention",
    "compress",
)
"""Beginnings of keys that tell of caches which a model type not known here may have."""


def read_layer_kinds(config: HfConfig, family: ModelFamily | None) -> list[LayerKind]:
    """The kind of each layer, in order. ``family`` None: a model type that is not known here.

    Layers that use the keys and values of an earlier one keep nothing. Raises InvalidInputError where the config does
    not tell.
    """
    kinds = _listed_kinds(config)
    if kinds is None:
        kinds = _plain_kinds(config) if family is None else _attention_kinds(config, family)
    if family is not None and family.last_is_full:
        kinds[-1] = LayerKind.FULL
    num_shared = config.optional_integer("num_kv_shared_layers", 0) or 0
    if num_shared >= len(kinds):
        raise config.fault("num_kv_shared_layers", num_shared, f"fewer than the {len(kinds)} layers")
    if num_shared:
        kinds[-num_shared:] = [LayerKind.NOTHING] * num_shared
    return kinds


def _listed_kinds(config: HfConfig) -> list[LayerKind] | None:
    """Kinds that the config writes down layer by layer."""
    for key in ("layer_types", "layers_block_type"):
        listed = config.optional_list(key)
        if listed is not None:
            return _check_count(config, key, _translated(config, key, listed, _LAYER_TYPES))
    key = "hybrid_override_pattern"
    pattern = config.optional_text(key)
    if pattern is None:
        return None
    return _check_count(config, key, _translated(config, key, list(pattern), _PATTERN_LETTERS))


def _translated(
    config: HfConfig, key: str, listed: Sequence[object], words: Mapping[str, LayerKind]
) -> list[LayerKind]:
    kinds = []
    for position, word in enumerate(listed):
        if not isinstance(word, str) or word not in words:
            raise config.fault(f"{key}[{position}]", word, f"one of {', '.join(words)}")
        kinds.append(words[word])
    return kinds


def _check_count(config: HfConfig, key: str, kinds: list[LayerKind]) -> list[LayerKind]:
    num_layers = config.optional_integer("num_hidden_layers") if "num_hidden_layers" in config.keys else None
    if not kinds or (num_layers is not None and num_layers != len(kinds)):
        raise InvalidInputError(
            f"{config.source}: {key} lists {len(kinds)} layers, but num_hidden_layers is {num_layers}"
        )
    return kinds


def _attention_kinds(config: HfConfig, family: ModelFamily) -> list[LayerKind]:
    """Kinds by the rule of a known model type."""
    num_layers = config.integer("num_hidden_layers")
    if family.states is not None:
        return _hybrid_kinds(config, family, num_layers)
    if family.sliding == "none" or not config.optional_integer("sliding_window", 0):
        return [LayerKind.FULL] * num_layers
    if family.sliding == "all":
        return [LayerKind.SLIDING] * num_layers
    if family.sliding == "from_max_window_layers":
        first = config.integer("max_window_layers", 0) if config.boolean("use_sliding_window") else num_layers
        return [LayerKind.SLIDING if layer >= first else LayerKind.FULL for layer in range(num_layers)]
    pattern = config.optional_integer("sliding_window_pattern") or config.optional_integer("_sliding_window_pattern")
    every = pattern or family.pattern or 1
    return [LayerKind.SLIDING if (layer + 1) % every else LayerKind.FULL for layer in range(num_layers)]


def _hybrid_kinds(config: HfConfig, family: ModelFamily, num_layers: int) -> list[LayerKind]:
    if config.get("attn_layer_period") is not None:
        period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset", 0)
        attention = {layer for layer in range(num_layers) if layer % period == offset}
    elif family.full_attention_interval is not None:
        interval = config.optional_integer("full_attention_interval") or family.full_attention_interval
        attention = {layer for layer in range(num_layers) if (layer + 1) % interval == 0}
    else:
        indices = config.optional_list("attn_layer_indices") or []
        attention = {index for index in indices if type(index) is int}
        if len(attention) != len(indices) or not attention <= set(range(num_layers)):
            raise config.fault("attn_layer_indices", indices, f"a list of layers below {num_layers}")
    return [LayerKind.FULL if layer in attention else LayerKind.STATES for layer in range(num_layers)]


def _plain_kinds(config: HfConfig) -> list[LayerKind]:
    """Full attention in each layer of a model type not known here, unless its keys tell of something else."""
    hints = sorted(key for key in config.keys if key.startswith(_UNKNOWN_CACHE_HINTS))
    if config.optional_integer("sliding_window", 0):
        hints.insert(0, "sliding_window")
    if hints:
        raise InvalidInputError(
            f"{config.source}: model type {config.get('model_type')!r} is not known here, and {', '.join(hints)} may "
            "change what its layers keep; write layer_types (full_attention, sliding_attention) into a copy of the file"
        )
    return [LayerKind.FULL] * config.integer("num_hidden_layers")
