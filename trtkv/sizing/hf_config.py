"""HfConfig: typed access to the config.json of a Hugging Face model; complaints name file, key and value."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from trtkv.common import MAX_INT32
from trtkv.errors import InvalidInputError

CONFIG_FILE_NAME: Final = "config.json"

MAX_FILE_BYTES: Final = 16 * 2**20
"""Longest JSON file that is read; real configs have a few kilobytes."""

MAX_LAYERS: Final = 10_000
"""Most layers of a model; more are taken for a mistake instead of being laid out one by one."""

TEXT_CONFIG_KEYS: Final = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where models of several modalities keep the part that has the KV cache."""

OTHER_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads",),
    "hidden_size": ("n_embd", "n_embed", "d_model"),
    "head_dim": ("attention_head_dim",),
    "max_position_embeddings": (
        "n_positions",
        "n_ctx",
        "max_seq_len",
        "max_sequence_length",
        "seq_length",
        "model_max_length",
        "max_position_embedding",
    ),
    "dtype": ("torch_dtype",),
}
"""Names that some models use instead; the first one present counts."""

MUST_AGREE: Final = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim")
"""Facts that may stand under several names, but only with one value."""

Names = Mapping[str, tuple[str, ...]]

NO_NAMES: Final[Names] = MappingProxyType({})


class HfConfig:
    """The text part of a config.json. ``defaults`` stand in for keys that are absent; an explicit null stays null.

    Every fact that is read is remembered with the key where it was found; see ``facts``.
    """

    def __init__(
        self,
        values: Mapping[str, object],
        source: str,
        outer: Mapping[str, object] | None = None,
        *,
        is_part: bool = False,
    ) -> None:
        self.source = source
        self.is_part = is_part
        """Whether it stands inside the config of a model of several modalities."""
        self._values = values
        self._outer = outer or {}
        self._defaults: Mapping[str, object] = {}
        self._names: Names = NO_NAMES
        self._facts: dict[str, tuple[object, str | None]] = {}
        self._asked: set[str] = set()

    def of_family(self, defaults: Mapping[str, object], names: Names = NO_NAMES) -> HfConfig:
        """The same config with the defaults and names of a model type; ``names`` stand in place of OTHER_NAMES."""
        config = HfConfig(self._values, self.source, self._outer, is_part=self.is_part)
        config._defaults = defaults
        config._names = names
        return config

    @property
    def keys(self) -> set[str]:
        """Keys that are written down with a value other than null."""
        return {key for key, value in self._values.items() if value is not None}

    @property
    def written_keys(self) -> set[str]:
        """All keys, those with null included."""
        return set(self._values)

    @property
    def facts(self) -> Mapping[str, tuple[object, str | None]]:
        """Numbers, texts and flags read so far: value and the key where it stood, None for a default of the type."""
        return MappingProxyType(self._facts)

    def names(self, key: str) -> tuple[str, ...]:
        """All names under which a key may stand, the usual one first."""
        return self._names.get(key, (key, *OTHER_NAMES.get(key, ())))

    @property
    def asked(self) -> set[str]:
        """Names that something has asked for."""
        return self._asked

    @property
    def unread_keys(self) -> set[str]:
        """Keys with a value other than null, false or empty that nothing has asked for."""
        return {key for key, value in self._values.items() if not _is_nothing(value) and key not in self._asked}

    def get(self, key: str) -> object:
        """The value under a key or one of its other names, else the default, else None."""
        self._asked.update(self.names(key))
        written = [name for name in self.names(key) if name in self._values]
        if not written:
            value = self._defaults.get(key)
            if value is not None:
                self._facts[key] = (value, None)
            return value
        name = next((name for name in written if self._values[name] is not None), written[0])
        if key in MUST_AGREE:
            self._check_agreement(name, written)
        value = self._values[name]
        if isinstance(value, int | str):
            self._facts[key] = (value, name)
        return value

    def _check_agreement(self, name: str, names: list[str]) -> None:
        value = self._values[name]
        for other in names:
            if self._values[other] is not None and self._values[other] != value:
                raise InvalidInputError(
                    f"{self.source}: {name} is {shown(value)}, but {other} is {shown(self._values[other])}; "
                    "they name the same fact"
                )

    def peek(self, key: str) -> object:
        """The value under exactly this key, without counting as a fact that was read."""
        return self._values.get(key)

    def get_outer(self, key: str) -> object:
        """As ``get``, but what is missing in the text part may stand beside it."""
        value = self.get(key)
        if value is not None:
            return value
        return next((self._outer[name] for name in self.names(key) if name in self._outer), None)

    def get_outermost(self, key: str) -> object:
        """The value beside the text part, or of the whole where there is no such part."""
        return (self._outer or self._values).get(key)

    def get_all(self, key: str) -> list[object]:
        """Values other than null in the text part and beside it, the text part first."""
        found = [part.get(key) for part in (self._values, self._outer)]
        if found[0] is found[1]:
            del found[1:]
        return [value for value in found if value is not None]

    def has_only_outside(self, key: str) -> bool:
        """Whether a key is missing in the text part but stands beside it."""
        return not self.is_present(key) and any(self._outer.get(name) is not None for name in self.names(key))

    def is_present(self, key: str) -> bool:
        """Whether a key stands in the text part, be it with null."""
        return any(name in self._values for name in self.names(key))

    def is_written(self, key: str) -> bool:
        """Whether a key stands in the text part with a value other than null."""
        return any(self._values.get(name) is not None for name in self.names(key))

    def integer(self, key: str, minimum: int = 1, maximum: int = MAX_INT32) -> int:
        """A whole number that has to be there."""
        value = self.optional_integer(key, minimum, maximum)
        if value is None:
            raise InvalidInputError(f"{self.source}: {key} is missing; the cache cannot be sized without it")
        return value

    def optional_integer(self, key: str, minimum: int = 1, maximum: int = MAX_INT32) -> int | None:
        """A whole number, or None for an absent key or null."""
        value = self.get(key)
        return None if value is None else self.check_integer(key, value, minimum, maximum)

    def check_integer(self, key: str, value: object, minimum: int = 1, maximum: int = MAX_INT32) -> int:
        """The value as a whole number in range."""
        if type(value) is not int or value < minimum:
            raise self.fault(key, value, f"a whole number of at least {minimum}")
        if value > maximum:
            raise self.fault(key, value, f"a whole number of at most {maximum:,}")
        return value

    def boolean(self, key: str) -> bool:
        """True or false; an absent key is false."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.fault(key, value, "true or false")
        return bool(value)

    def optional_text(self, key: str) -> str | None:
        """A text of printable characters, or None."""
        value = self.get(key)
        if value is not None and not (isinstance(value, str) and value.isprintable()):
            raise self.fault(key, value, "a text")
        return value

    def optional_list(self, key: str, length: int | None = None) -> list[object] | None:
        """A list, of the given length if there is one, or None."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.fault(key, value, "a list")
        if length is not None and len(value) != length:
            raise InvalidInputError(f"{self.source}: {key} has {len(value)} entries, but the model has {length} layers")
        return value

    def part(self, key: str) -> HfConfig | None:
        """The object under a key as a config of its own, whose complaints say ``key.inner``; or None."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fault(key, value, "an object")
        return _Part(value, self.source, key, self._facts)

    def fault(self, key: str, value: object, wanted: str) -> InvalidInputError:
        """The complaint about a value that is not what it should be."""
        return InvalidInputError(f"{self.source}: {key} is {shown(value)}, not {wanted}")


class _Part(HfConfig):
    """An object inside a config; it has no other names and no defaults."""

    def __init__(
        self, values: Mapping[str, object], source: str, path: str, facts: dict[str, tuple[object, str | None]]
    ) -> None:
        super().__init__(values, source)
        self._path = path
        self._all_facts = facts

    def names(self, key: str) -> tuple[str, ...]:
        return (key,)

    def get(self, key: str) -> object:
        value = super().get(key)
        if isinstance(value, int | str):
            self._all_facts[f"{self._path}.{key}"] = (value, f"{self._path}.{key}")
        return value

    def part(self, key: str) -> HfConfig | None:
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.fault(key, value, "an object")
        return None if value is None else _Part(value, self.source, f"{self._path}.{key}", self._all_facts)

    def integer(self, key: str, minimum: int = 1, maximum: int = MAX_INT32) -> int:
        value = self.optional_integer(key, minimum, maximum)
        if value is None:
            raise InvalidInputError(
                f"{self.source}: {self._path}.{key} is missing; the cache cannot be sized without it"
            )
        return value

    def fault(self, key: str, value: object, wanted: str) -> InvalidInputError:
        return super().fault(f"{self._path}.{key}", value, wanted)


def read_hf_config(path: str | os.PathLike[str]) -> HfConfig:
    """Read a config.json, or the one in a folder. Of a multimodal model it is the text part.

    Raises InvalidInputError when the file does not hold a JSON object.
    """
    file = config_file(path)
    return make_hf_config(read_json_object(file, "the model's config", "give the config.json of a model"), str(file))


def config_file(path: str | os.PathLike[str]) -> Path:
    """The file itself, or the config.json of a folder."""
    file = Path(path)
    return file / CONFIG_FILE_NAME if file.is_dir() else file


def read_json_object(file: Path, what: str, advice: str) -> dict[str, object]:
    """The JSON object in a file of at most MAX_FILE_BYTES; complaints name the file."""
    try:
        with open(file, "rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidInputError(f"cannot read {what} {file}: {error.strerror or error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise InvalidInputError(f"{file}: longer than {MAX_FILE_BYTES:,} bytes; {advice}")
    try:
        values = json.loads(content.decode("utf-8"))
    except ValueError as error:
        raise InvalidInputError(f"{file}: bad JSON: {_one_line(str(error))}") from None
    except RecursionError:
        raise InvalidInputError(f"{file}: bad JSON: nested too deeply") from None
    if not isinstance(values, dict):
        raise InvalidInputError(f"{file}: not a JSON object; {advice}")
    return values


def make_hf_config(values: Mapping[str, object], source: str) -> HfConfig:
    """The text part of a config that is read already; ``source`` is what complaints call it."""
    text, outer = values, dict(values)
    while True:
        present = [key for key in TEXT_CONFIG_KEYS if text.get(key) is not None]
        if not present:
            return HfConfig(text, source, outer, is_part=text is not values)
        inner = text[present[0]]
        if len(present) > 1:
            raise InvalidInputError(f"{source}: {' and '.join(present)} are both there; only one can be the text part")
        if not isinstance(inner, dict):
            raise InvalidInputError(f"{source}: {present[0]} is {shown(inner)}, not an object")
        text = inner
        outer.update({key: value for key, value in inner.items() if key not in outer})


def _is_nothing(value: object) -> bool:
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)


def listed_keys(keys: Iterable[str], most: int = 8) -> str:
    """Names of keys for a message: on one line, printable, a few of many."""
    shown = sorted(key if key.isprintable() and len(key) <= 80 else f"{key!r:.80}" for key in keys)
    more = len(shown) - most
    return ", ".join(shown[:most]) + (f" and {more} more" if more > 0 else "")


def shown(value: object) -> str:
    """A value in at most 80 characters; those of a deep nest are not walked."""
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    if isinstance(value, list) and any(isinstance(entry, list | dict) for entry in value[:20]):
        return f"a list of {len(value)} entries"
    if isinstance(value, list):
        return f"{value[:20]!r:.80}"
    return f"{value!r:.80}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
