"""The shape of a model that a user names: a file, a folder, a known name, or a cache spec."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from trtkv.errors import InvalidInputError
from trtkv.sizing.cache_spec import read_cache_spec
from trtkv.sizing.hf_config import CONFIG_FILE_NAME
from trtkv.sizing.known_models import load_known_models
from trtkv.sizing.model_shape import ModelShape, make_model_shape, read_model_shape

KNOWN_SOURCE: Final = "known"
"""Source of a shape whose facts come from the table of the package."""


def read_model(
    model: str | os.PathLike[str] | None,
    cache_spec: str | os.PathLike[str] | None = None,
    *,
    ask_checkpoint: bool = True,
) -> ModelShape:
    """The shape of ``model``, or of ``cache_spec`` where that is given; exactly one of the two.

    A path that exists is read; else the text is a name or hub id of a known model. ``ask_checkpoint``: whether its
    files may ask for an element type of the cache. Raises InvalidInputError for what is neither.
    """
    if (model is None) == (cache_spec is None):
        raise InvalidInputError("the cache of one model is sized: give either --model or --cache-spec")
    if cache_spec is not None:
        return replace(read_cache_spec(cache_spec), source=os.fspath(cache_spec))
    text = os.fspath(model or "")
    if os.path.exists(text) or _looks_like_a_path(text):
        return replace(read_model_shape(text, ask_checkpoint=ask_checkpoint), source=text)
    return _read_known(text, ask_checkpoint=ask_checkpoint)


def _looks_like_a_path(text: str) -> bool:
    """Whether it cannot be a name: those have one slash at most, and no ending of a file."""
    path = Path(text)
    return path.is_absolute() or path.suffix == ".json" or path.name == CONFIG_FILE_NAME or text[:1] in (".", "~", "")


def _read_known(name: str, *, ask_checkpoint: bool) -> ModelShape:
    table = load_known_models()
    known = table.find(name)
    if known is None:
        similar = table.similar(name)
        question = f"; did you mean {similar}?" if similar else ""
        raise InvalidInputError(f"no file and no known model {name!r:.80}{question} (trtkv size --list-models)")
    shape = make_model_shape(known.hf_config(), known.name, ask_checkpoint=ask_checkpoint)
    note = f"facts of {known.hub_id} as read in {table.date} ({known.source}); its own config.json is better"
    return replace(shape, source=KNOWN_SOURCE, notes=(*shape.notes, note))
