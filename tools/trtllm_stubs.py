"""Stand-ins for the parts of TensorRT-LLM's Python package that need a GPU, MPI or the compiled library.

A process that has called ``install_stubs(folder)`` imports TensorRT-LLM's own files from a folder, over
``trtkv.bindings``: a name in ``STUBS`` is made here, any other module is the real file. A module that is neither is an
ImportError that names it, so nothing is replaced in silence. Nothing of TensorRT-LLM is shipped.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

STAND_IN = "stand-in"
"""In ``__doc__`` of every module that is made here."""
EMPTY_PACKAGES = ("tensorrt_llm", "tensorrt_llm._torch", "tensorrt_llm._torch.pyexecutor", "tensorrt_llm.llmapi")
"""Packages whose own ``__init__`` imports everything; their submodules are found without it."""
FREE_BYTES = 1 << 30
"""What the device is said to have free."""


class _Named(type):
    """A class used as a name in annotations and isinstance checks; its attributes are 0."""

    def __getattr__(cls, name: str) -> int:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0


def names(*wanted: str) -> Callable[[], dict[str, Any]]:
    """Classes that are only names."""
    return lambda: {name: _Named(name, (), {}) for name in wanted}


def make_logger() -> dict[str, Any]:
    """A logger that says nothing."""

    class Logger:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_args, **_kwargs: None

    return {"logger": Logger()}


def make_mapping() -> dict[str, Any]:
    """The parallel layout of one process."""

    class Mapping:
        def __init__(self, world_size: int = 1, rank: int = 0, **sizes: Any) -> None:
            self.world_size, self.rank = world_size, rank
            self.tp_size, self.pp_size, self.cp_size = (sizes.get(f"{axis}_size", 1) for axis in ("tp", "pp", "cp"))
            self.tp_rank = self.pp_rank = self.cp_rank = 0
            self.gpus_per_node = sizes.get("gpus_per_node", 8)
            self.enable_attention_dp = sizes.get("enable_attention_dp", False)
            self.pp_partition = None

        def pp_layers(self, num_layers: int) -> list[int]:
            return list(range(num_layers))

        def is_first_pp_rank(self) -> bool:
            return True

        def is_last_pp_rank(self) -> bool:
            return True

        def has_pp(self) -> bool:
            return self.pp_size > 1

        def has_cp_helix(self) -> bool:
            return False

    return {"Mapping": Mapping}


def make_utils() -> dict[str, Any]:
    """Element types and a world of one process."""
    import torch

    from trtkv.bindings import DataType

    by_name = {
        "float32": (DataType.FLOAT, torch.float32, 32),
        "float16": (DataType.HALF, torch.float16, 16),
        "bfloat16": (DataType.BF16, torch.bfloat16, 16),
        "int8": (DataType.INT8, torch.int8, 8),
        "int32": (DataType.INT32, torch.int32, 32),
        "int64": (DataType.INT64, torch.int64, 64),
        "fp8": (DataType.FP8, torch.float8_e4m3fn, 8),
        "nvfp4": (DataType.NVFP4, torch.uint8, 4),
    }
    bits = {member: size for member, _, size in by_name.values()} | {DataType.BOOL: 8, DataType.UINT8: 8}

    def decorate(*_args: Any, **_kwargs: Any) -> Callable[[Any], Any]:
        return lambda function: function

    return {
        "get_size_in_bytes": lambda count, dtype: count * bits[dtype] // 8,
        "str_dtype_to_binding": lambda name: by_name[name][0],
        "torch_dtype_to_binding": lambda dtype: next(
            m for m, torch_dtype, _ in by_name.values() if torch_dtype is dtype
        ),
        "binding_to_torch_dtype": lambda member: next(t for m, t, _ in by_name.values() if m is member),
        "binding_to_str_dtype": lambda member: next(name for name, entry in by_name.items() if entry[0] is member),
        "torch_dtype_to_str": lambda dtype: str(dtype).removeprefix("torch."),
        "mpi_rank": lambda: 0,
        "mpi_world_size": lambda: 1,
        "mpi_broadcast": lambda value, root=0: value,
        "mpi_allgather": lambda value: [value],
        "mpi_disabled": lambda: True,
        "mpi_comm": lambda: None,
        "prefer_pinned": lambda: False,
        "maybe_pin_memory": lambda tensor: tensor,
        "nvtx_range": decorate,
        "nvtx_range_debug": decorate,
    }


def make_llm_args() -> dict[str, Any]:
    """Policies and the cache's options, with their defaults."""
    from trtkv.bindings import executor

    class Policy(str, enum.Enum):
        def _to_pybind(self) -> Any:
            return getattr(getattr(executor, type(self).__name__), self.value)

    capacity = ("MAX_UTILIZATION", "GUARANTEED_NO_EVICT", "STATIC_BATCH")
    chunking = ("FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS", "FORCE_CHUNK")
    options: Mapping[str, Any] = {
        "max_tokens": None,
        "enable_block_reuse": True,
        "enable_partial_reuse": True,
        "copy_on_partial_reuse": True,
        "max_attention_window": None,
        "sink_token_length": None,
        "free_gpu_memory_fraction": None,
        "host_cache_size": None,
        "onboard_blocks": True,
        "cross_kv_cache_fraction": None,
        "secondary_offload_min_priority": None,
        "event_buffer_max_size": 0,
        "attention_dp_events_gather_period_ms": 5,
        "max_gpu_total_bytes": 0,
        "kv_cache_event_hash_algo": "auto",
        "tokens_per_block": 32,
        "dtype": "auto",
    }
    fields = [(name, object, value) for name, value in options.items()]
    others = ("PeftCacheConfig", "TorchLlmArgs", "DecodingBaseConfig", "KvCacheCompressionConfig", "SchedulerConfig")
    return {
        "CapacitySchedulerPolicy": Policy("CapacitySchedulerPolicy", {name: name for name in capacity}),
        "ContextChunkingPolicy": Policy("ContextChunkingPolicy", {name: name for name in chunking}),
        "KvCacheConfig": dataclasses.make_dataclass("KvCacheConfig", fields),
        **names(*others)(),
    }


def make_sampling_params() -> dict[str, Any]:
    """Sampling as far as it decides the number of beams."""
    from trtkv.bindings import executor

    class SamplingParams:
        def __init__(self, n: int = 1, best_of: int | None = None, use_beam_search: bool = False, **_: Any) -> None:
            self.n, self.best_of, self.use_beam_search = n, best_of, use_beam_search

        def _get_sampling_config(self) -> executor.SamplingConfig:
            return executor.SamplingConfig((self.best_of or self.n) if self.use_beam_search else 1)

    return {"SamplingParams": SamplingParams}


EXECUTOR = "tensorrt_llm._torch.pyexecutor"
STUBS: dict[str, Callable[[], dict[str, Any]]] = {
    "tensorrt_llm.logger": make_logger,
    "tensorrt_llm.mapping": make_mapping,
    "tensorrt_llm._utils": make_utils,
    "tensorrt_llm.llmapi.llm_args": make_llm_args,
    "tensorrt_llm.sampling_params": make_sampling_params,
    "tensorrt_llm.runtime": names("ModelConfig"),
    "tensorrt_llm.runtime.kv_cache_hash": lambda: {f"KV_CACHE_HASH_ALGO_{n.upper()}": n for n in ("auto", "v1", "v2")},
    "tensorrt_llm.executor.result": names("TokenLogprobs"),
    "tensorrt_llm.lora_helper": names("LoraConfig"),
    "tensorrt_llm._torch.shared_tensor": names("SharedTensorContainer"),
    "tensorrt_llm._torch.distributed": names("Distributed", "ReduceOp"),
    "tensorrt_llm._torch.distributed.communicator": names("Distributed", "ReduceOp"),
    "tensorrt_llm._torch.peft.lora.config": names("LoraConfig"),
    "tensorrt_llm._torch.peft.lora.manager": names("LoraManager", "LoraModelConfig"),
    "tensorrt_llm._torch.speculative": lambda: {
        "get_num_extra_kv_tokens": lambda config: getattr(config, "num_extra_kv_tokens", 0)
    },
    "tensorrt_llm._torch.speculative.utils": lambda: {"get_num_spec_layers": lambda _config: 0},
    f"{EXECUTOR}.config_utils": lambda: {
        "uses_vswa_kv_cache_layout": lambda windows: len({window for window in windows if window > 0}) > 1
    },
    f"{EXECUTOR}.kv_cache_manager_v2": lambda: {
        "KVCacheManagerV2": type("KVCacheManagerV2", (), {}),
        "_update_kv_cache_draft_token_location": lambda *_args: None,
    },
    f"{EXECUTOR}.cuda_graph_runner": lambda: {"CUDA_GRAPH_DUMMY_REQUEST_ID": 2**64 - 1},
    "strenum": lambda: {"StrEnum": type("StrEnum", (str, enum.Enum), {})},
}


class StubFinder:
    """Finds stand-ins first, then files of the folder; what is neither is an ImportError with the name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Where a module comes from; None for what is none of TensorRT-LLM's."""
        if name == "strenum":
            installed = importlib.machinery.PathFinder.find_spec(name)
            return installed or importlib.machinery.ModuleSpec(name, self)
        if name.split(".")[0] != "tensorrt_llm":
            return None
        base = self._folder.joinpath(*name.split("."))
        has_stubs = any(stub.startswith(f"{name}.") for stub in STUBS)
        is_stub = name in STUBS or name in EMPTY_PACKAGES
        if not is_stub and base.with_suffix(".py").is_file():
            return importlib.util.spec_from_file_location(name, base.with_suffix(".py"))
        if not is_stub and (base / "__init__.py").is_file():
            locations = [str(base)]
            return importlib.util.spec_from_file_location(
                name, base / "__init__.py", submodule_search_locations=locations
            )
        if not is_stub and not has_stubs and not base.is_dir():
            raise ModuleNotFoundError(f"{name} is not in {self._folder}, and there is no stand-in for it", name=name)
        spec = importlib.machinery.ModuleSpec(name, self, is_package=has_stubs or base.is_dir())
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations = [str(base)]
        return spec

    def create_module(self, _spec: importlib.machinery.ModuleSpec) -> None:
        """The usual module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill a stand-in."""
        module.__doc__ = STAND_IN
        vars(module).update(STUBS.get(module.__name__, dict)())


def pretend_device() -> None:
    """torch says that there is a device, streams are the handle 0, memory is ``FREE_BYTES``; no kernel can run."""
    import torch

    stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None, wait_stream=lambda _other: None)
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.Stream = cuda.current_stream = lambda *_args, **_kwargs: stream
    cuda.mem_get_info = lambda *_args: (FREE_BYTES, 2 * FREE_BYTES)
    cuda.empty_cache = cuda.synchronize = lambda *_args: None
    cuda.current_device = lambda: "cpu"


def install_stubs(folder: Path) -> None:
    """Make ``import tensorrt_llm`` find the folder's files, stand-ins and trtkv's bindings; changes this process."""
    import trtkv.bindings

    sys.meta_path.insert(0, StubFinder(folder))  # type: ignore[arg-type]  # a finder and loader by its methods
    importlib.import_module("tensorrt_llm")
    trtkv.bindings.install()
    pretend_device()
