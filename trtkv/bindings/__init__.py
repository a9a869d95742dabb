"""What TensorRT-LLM's PyTorch flow imports from its C++ bindings for the V1 KV cache, over trtkv's classes.

The module tree, names and call forms are those of ``tensorrt_llm.bindings``; docs/bindings.md says what is there.
``configure`` sets the mode, ``install`` puts the tree under TensorRT-LLM's import names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

from trtkv.bindings import executor as executor
from trtkv.bindings import internal as internal
from trtkv.bindings._border import Configuration as Configuration
from trtkv.bindings._border import configure as configure
from trtkv.bindings._types import DataType as DataType
from trtkv.bindings._types import LayerType as LayerType
from trtkv.bindings._types import LoraModule as LoraModule
from trtkv.bindings._types import LoraModuleType as LoraModuleType
from trtkv.bindings._types import ModelConfig as ModelConfig
from trtkv.bindings._types import MpiComm as MpiComm
from trtkv.bindings._types import PeftCacheManagerConfig as PeftCacheManagerConfig
from trtkv.bindings._types import SamplingConfig as SamplingConfig
from trtkv.bindings._types import WorldConfig as WorldConfig
from trtkv.bindings._types import steady_clock_now as steady_clock_now
from trtkv.bindings.internal.runtime import CudaStream as CudaStream
from trtkv.errors import ConfigurationError
from trtkv.records.llm_request import LlmRequestState as LlmRequestState

binding_type = "trtkv"

FLOAT, HALF, INT8, INT32 = DataType.FLOAT, DataType.HALF, DataType.INT8, DataType.INT32
BOOL, UINT8, FP8, BF16 = DataType.BOOL, DataType.UINT8, DataType.FP8, DataType.BF16
INT64, NVFP4 = DataType.INT64, DataType.NVFP4

_ROOT = "tensorrt_llm.bindings"


def install() -> None:
    """Make ``import tensorrt_llm.bindings`` give this tree, in a process without the compiled bindings.

    Raises ConfigurationError if the compiled bindings, or others than these, are loaded already. Calling it again
    changes nothing.
    """
    loaded = sys.modules.get(_ROOT)
    if loaded is not None and loaded is not sys.modules[__name__]:
        raise ConfigurationError(f"{_ROOT} is loaded already, from {getattr(loaded, '__file__', 'an unknown place')}")
    for name, module in _tree(sys.modules[__name__], _ROOT):
        sys.modules[name] = module
    parent = sys.modules.get("tensorrt_llm")
    if parent is not None:
        parent.bindings = sys.modules[__name__]  # type: ignore[attr-defined]  # a submodule is an attribute of its parent


def _tree(module: ModuleType, name: str) -> Iterator[tuple[str, ModuleType]]:
    """A module and its public submodules under another name."""
    yield name, module
    prefix = f"{module.__name__}."
    for loaded_name, loaded in list(sys.modules.items()):
        rest = loaded_name.removeprefix(prefix)
        if loaded_name.startswith(prefix) and "." not in rest and not rest.startswith("_"):
            yield from _tree(loaded, f"{name}.{rest}")


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"trtkv.bindings has no {name!r}: tensorrt_llm.bindings.{name} is not part of the KV cache that trtkv ports"
    )
