"""Configs of models: the fixtures, and changed copies of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trtkv.sizing.cache_plan import CachePlan, SizingOptions, make_cache_plan
from trtkv.sizing.hf_config import make_hf_config
from trtkv.sizing.model_shape import ModelShape, make_model_shape

MODELS = Path(__file__).resolve().parent.parent / "data" / "models"
NAMES = sorted(path.stem for path in MODELS.glob("*.json"))
GIB = 2**30


def values(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def shape_of(name: str, **changes: object) -> ModelShape:
    """A fixture with some keys changed; ... takes a key out."""
    changed = {key: value for key, value in {**values(name), **changes}.items() if value is not ...}
    return make_model_shape(make_hf_config(changed, f"{name}.json"), name)


def plan_of(name: str, memory_bytes: int = 40 * GIB, **options: Any) -> CachePlan:
    return make_cache_plan(shape_of(name), SizingOptions(memory_bytes, **options))
