"""KV heads and head size of a model's ordinary layers, wherever its type keeps them."""

from __future__ import annotations

from trtkv.errors import InvalidInputError
from trtkv.sizing.hf_config import HfConfig
from trtkv.sizing.model_families import ModelFamily


def read_num_kv_heads(config: HfConfig, family: ModelFamily | None) -> int:
    """KV heads of a layer, before tensor parallelism."""
    rule = "written" if family is None else family.kv_heads
    if rule == "all_heads":
        return config.integer("num_attention_heads")
    if rule == "groups":
        many = config.boolean("multi_query_attention")
        if config.is_written("multi_query_group_num") and not config.is_present("multi_query_attention"):
            raise InvalidInputError(f"{config.source}: multi_query_attention is missing beside multi_query_group_num")
        return config.integer("multi_query_group_num" if many else "num_attention_heads")
    if rule == "refined_web":
        heads = config.optional_integer("n_head_kv")
        if heads is not None:
            return heads
        if config.boolean("multi_query"):
            return 1
        if config.get("model_type") == "RefinedWebModel" and config.is_written("multi_query"):
            return config.integer("num_attention_heads")
        raise InvalidInputError(f"{config.source}: n_head_kv is missing, and multi_query is not true")
    if rule == "attn_config":
        return _kv_heads_of_attn_config(config)
    if rule == "one_if_multi_query" and config.boolean("multi_query"):
        if config.is_written("num_key_value_heads") and config.integer("num_key_value_heads") != 1:
            raise config.fault(
                "num_key_value_heads", config.get("num_key_value_heads"), "1, although multi_query is true"
            )
        return 1
    if rule == "falcon" and config.boolean("multi_query") and not config.boolean("new_decoder_architecture"):
        if config.is_written("num_key_value_heads") and not config.is_present("new_decoder_architecture"):
            raise InvalidInputError(f"{config.source}: new_decoder_architecture is missing beside num_kv_heads")
        return 1
    has_own_name = family is not None and "num_key_value_heads" in family.names
    if rule == "written" or has_own_name:
        return config.integer("num_key_value_heads")
    return config.optional_integer("num_key_value_heads") or config.integer("num_attention_heads")


def read_global_heads(config: HfConfig, num_kv_heads: int, size_per_head: int) -> tuple[int, int]:
    """KV heads and head size of the full-attention layers of Gemma 4; those of the others are given.

    Other heads count only where keys are values too. Raises InvalidInputError where only one of both is written.
    """
    size = config.optional_integer("global_head_dim") or size_per_head
    heads = config.optional_integer("num_global_key_value_heads")
    same = config.boolean("attention_k_eq_v")
    for key, other, is_needed in (
        ("num_global_key_value_heads", "attention_k_eq_v", same),
        ("attention_k_eq_v", "num_global_key_value_heads", heads is not None),
    ):
        if is_needed and not config.is_present(key):
            raise InvalidInputError(f"{config.source}: {key} is missing beside {other}")
    return (heads or num_kv_heads) if same else num_kv_heads, size


def _kv_heads_of_attn_config(config: HfConfig) -> int:
    """DBRX and MPT: an object of its own; MPT has all heads unless it says otherwise."""
    attention = config.part("attn_config")
    kind = None if attention is None else attention.optional_text("attn_type")
    if kind == "multiquery_attention":
        return 1
    heads = None if attention is None else attention.optional_integer("kv_n_heads")
    if heads is not None:
        return heads
    if config.get("model_type") == "mpt" and kind in (None, "multihead_attention"):
        return config.integer("num_attention_heads")
    raise InvalidInputError(f"{config.source}: attn_config.kv_n_heads is missing; the cache cannot be sized without it")


def check_kv_heads(config: HfConfig, num_kv_heads: int) -> None:
    """Each KV head serves the same number of query heads; anything else is a mistake in the file."""
    num_heads = config.optional_integer("num_attention_heads")
    if num_heads is not None and num_heads % num_kv_heads:
        raise InvalidInputError(
            f"{config.source}: {num_heads} attention heads cannot share {num_kv_heads} KV heads evenly"
        )


def read_size_per_head(config: HfConfig) -> int:
    """Elements of a head: as written, else the hidden size shared by the query heads."""
    size = config.optional_integer("head_dim")
    if size is not None:
        return size
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if hidden_size % num_heads:
        raise InvalidInputError(
            f"{config.source}: hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads}, and "
            "head_dim is missing"
        )
    return hidden_size // num_heads
