"""Changes of a config that people, tools and fate make; each says what became of which key."""

from __future__ import annotations

import copy
import random
from typing import Any, NamedTuple

Config = dict[str, Any]

FACT_KEYS = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "head_dim",
    "sliding_window",
    "layer_types",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "index_head_dim",
    "num_kv_shared_layers",
    "max_position_embeddings",
)
"""Keys that are changed more often than others."""

OTHER_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    "8",
    "",
    "\ud800",
    "a\nb",
    8.0,
    1e308,
    float("inf"),
    float("nan"),
    [],
    [8],
    {},
    {"value": 8},
    [[[[[[]]]]]],
)
NONSENSE_LETTERS = "bfgjqwyz"
HUGE_VALUES = (10**6, 2**31 - 1, 2**31, 2 * 10**9, 10**18, 10**400)


class Mutation(NamedTuple):
    """One changed config."""

    kind: str
    path: tuple[str, ...]
    """Objects on the way to the key, and the key."""
    config: Config

    @property
    def keeps_facts(self) -> bool:
        """Whether every fact of the original is still there, though under another name or in another place."""
        return self.kind in ("renamed", "nested")


def mutate(config: Config, chance: random.Random) -> Mutation:
    """A changed copy."""
    changed = copy.deepcopy(config)
    path, holder = _pick(changed, chance)
    key = path[-1]
    kind = chance.choice(("renamed", "removed", "zero", "negative", "huge", "nested", "other"))
    if kind == "renamed":
        new = _other_name(key, chance)
        if holder[key] is None and set(new) <= set(NONSENSE_LETTERS):
            kind = "removed"  # null under a name that says nothing is a fact no longer
        holder[new if new not in holder else f"{key}__"] = holder.pop(key)
    elif kind == "removed":
        del holder[key]
    elif kind == "zero":
        holder[key] = 0
    elif kind == "negative":
        holder[key] = -chance.choice((1, 8, 10**9))
    elif kind == "huge":
        holder[key] = chance.choice(HUGE_VALUES)
    elif kind == "nested":
        holder[chance.choice(("config", "model", "model_config", "llm"))] = {key: holder.pop(key)}
    else:
        holder[key] = copy.deepcopy(chance.choice(OTHER_VALUES))
    return Mutation(kind, path, changed)


def _other_name(key: str, chance: random.Random) -> str:
    """A misspelling, another style, or letters that say nothing."""
    words = key.split("_")
    return chance.choice(
        (
            f"{key}_",
            f"my_{key}",
            f"{key}_old",
            key.replace("num_", "n_"),
            key.replace("_", ""),
            words[0] + "".join(map(str.capitalize, words[1:])) + ("" if words[1:] else "X"),
            key[:-3] + key[-2:],
            key.upper(),
            "".join(chance.choices(NONSENSE_LETTERS, k=6)),
        )
    )


def _pick(config: Config, chance: random.Random) -> tuple[tuple[str, ...], Config]:
    """A key and the object that holds it, in the text part or above."""
    places: list[tuple[tuple[str, ...], Config]] = [((key,), config) for key in config]
    for name in ("text_config", "language_config", "thinker_config"):
        if isinstance(config.get(name), dict):
            places += [((name, *path), holder) for path, holder in _places(config[name])]
    weights = [5 if path[-1] in FACT_KEYS else 1 for path, _ in places]
    return chance.choices(places, weights)[0]


def _places(config: Config) -> list[tuple[tuple[str, ...], Config]]:
    found: list[tuple[tuple[str, ...], Config]] = [((key,), config) for key in config]
    if isinstance(config.get("text_config"), dict):
        found += [(("text_config", *path), holder) for path, holder in _places(config["text_config"])]
    return found
