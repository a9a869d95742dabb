"""Loads the original nano-vllm engine modules, without a model runtime, for the differential test."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple


class Original(NamedTuple):
    """The original's classes and its engine's view of a config."""

    block_manager: Any
    scheduler: Any
    sequence: Any
    sampling_params: Any


def find_package() -> Path | None:
    """Folder of the ``nanovllm`` package: TRTKV_NANO_VLLM (checkout or package folder), else an installed one."""
    named = os.environ.get("TRTKV_NANO_VLLM")
    if named:
        for folder in (Path(named) / "nanovllm", Path(named)):
            if (folder / "engine" / "block_manager.py").is_file():
                return folder
        raise FileNotFoundError(f"TRTKV_NANO_VLLM={named} holds no nanovllm/engine/block_manager.py")
    spec = importlib.util.find_spec("nanovllm")
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return Path(locations[0]) if locations else None


@contextmanager
def load_original(folder: Path) -> Iterator[Original]:
    """Import the engine modules alone: the package's own __init__ would pull in a model runtime."""
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "nanovllm"}
    for name in before:
        del sys.modules[name]
    try:
        for name, path in (("nanovllm", folder), ("nanovllm.engine", folder / "engine")):
            package = types.ModuleType(name)
            package.__path__ = [str(path)]
            sys.modules[name] = package
        config = types.ModuleType("nanovllm.config")
        config.Config = object  # type: ignore[attr-defined]  # only named in an annotation
        sys.modules["nanovllm.config"] = config
        load = importlib.import_module
        yield Original(
            load("nanovllm.engine.block_manager").BlockManager,
            load("nanovllm.engine.scheduler").Scheduler,
            load("nanovllm.engine.sequence").Sequence,
            load("nanovllm.sampling_params").SamplingParams,
        )
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "nanovllm"]:
            del sys.modules[name]
        sys.modules.update(before)
