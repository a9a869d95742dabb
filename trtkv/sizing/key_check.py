"""Refuses configs with keys that are not understood and may change the size of the cache."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Final

from trtkv.errors import InvalidInputError
from trtkv.sizing.harmless_keys import MODALITY_WORDS, is_harmless, is_ordinary, suspicious_keys
from trtkv.sizing.hf_config import OTHER_NAMES, HfConfig, listed_keys
from trtkv.sizing.model_families import ModelFamily

SPEC_ADVICE: Final = "describe its layers in a file and give that with --cache-spec"

_UNDERSTOOD: Final = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "max_position_embeddings",
    "dtype",
    "layer_types",
)
"""Keys that are read in a model type which is not known."""

_STAND_INS: Final[Mapping[str, tuple[str, ...]]] = {
    "num_hidden_layers": ("layer", "block", "depth"),
    "num_attention_heads": ("head",),
    "num_key_value_heads": ("kv", "key_value", "group", "num_head", "n_head", "query"),
    "hidden_size": ("hidden", "embd", "embed_dim", "d_model", "model_dim"),
    "head_dim": ("head_dim", "head_size", "dim_head", "d_head", "kv_channels", "size_per_head"),
    "sliding_window": ("window", "sliding"),
    "kv_lora_rank": ("lora", "latent"),
    "qk_rope_head_dim": ("rope_head", "qk_rope"),
    "index_head_dim": ("index",),
    "num_kv_shared_layers": ("share",),
    "multi_query": ("multi_query", "multiquery"),
    "new_decoder_architecture": ("decoder_arch",),
    "use_sliding_window": ("use_sliding", "use_swa"),
    "use_cla": ("use_cla",),
    "use_mla": ("use_mla",),
    "indexer_types": ("indexer_type", "index_type"),
    "layer_types": ("layer_type", "layers_block_type"),
}
"""Words in keys that may stand for a fact which a config leaves out."""


_DERIVED: Final = ("head_dim", "sliding_window", "num_kv_shared_layers")
"""Facts that many configs leave out."""

_ALWAYS_WRITTEN: Final = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "kv_lora_rank",
    "qk_rope_head_dim",
)
"""Facts that a whole config has, where the part of a larger one leaves out what its class has by default."""

_FLAGS: Final = ("multi_query", "new_decoder_architecture", "use_sliding_window", "use_cla", "use_mla")
"""Facts that are true or false."""

_ALL_FACTS: Final = frozenset(_STAND_INS) | {name for names in OTHER_NAMES.values() for name in names}

_NOT_HEADS: Final = frozenset({"dim_model_base", "max_window_layers", "mup_denominator"})
"""Numbers of real configs that have the size of a head and are none."""

_HEAD_SIZES: Final = (48, 64, 72, 80, 96, 112, 120, 128, 144, 160, 192, 224, 256, 320, 512)
"""Sizes of heads of real models; other numbers are not doubted for their value alone."""

_SMALLEST_WINDOW: Final = 64

_ALIKE: Final = 0.8
"""Likeness from which a key counts as a misspelling of another."""


_STATE_WORDS: Final = ("mamba", "ssm", "conv", "linear")
"""Parts of names of keys that describe recurrent states."""

_OF_OTHER_TYPES: Final = frozenset(
    {
        "attn_type_list",
        "block_configs",
        "cross_attention_layers",
        "hybrid_layer_pattern",
        "kv_lora_rank",
        "layer_group_size",
        "linear_attn_config",
        "loop_num",
        "n_head_kv",
        "num_attention_groups",
        "num_key_value_heads_per_layer",
        "sparse_attention_config",
        "swa_num_key_value_heads",
        "total_ut_steps",
        "use_cla",
    }
)
"""Keys that change the cache wherever they are read; in a type that does not read them the file is in doubt."""


def _is_all_full(key: str, value: object) -> bool:
    """MiniMax M2 lists its layers as its predecessor did, all of them with full attention."""
    return key == "attn_type_list" and isinstance(value, list) and all(kind == 1 for kind in value)


def check_keys_of_unknown_type(config: HfConfig, model_type: str) -> None:
    """Refuse a config of a type that is not known, unless every key is understood or harmless.

    Messages name the keys; one fact has to be there: num_key_value_heads.
    """
    unknown = f"{config.source}: model type {model_type!r} is not known here, and"
    has_types = isinstance(config.peek("layer_types"), list)
    understood = {name for key in _UNDERSTOOD for name in (key, *OTHER_NAMES.get(key, ()))}
    if has_types:
        understood |= {"sliding_window", "sliding_window_pattern"}
    if config.peek("use_sliding_window") is False:
        understood.add("sliding_window")
    if config.peek("use_sliding_window") is False or config.peek("sliding_window") is None:
        understood.add("max_window_layers")
    if config.peek("sliding_window_size") == -1:
        understood.add("global_attn_every_n")
    if config.peek("use_cla") in (None, False):
        understood.add("cla_share_factor")
    doubtful = suspicious_keys(config.unread_keys | {"sliding_window"} & config.keys) - understood
    doubtful = {key for key in doubtful if not (key.startswith("sliding_window") and config.peek(key) == -1)}
    if doubtful == {"sliding_window"}:
        raise InvalidInputError(
            f"{unknown} sliding_window may change what its layers keep; write layer_types (full_attention, "
            "sliding_attention) into a copy of the file"
        )
    if doubtful:
        raise InvalidInputError(f"{unknown} {listed_keys(doubtful)} may change what its layers keep; {SPEC_ADVICE}")
    if not config.is_written("num_key_value_heads"):
        raise InvalidInputError(
            f"{unknown} num_key_value_heads is missing; it may stand under another name; {SPEC_ADVICE}"
        )


def check_keys_that_are_left(config: HfConfig, family: ModelFamily, *, is_latent: bool) -> None:
    """Refuse a config that leaves a fact out but has a key that may stand for it, or one that belongs to another type.

    Called after everything is read, so that keys nothing asked for are those that are not understood.
    """
    foreign = {key for key in config.unread_keys & _OF_OTHER_TYPES if not _is_all_full(key, config.peek(key))}
    if family.is_latent:
        foreign.discard("kv_lora_rank")  # with use_mla false it does not count
    if foreign:
        raise InvalidInputError(
            f"{config.source}: {listed_keys(foreign)} may change what layers keep, and the rule of this model type "
            "does not know it"
        )
    unread = config.written_keys - config.asked
    if family.states is not None:
        unread = {key for key in unread if not any(word in key.lower() for word in _STATE_WORDS)}
    for key in _asked_facts(config, is_latent=is_latent):
        if config.is_present(key) or key not in config.asked:
            continue
        if (
            key == "sliding_window"
            and family.sliding == "from_max_window_layers"
            and not config.get("use_sliding_window")
        ):
            continue
        if config.has_only_outside(key):
            raise InvalidInputError(f"{config.source}: {key} stands beside the text part and not in it")
        if key in _ALWAYS_WRITTEN and not config.is_part and family.defaults.get(key) is not None:
            raise InvalidInputError(f"{config.source}: {key} is missing; the cache cannot be sized without it")
        is_derived = key in _DERIVED and not family.defaults.get(key)
        found = {
            name
            for name in unread
            if _may_stand_for(key, name, config.peek(name), is_derived=is_derived)
            or (is_derived and _is_likely_value(config, key, name))
        }
        if found:
            raise InvalidInputError(f"{config.source}: {key} is missing, and {listed_keys(found)} may stand for it")


def _may_stand_for(key: str, name: str, value: object, *, is_derived: bool) -> bool:
    """Whether a key that is not understood may be another spelling of one that is missing.

    Numbers are doubted by name alone where the missing fact is commonly left out, as a head size is.
    """
    if name in _ALL_FACTS:
        return False
    if isinstance(value, dict):
        return _holds_layers(name, value)
    if key == "layer_types":
        return isinstance(value, list) and not is_harmless(name) and any("attention" in str(word) for word in value[:9])
    if key in _FLAGS:
        return any(word in name.lower() for word in _STAND_INS[key]) or _is_alike(key, name)
    if key == "indexer_types":
        return isinstance(value, list) and (
            any(word in name.lower() for word in _STAND_INS[key]) or _is_alike(key, name)
        )
    if (value is not None and type(value) is not int) or value == 0 or is_harmless(name):
        return False
    if any(word in name.lower() for word in _STAND_INS[key]):
        return value is not None or _is_alike(key, name)
    return _is_alike(key, name) or (value is not None and not is_derived and not is_ordinary(name))


def _is_likely_value(config: HfConfig, key: str, name: str) -> bool:
    """Whether a number under a name that says nothing has a size of the missing fact, and would change the result."""
    value = config.peek(name)
    if type(value) is not int or is_ordinary(name) or name in _ALL_FACTS or name in _NOT_HEADS:
        return False
    if key == "head_dim":
        heads, hidden_size = config.get("num_attention_heads"), config.get("hidden_size")
        derived = hidden_size // heads if type(heads) is int and type(hidden_size) is int and heads > 0 else None
        return value in _HEAD_SIZES and value != derived
    if key == "sliding_window":
        return value >= _SMALLEST_WINDOW
    num_layers = config.get("num_hidden_layers")
    return type(num_layers) is int and 0 < value < num_layers


def _is_alike(key: str, name: str) -> bool:
    return SequenceMatcher(None, key, name.lower()).ratio() > _ALIKE


def _asked_facts(config: HfConfig, *, is_latent: bool) -> list[str]:
    """Facts that decide the size of a cache of this type."""
    latent_only = ("kv_lora_rank", "qk_rope_head_dim")
    heads_only = ("num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim")
    left_out = heads_only if is_latent else latent_only
    return [key for key in _STAND_INS if key not in left_out]


def _holds_layers(name: str, value: object) -> bool:
    """Whether an object that is not of another modality has facts about layers in it."""
    if not isinstance(value, dict) or any(word in name.lower() for word in MODALITY_WORDS):
        return False
    parts = [value, *(inner for inner in value.values() if isinstance(inner, dict))]
    return any(key in part for key in _ALL_FACTS for part in parts)
