"""Which layers of a model keep what: everything, a window, a state, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from trtkv.common import WindowSize
from trtkv.errors import InvalidInputError
from trtkv.sizing.hf_config import MAX_LAYERS, HfConfig
from trtkv.sizing.model_families import ModelFamily


class LayerKind(Enum):
    """What a layer keeps of a sequence."""

    FULL = "full attention"
    SLIDING = "sliding window"
    CHUNKED = "chunked attention"
    INDEXED = "full attention with index keys"
    STATES = "recurrent states"
    NOTHING = "nothing"


WHOLE_SEQUENCE: Final = (LayerKind.FULL, LayerKind.CHUNKED, LayerKind.INDEXED)
"""Kinds that keep every token."""


class Layer(NamedTuple):
    """One layer as its config describes it; None stands for what all layers of its kind have."""

    kind: LayerKind
    num_kv_heads: int | None = None
    size_per_head: int | None = None
    window: WindowSize | None = None
    num_index_values: int = 0
    """Elements in the model's type that every rank keeps of a token beside its keys and values."""


_LAYER_TYPES: Final[Mapping[str, LayerKind]] = {
    "full_attention": LayerKind.FULL,
    "attention": LayerKind.FULL,
    "sliding_attention": LayerKind.SLIDING,
    "chunked_attention": LayerKind.CHUNKED,
    "indexed_attention": LayerKind.INDEXED,
    "deepseek_sparse_attention": LayerKind.INDEXED,
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


def count_layers(config: HfConfig) -> int:
    """``num_hidden_layers``, which has to be there."""
    return config.integer("num_hidden_layers", 1, MAX_LAYERS)


def read_layer_kinds(config: HfConfig, family: ModelFamily | None) -> list[LayerKind]:
    """The kind of each layer, in order. ``family`` None: a model type that is not known here.

    Layers that use the keys and values of an earlier one keep nothing. Raises InvalidInputError where the config does
    not tell.
    """
    kinds = _listed_kinds(config, family)
    if kinds is None:
        kinds = [LayerKind.FULL] * count_layers(config) if family is None else _attention_kinds(config, family)
    if family is not None and family.last_is_full:
        kinds[-1] = LayerKind.FULL
    num_shared = 0 if family is None else _count_shared(config, family)
    if num_shared >= len(kinds):
        raise config.fault("num_kv_shared_layers", num_shared, f"fewer than the {len(kinds)} layers")
    if num_shared:
        kinds[-num_shared:] = [LayerKind.NOTHING] * num_shared
    return kinds


def _count_shared(config: HfConfig, family: ModelFamily) -> int:
    """Last layers that use the keys of earlier ones; null only in a type of which most models share none."""
    default = family.defaults.get("num_kv_shared_layers")
    if default is None:
        return 0
    return (
        config.integer("num_kv_shared_layers", 0)
        if default
        else config.optional_integer("num_kv_shared_layers", 0) or 0
    )


def _listed_kinds(config: HfConfig, family: ModelFamily | None) -> list[LayerKind] | None:
    """Kinds that the config writes down layer by layer."""
    for key in ("layer_types", "layers_block_type"):
        listed = config.optional_list(key)
        if listed is not None:
            return _check_count(config, key, _translated(config, key, _main_layers(config, listed), _LAYER_TYPES))
    key = "hybrid_override_pattern"
    if family is None or family.states is None:
        return None
    pattern = config.optional_text(key)
    if pattern is None:
        return None
    return _check_count(config, key, _translated(config, key, list(pattern), _PATTERN_LETTERS))


def _main_layers(config: HfConfig, listed: list[object]) -> list[object]:
    """The list without the layers that predict more tokens, where exactly those are too many (Step 3.5)."""
    num_layers = config.optional_integer("num_hidden_layers") if config.is_written("num_hidden_layers") else None
    extra = len(listed) - num_layers if num_layers is not None else 0
    if extra > 0 and config.get("num_nextn_predict_layers") == extra:
        return listed[:-extra]
    return listed


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
    num_layers = count_layers(config) if config.is_written("num_hidden_layers") else None
    if not kinds or len(kinds) > MAX_LAYERS or num_layers not in (None, len(kinds)):
        raise InvalidInputError(
            f"{config.source}: {key} lists {len(kinds)} layers, but num_hidden_layers is {num_layers}"
        )
    return kinds


def _attention_kinds(config: HfConfig, family: ModelFamily) -> list[LayerKind]:
    """Kinds by the rule of a known model type."""
    num_layers = count_layers(config)
    if family.states is not None:
        return _hybrid_kinds(config, family, num_layers)
    if family.sliding == "none" or config.get("sliding_window") is None:
        return [LayerKind.FULL] * num_layers
    if family.sliding == "listed":
        raise InvalidInputError(f"{config.source}: layer_types is missing; it tells which layers slide")
    if family.sliding == "from_max_window_layers":
        first = num_layers
        if config.boolean("use_sliding_window"):
            config.integer("sliding_window")
            first = config.integer("max_window_layers", 0)
        return [LayerKind.SLIDING if layer >= first else LayerKind.FULL for layer in range(num_layers)]
    config.integer("sliding_window")
    if family.sliding == "all":
        return [LayerKind.SLIDING] * num_layers
    if isinstance(config.peek("sliding_window_pattern"), str):
        return _lettered_kinds(config, num_layers)
    pattern = config.optional_integer("sliding_window_pattern") or config.optional_integer("_sliding_window_pattern")
    every = pattern or family.pattern or 1
    return [LayerKind.SLIDING if (layer + 1) % every else LayerKind.FULL for layer in range(num_layers)]


def _lettered_kinds(config: HfConfig, num_layers: int) -> list[LayerKind]:
    """EXAONE: a text of L (local) and G (global) that repeats over the layers; the last layer is global."""
    pattern = config.optional_text("sliding_window_pattern")
    if not pattern or set(pattern) - {"L", "G"}:
        raise config.fault("sliding_window_pattern", pattern, "a whole number, or a text of L and G")
    kinds = [LayerKind.SLIDING if pattern[i % len(pattern)] == "L" else LayerKind.FULL for i in range(num_layers)]
    return [*kinds[:-1], LayerKind.FULL]


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
