"""HfConfig: typed access to the config.json of a Hugging Face model; complaints name file, key and value."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trtkv.errors import InvalidInputError

CONFIG_FILE_NAME: Final = "config.json"

TEXT_CONFIG_KEYS: Final = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where models of several modalities keep the part that has the KV cache."""

OTHER_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads",),
    "hidden_size": ("n_embd", "d_model"),
    "head_dim": ("attention_head_dim",),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length"),
    "dtype": ("torch_dtype",),
}
"""Names that some models use instead; the first one present counts."""


class HfConfig:
    """The text part of a config.json. ``defaults`` stand in for keys that are absent; an explicit null stays null."""

    def __init__(self, values: Mapping[str, object], source: str, outer: Mapping[str, object] | None = None) -> None:
        self.source = source
        self._values = values
        self._outer = outer or {}
        self._defaults: Mapping[str, object] = {}

    def with_defaults(self, defaults: Mapping[str, object]) -> HfConfig:
        """The same config with other defaults."""
        config = HfConfig(self._values, self.source, self._outer)
        config._defaults = defaults
        return config

    @property
    def keys(self) -> set[str]:
        """Keys that are written down with a value other than null."""
        return {key for key, value in self._values.items() if value is not None}

    def get(self, key: str) -> object:
        """The value under a key or one of its other names, else the default, else None."""
        for name in (key, *OTHER_NAMES.get(key, ())):
            if name in self._values:
                return self._values[name]
        return self._defaults.get(key)

    def get_outer(self, key: str) -> object:
        """As ``get``, but what is missing in the text part may stand beside it."""
        value = self.get(key)
        if value is not None:
            return value
        return next((self._outer[name] for name in (key, *OTHER_NAMES.get(key, ())) if name in self._outer), None)

    def integer(self, key: str, minimum: int = 1) -> int:
        """A whole number that has to be there."""
        value = self.optional_integer(key, minimum)
        if value is None:
            raise InvalidInputError(f"{self.source}: {key} is missing; the cache cannot be sized without it")
        return value

    def optional_integer(self, key: str, minimum: int = 1) -> int | None:
        """A whole number, or None for an absent key or null."""
        value = self.get(key)
        if value is None:
            return None
        if type(value) is not int or value < minimum:
            raise self.fault(key, value, f"a whole number of at least {minimum}")
        return value

    def boolean(self, key: str) -> bool:
        """True or false; an absent key is false."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.fault(key, value, "true or false")
        return bool(value)

    def optional_text(self, key: str) -> str | None:
        """A text, or None."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.fault(key, value, "a text")
        return value

    def optional_list(self, key: str) -> list[object] | None:
        """A list, or None."""
        value = self.get(key)
        if value is not None and not isinstance(value, list):
            raise self.fault(key, value, "a list")
        return value

    def fault(self, key: str, value: object, wanted: str) -> InvalidInputError:
        """The complaint about a value that is not what it should be."""
        return InvalidInputError(f"{self.source}: {key} is {value!r:.80}, not {wanted}")


def read_hf_config(path: str | os.PathLike[str]) -> HfConfig:
    """Read a config.json, or the one in a folder. Of a multimodal model it is the text part.

    Raises InvalidInputError when the file is no JSON object.
    """
    file = Path(path)
    if file.is_dir():
        file /= CONFIG_FILE_NAME
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(f"cannot read the model's config {file}: {error.strerror or error}") from error
    except ValueError as error:
        raise InvalidInputError(f"{file}: bad JSON: {error}") from None
    except RecursionError:
        raise InvalidInputError(f"{file}: bad JSON: nested too deeply") from None
    if not isinstance(values, dict):
        raise InvalidInputError(f"{file}: this is no JSON object; give the config.json of a model")
    return make_hf_config(values, str(file))


def make_hf_config(values: Mapping[str, object], source: str) -> HfConfig:
    """The text part of a config that is read already; ``source`` is what complaints call it."""
    text, outer = values, dict(values)
    while True:
        inner = next((text[key] for key in TEXT_CONFIG_KEYS if isinstance(text.get(key), dict)), None)
        if not isinstance(inner, dict):
            return HfConfig(text, source, outer)
        text = inner
        outer.update({key: value for key, value in inner.items() if key not in outer})
