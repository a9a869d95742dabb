"""Compiles and launches the CUDA sources through CuPy. The only module that imports cupy."""

from __future__ import annotations

import functools
from importlib import resources
from typing import TYPE_CHECKING, Any

from trtkv.errors import MissingExtraError

if TYPE_CHECKING:
    import torch

    from trtkv.kernels.kernel_launch import Backend, KernelLaunch, Launcher


def read_source(name: str) -> str:
    """Text of a source file under ``csrc``."""
    return (resources.files("trtkv.kernels") / "csrc" / name).read_text(encoding="utf-8")


@functools.cache
def load_kernel(source: str, kernel: str) -> Any:
    """Compiled kernel of a source file; compiling happens at the first launch on each device."""
    cupy = _import_cupy()
    return cupy.RawKernel(read_source(source), kernel, options=("--std=c++17",))


def resolve_launcher(backend: Backend, device: torch.device) -> Launcher | None:
    """The launcher to use on a device, or None for the reference."""
    if backend == "reference":
        return None
    if backend is not None:
        return backend
    if device.type != "cuda":
        return None
    return make_cupy_launcher(device)


def make_cupy_launcher(device: torch.device) -> Launcher:
    """Launcher for one CUDA device: each launch joins the stream that is current in torch at that moment."""
    import torch

    cupy = _import_cupy()
    index = torch.cuda.current_device() if device.index is None else device.index

    def launch(plan: KernelLaunch) -> None:
        stream = torch.cuda.current_stream(index)
        kernel = load_kernel(plan.source, plan.kernel)
        with cupy.cuda.Device(index), adopt_stream(cupy, stream, index):
            kernel(plan.grid, (plan.block, 1, 1), plan.args)

    return launch


def adopt_stream(cupy: Any, stream: torch.cuda.Stream, device_index: int) -> Any:
    """torch's stream as one of CuPy, to be entered as a context; nothing is created on the device.

    CuPy 14 takes any object that follows the CUDA stream protocol and deprecates ``ExternalStream``. Older versions of
    CuPy, and of torch, know the handle only.
    """
    if hasattr(cupy.cuda.Stream, "from_external") and hasattr(stream, "__cuda_stream__"):
        return cupy.cuda.Stream.from_external(stream)
    return cupy.cuda.ExternalStream(stream.cuda_stream, device_index)


def _import_cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise MissingExtraError(
            'running kernels on a GPU needs CuPy: pip install "trtkv[cuda12]" or "trtkv[cuda13]", '
            'or pass backend="reference"'
        ) from error
    return cupy
