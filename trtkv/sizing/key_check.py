"""Refuses configs with keys that are not understood and may change the size of the cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trtkv.errors import InvalidInputError
from trtkv.sizing.harmless_keys import MODALITY_WORDS, suspicious_keys
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
}
"""Words in keys that may stand for a fact which a config leaves out."""


def check_keys_of_unknown_type(config: HfConfig, model_type: str) -> None:
    """Refuse a config of a type that is not known, unless every key is understood or harmless.

    Messages name the keys; one fact has to be there: num_key_value_heads.
    """
    unknown = f"{config.source}: model type {model_type!r} is not known here, and"
    has_types = isinstance(config.get("layer_types"), list)
    understood = {name for key in _UNDERSTOOD for name in (key, *OTHER_NAMES.get(key, ()))}
    if has_types:
        understood |= {"sliding_window", "sliding_window_pattern"}
    if config.get("use_sliding_window") is False:
        understood |= {"sliding_window", "max_window_layers"}
    if config.get("use_cla") in (None, False):
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


def check_keys_of_known_type(config: HfConfig, family: ModelFamily, *, is_latent: bool) -> None:
    """Refuse a config of a known type that leaves a fact out but has a key that may stand for it.

    Called after everything is read, so that keys nothing asked for are those that are not understood.
    """
    if config.peek("per_layer_config"):
        raise InvalidInputError(f"{config.source}: per_layer_config changes layers one by one, which is not read here")
    unread = config.unread_keys
    for key in _asked_facts(config, family, is_latent=is_latent):
        if config.is_present(key) or key not in config.asked:
            continue
        if config.has_only_outside(key):
            raise InvalidInputError(f"{config.source}: {key} stands beside the text part and not in it")
        found = {name for name in suspicious_keys(unread, _STAND_INS[key]) if config.peek(name) not in (0, True)}
        found |= {name for name in unread if _holds_layers(name, config.peek(name))}
        if found:
            raise InvalidInputError(f"{config.source}: {key} is missing, and {listed_keys(found)} may stand for it")


def _asked_facts(config: HfConfig, family: ModelFamily, *, is_latent: bool) -> list[str]:
    """Facts that decide the size of a cache of this type."""
    latent_only = ("kv_lora_rank", "qk_rope_head_dim")
    heads_only = ("num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim")
    left_out = heads_only if is_latent else latent_only
    return [key for key in _STAND_INS if key not in left_out]


def _holds_layers(name: str, value: object) -> bool:
    """Whether an object that is not of another modality has facts about layers in it."""
    if not isinstance(value, dict) or any(word in name.lower() for word in MODALITY_WORDS):
        return False
    return any(
        key in value for key in ("num_hidden_layers", "num_key_value_heads", "num_attention_heads", "hidden_size")
    )
