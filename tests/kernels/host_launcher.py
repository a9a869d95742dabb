"""Runs the CUDA sources on the CPU: a host compiler, a shim of thread indices, ctypes."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from trtkv.kernels._loader import read_source
from trtkv.kernels.kernel_launch import KernelLaunch

_SHIM = Path(__file__).with_name("host_shim.h")
_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(\w+\) )?(\w+)\(([^)]*)\)')
_CTYPES = {np.uint64: ctypes.c_uint64, np.int64: ctypes.c_int64, np.int32: ctypes.c_int32}


def find_compiler() -> str | None:
    """Path of a host C++ compiler."""
    return shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")


def launch_on_host(plan: KernelLaunch) -> None:
    """Run one launch to its end. C++ arguments are checked against the kernel's parameters by their number."""
    library, num_params = _load(plan.source)
    if len(plan.args) != num_params[plan.kernel]:
        raise TypeError(f"{plan.kernel} takes {num_params[plan.kernel]} arguments, {len(plan.args)} given")
    entry: Callable[..., None] = getattr(library, f"host_{plan.kernel}")
    args = [_CTYPES[type(arg)](arg.item()) for arg in plan.args]
    entry(*(ctypes.c_uint(n) for n in (*plan.grid, plan.block)), *args)


def render_host_source(source: str) -> tuple[str, dict[str, int]]:
    """C++ text of a source file with one entry point per kernel, and how many parameters each kernel has."""
    text = read_source(source)
    entries, num_params = [], {}
    for name, params in _KERNEL.findall(text):
        parts = [" ".join(part.split()) for part in params.split(",")]
        names = [re.findall(r"\w+", part)[-1] for part in parts]
        num_params[name] = len(parts)
        entries.append(
            f'extern "C" void host_{name}(unsigned x, unsigned y, unsigned z, unsigned threads, {", ".join(parts)})\n'
            f"{{ host_run_grid({{x, y, z}}, threads, [&] {{ {name}({', '.join(names)}); }}); }}\n"
        )
    return f'#include "{_SHIM.name}"\n{text}\n{"".join(entries)}', num_params


@functools.cache
def _load(source: str) -> tuple[ctypes.CDLL, dict[str, int]]:
    text, num_params = render_host_source(source)
    flags = ["-std=c++17", "-O1", "-g", "-shared", "-fPIC", "-fsanitize=undefined", "-fno-sanitize-recover=all"]
    flags += ["-DHOST_BARRIERS"] if "__syncthreads" in text.split("\n", 1)[1] else []
    compiler = find_compiler()
    if compiler is None:
        raise RuntimeError("no host C++ compiler; set CXX")
    with tempfile.TemporaryDirectory(prefix="trtkv-host-kernels-") as folder:
        cpp, binary = Path(folder) / "kernel.cpp", Path(folder) / "kernel.so"
        cpp.write_text(text)
        command = [compiler, *flags, f"-I{_SHIM.parent}", "-o", str(binary), str(cpp)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{result.stderr}")
        return ctypes.CDLL(str(binary)), num_params
