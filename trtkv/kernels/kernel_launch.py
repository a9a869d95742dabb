"""KernelLaunch: everything needed to start one kernel, apart from the machine that runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import torch

KernelArgument: TypeAlias = "np.uint64 | np.int64 | np.int32"
"""A pointer, a 64-bit size or an int; the type decides how many bytes the kernel receives."""


class KernelLaunch(NamedTuple):
    """One launch: source file under csrc, kernel, grid, threads of a CTA and arguments in order."""

    source: str
    kernel: str
    grid: tuple[int, int, int]
    block: int
    args: tuple[KernelArgument, ...]


Launcher: TypeAlias = "Callable[[KernelLaunch], None]"
"""Runs a launch. On a device it returns before the kernel has run."""

Backend: TypeAlias = "Launcher | Literal['reference'] | None"
"""Who computes: a launcher, the torch reference, or None for CuPy on CUDA tensors and the reference elsewhere."""


def pointer(tensor: torch.Tensor | None) -> np.uint64:
    """Address of a tensor's first element; 0 for None."""
    address: int = 0 if tensor is None else tensor.data_ptr()
    result: np.uint64 = np.uint64(address)
    return result
