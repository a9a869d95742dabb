"""Rules of model types whose layers are not described by the usual keys; model_families says which type has which."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from trtkv.errors import InvalidInputError
from trtkv.sizing.harmless_keys import suspicious_keys
from trtkv.sizing.hf_config import MAX_LAYERS, HfConfig, listed_keys
from trtkv.sizing.kv_heads import check_kv_heads
from trtkv.sizing.layer_kinds import Layer, LayerKind, count_layers, read_layer_kinds
from trtkv.sizing.model_families import LayerRule, ModelFamily


def read_layers(config: HfConfig, family: ModelFamily | None) -> list[Layer]:
    """Every layer of the model, in order, those that keep nothing included."""
    if family is not None and family.layers != "usual":
        layers = _RULES[family.layers](config, family)
    else:
        layers = [Layer(kind) for kind in read_layer_kinds(config, family)]
    return layers if family is None else _changed_one_by_one(config, layers, is_latent=family.is_latent)


def _changed_one_by_one(config: HfConfig, layers: list[Layer], *, is_latent: bool) -> list[Layer]:
    """Layers with what ``per_layer_config`` (newer transformers) says of single ones, by number."""
    changes = config.part("per_layer_config")
    if changes is None:
        return layers
    if is_latent:
        raise InvalidInputError(f"{config.source}: per_layer_config is not read in a model of latent attention")
    layers = list(layers)
    for name in sorted(changes.keys):
        number = int(name) if name.isascii() and name.isdigit() and len(name) <= 5 else len(layers)
        if number >= len(layers):
            raise InvalidInputError(
                f"{config.source}: per_layer_config names layer {name!r:.80}, but there are {len(layers)} layers"
            )
        change = changes.part(name)
        if change is None:
            raise changes.fault(name, None, "an object")
        heads, size = change.optional_integer("num_key_value_heads"), change.optional_integer("head_dim")
        others = suspicious_keys(change.unread_keys - {"num_attention_heads"})
        if others:
            raise InvalidInputError(
                f"{config.source}: per_layer_config changes {listed_keys(others)} of layer {number}, which is not read "
                "here"
            )
        if heads is not None:
            check_kv_heads(config, heads)
        layer = layers[number]
        layers[number] = layer._replace(
            num_kv_heads=heads or layer.num_kv_heads, size_per_head=size or layer.size_per_head
        )
    return layers


def _twice(config: HfConfig, family: ModelFamily) -> list[Layer]:
    """LongCat: two attentions in each of ``num_layers``; ``num_hidden_layers`` beside it may be either number."""
    num_layers = config.integer("num_layers", 1, MAX_LAYERS // 2)
    return [Layer(LayerKind.FULL)] * (2 * num_layers)


def _block_configs(config: HfConfig, family: ModelFamily) -> list[Layer]:
    """Nemotron NAS: what the search left of each layer's attention."""
    blocks = config.optional_list("block_configs", count_layers(config))
    if blocks is None:
        raise InvalidInputError(f"{config.source}: block_configs is missing; the cache cannot be sized without it")
    num_heads = config.integer("num_attention_heads")
    return [_block(config, f"block_configs[{i}]", block, num_heads) for i, block in enumerate(blocks)]


def _block(config: HfConfig, name: str, block: object, num_heads: int) -> Layer:
    attention = block.get("attention") if isinstance(block, dict) else None
    if not isinstance(attention, dict):
        raise config.fault(f"{name}.attention", attention, "an object")
    for key in ("no_op", "replace_with_linear"):
        value = attention.get(key)
        if value is not None and not isinstance(value, bool):
            raise config.fault(f"{name}.attention.{key}", value, "true or false")
        if value:
            return Layer(LayerKind.NOTHING)
    group = config.check_integer(f"{name}.attention.n_heads_in_group", attention.get("n_heads_in_group"))
    if num_heads % group:
        raise config.fault(f"{name}.attention.n_heads_in_group", group, f"a divisor of {num_heads} heads")
    if attention.get("num_sink_tokens"):
        raise config.fault(f"{name}.attention.num_sink_tokens", attention["num_sink_tokens"], "null")
    window = attention.get("window_length")
    if window is None:
        return Layer(LayerKind.FULL, num_heads // group)
    window = config.check_integer(f"{name}.attention.window_length", window)
    return Layer(LayerKind.SLIDING, num_heads // group, window=window)


def _heads_per_layer(config: HfConfig, family: ModelFamily) -> list[Layer]:
    """DeciLM, OpenELM: a list with the KV heads of each layer."""
    key = "num_key_value_heads_per_layer"
    listed = config.optional_list(key, count_layers(config))
    if listed is None:
        raise InvalidInputError(f"{config.source}: {key} is missing; the cache cannot be sized without it")
    return [Layer(LayerKind.FULL, config.check_integer(f"{key}[{i}]", heads)) for i, heads in enumerate(listed)]


def _attn_type_list(config: HfConfig, family: ModelFamily) -> list[Layer]:
    """MiniMax-Text-01 and M1: 1 is full attention, 0 lightning attention."""
    key = "attn_type_list"
    listed = config.optional_list(key, count_layers(config))
    if listed is None:
        return [Layer(kind) for kind in read_layer_kinds(config, family)]
    is_full = [_flag(config, f"{key}[{i}]", kind) for i, kind in enumerate(listed)]
    return [Layer(LayerKind.FULL if full else LayerKind.STATES) for full in is_full]


def _shared_by_neighbours(config: HfConfig, family: ModelFamily) -> list[Layer]:
    """Hunyuan: with ``use_cla`` a layer uses the keys of the last one whose number the factor divides."""
    kinds = read_layer_kinds(config, family)
    factor = config.integer("cla_share_factor") if config.boolean("use_cla") else 1
    return [Layer(LayerKind.NOTHING if i % factor else kind) for i, kind in enumerate(kinds)]


def _linear_attn_config(config: HfConfig, family: ModelFamily) -> list[Layer]:
    """Kimi Linear: two lists of layers, counted from 1, or layer_types where newer transformers wrote the file."""
    num_layers = count_layers(config)
    linear = config.part("linear_attn_config")
    if linear is None and config.is_written("layer_types"):
        return [Layer(kind) for kind in read_layer_kinds(config, family)]
    if linear is None:
        raise InvalidInputError(f"{config.source}: linear_attn_config is missing; the cache cannot be sized without it")
    full, states = linear.optional_list("full_attn_layers") or [], linear.optional_list("kda_layers") or []
    numbers = [n for n in (*full, *states) if type(n) is int]
    if sorted(numbers) != list(range(1, num_layers + 1)) or len(numbers) != len(full) + len(states):
        raise InvalidInputError(
            f"{config.source}: full_attn_layers and kda_layers of linear_attn_config do not name each of the "
            f"{num_layers} layers once"
        )
    return [Layer(LayerKind.FULL if i + 1 in full else LayerKind.STATES) for i in range(num_layers)]


def _other_setting(config: HfConfig, family: ModelFamily) -> list[Layer]:
    """Step 3.5: sliding layers have heads of their own. Its list of layers may have those that predict more tokens."""
    count_layers(config)
    kinds = read_layer_kinds(config, family)
    other = config.part("attention_other_setting")
    if LayerKind.SLIDING not in kinds:
        return [Layer(kind) for kind in kinds]
    if other is None and not config.is_written("num_attention_groups"):
        return [Layer(kind) for kind in kinds]  # the layout of the transformers library: KV heads are all alike
    if other is None:
        raise InvalidInputError(
            f"{config.source}: attention_other_setting is missing; the heads of sliding layers stand there"
        )
    if other.get("attention_type") not in (None, "sliding_attention"):
        raise other.fault("attention_type", other.get("attention_type"), "'sliding_attention'")
    sliding = Layer(LayerKind.SLIDING, other.integer("num_attention_groups"), other.integer("head_dim"))
    return [sliding if kind is LayerKind.SLIDING else Layer(kind) for kind in kinds]


def _sparse_attention(config: HfConfig, family: ModelFamily) -> list[Layer]:
    """MiniMax M3: sparse layers keep an index key in the model's type, and an index value unless that is disabled."""
    kinds = read_layer_kinds(config, family)
    sparse = config.part("sparse_attention_config")
    if sparse is None:
        raise InvalidInputError(
            f"{config.source}: sparse_attention_config is missing; it tells which layers keep index keys"
        )
    if sparse.get("use_sparse_attention") is not None and not sparse.boolean("use_sparse_attention"):
        return [Layer(kind) for kind in kinds]
    frequencies = sparse.optional_list("sparse_attention_freq", len(kinds))
    if frequencies is None:
        raise sparse.fault("sparse_attention_freq", None, "a list")
    disabled = sparse.optional_list("sparse_disable_index_value", len(kinds)) or [0] * len(kinds)
    size = sparse.integer("sparse_index_dim")
    layers = []
    for i, kind in enumerate(kinds):
        is_sparse = _flag(config, f"sparse_attention_config.sparse_attention_freq[{i}]", frequencies[i])
        without_value = _flag(config, f"sparse_attention_config.sparse_disable_index_value[{i}]", disabled[i])
        layers.append(Layer(kind, num_index_values=size * (1 if without_value else 2) if is_sparse else 0))
    return layers


def _indexed(config: HfConfig, family: ModelFamily) -> list[Layer]:
    """DeepSeek V3.2, GLM 5: every layer has index keys, unless ``indexer_types`` says that it uses those of another."""
    kinds = [LayerKind.INDEXED if kind is LayerKind.FULL else kind for kind in read_layer_kinds(config, family)]
    types = config.optional_list("indexer_types", len(kinds))
    if types is None:
        for key in ("index_topk_freq", "cli_factor"):
            if config.get(key) not in (None, 1):
                raise config.fault(key, config.get(key), "1 in a config without indexer_types")
        return [Layer(kind) for kind in kinds]
    for i, word in enumerate(types):
        if word not in ("full", "shared"):
            raise config.fault(f"indexer_types[{i}]", word, "'full' or 'shared'")
    return [Layer(LayerKind.FULL if word == "shared" else kind) for kind, word in zip(kinds, types, strict=True)]


def _flag(config: HfConfig, name: str, value: object) -> bool:
    if type(value) not in (int, bool) or value not in (0, 1):
        raise config.fault(name, value, "0 or 1")
    return bool(value)


_RULES: Final[Mapping[LayerRule, Callable[[HfConfig, ModelFamily], list[Layer]]]] = {
    "twice": _twice,
    "block_configs": _block_configs,
    "heads_per_layer": _heads_per_layer,
    "attn_type_list": _attn_type_list,
    "shared_by_neighbours": _shared_by_neighbours,
    "linear_attn_config": _linear_attn_config,
    "other_setting": _other_setting,
    "sparse_attention": _sparse_attention,
    "indexed": _indexed,
}
