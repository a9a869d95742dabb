"""Compiles the kernels for sm_80 and sm_90 and reports registers, spills and shared memory. Needs no GPU.

With nvcc (CUDA toolkit) the figures come from its assembler. With the NVRTC library alone (CUDA toolkit, or the pip
packages nvidia-cuda-nvrtc, nvidia-cuda-nvrtc-cu12) the sources are compiled to PTX, and on to machine code if a ptxas
is found. Exit code: 0 all compiled without spills, 1 an error or a spill, 3 no compiler found.

Run: ``python tools/check_kernels.py [--arch sm_80 ...] [--json]``
"""

from __future__ import annotations

import argparse
import ctypes
import glob
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

CSRC = Path(__file__).resolve().parent.parent / "trtkv" / "kernels" / "csrc"
ARCHS = ("sm_80", "sm_90")
NO_COMPILER = 3


@dataclass
class KernelFigures:
    """What the assembler says about one kernel on one architecture."""

    compiler: str
    arch: str
    source: str
    kernel: str
    registers: int
    spill_bytes: int
    shared_bytes: int


def find_tool(name: str) -> str | None:
    """A program of the CUDA toolkit: on the path, in /usr/local/cuda, or in a pip package."""
    return (
        shutil.which(name) or next(iter(glob.glob(f"/usr/local/cuda*/bin/{name}")), None) or in_packages(f"bin/{name}")
    )


def in_packages(pattern: str) -> str | None:
    """First file of this name in the pip packages ``nvidia.*``."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        for path in sorted(Path(folder).glob(f"*/{pattern}")):
            return str(path)
    return None


def parse_figures(text: str, compiler: str, arch: str, source: str) -> list[KernelFigures]:
    """Read what ``ptxas -v`` prints."""
    figures = []
    for part in re.split(r"Compiling entry function ", text)[1:]:
        kernel = re.match(r"'(\w+)'", part)
        registers = re.search(r"Used (\d+) registers", part)
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
        shared = re.search(r"(\d+) bytes smem", part)
        if kernel and registers and spills:
            figures.append(
                KernelFigures(
                    compiler,
                    arch,
                    source,
                    kernel[1],
                    int(registers[1]),
                    int(spills[1]) + int(spills[2]),
                    int(shared[1]) if shared else 0,
                )
            )
    return figures


def run(command: list[str]) -> str:
    """Output of a command; its errors go up with the text."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{result.stdout}{result.stderr}")
    return result.stdout + result.stderr


def check_with_nvcc(nvcc: str, source: Path, arch: str) -> list[KernelFigures]:
    """Figures of a source compiled by nvcc."""
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc, "-std=c++17", f"-arch={arch}", "-cubin", "-Xptxas", "-v", "-Werror", "all-warnings"]
        text = run([*command, "-o", f"{folder}/kernel.cubin", str(source)])
    return parse_figures(text, "nvcc", arch, source.name)


def load_nvrtc() -> ctypes.CDLL | None:
    """The NVRTC library, if there is one."""
    names = [*sorted(glob.glob("/usr/local/cuda*/lib64/libnvrtc.so*")), in_packages("lib/libnvrtc.so.*"), "libnvrtc.so"]
    for name in names:
        try:
            return ctypes.CDLL(name) if name else None
        except OSError:
            continue
    return None


def compile_with_nvrtc(nvrtc: ctypes.CDLL, source: Path, arch: str) -> str:
    """PTX of a source."""
    program = ctypes.c_void_p()
    text = source.read_bytes()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, source.name.encode(), 0, None, None)
    options = [f"--gpu-architecture={arch.replace('sm', 'compute')}".encode(), b"--std=c++17"]
    result = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    if result:
        raise RuntimeError(f"{source.name} for {arch}: {read_nvrtc(nvrtc, 'ProgramLog', program)}")
    ptx = read_nvrtc(nvrtc, "PTX", program)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return ptx


def read_nvrtc(nvrtc: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> str:
    """Log or PTX of a program."""
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.value.decode()


def check_with_nvrtc(nvrtc: ctypes.CDLL, ptxas: str | None, source: Path, arch: str) -> list[KernelFigures]:
    """Figures of a source compiled by NVRTC, the compiler CuPy uses; none without an assembler."""
    ptx = compile_with_nvrtc(nvrtc, source, arch)
    if ptxas is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        text = run([ptxas, "-v", f"-arch={arch}", "-o", f"{folder}/kernel.cubin", str(path)])
    return parse_figures(text, "nvrtc", arch, source.name)


def check_all(archs: list[str]) -> Iterator[KernelFigures]:
    """Figures of every source, architecture and compiler at hand."""
    nvcc, ptxas, nvrtc = find_tool("nvcc"), find_tool("ptxas"), load_nvrtc()
    for source in sorted(CSRC.glob("*.cu")):
        for arch in archs:
            if nvcc:
                yield from check_with_nvcc(nvcc, source, arch)
            if nvrtc:
                yield from check_with_nvrtc(nvrtc, ptxas, source, arch)


def find_compilers() -> list[str]:
    """Names of the compilers at hand."""
    return [name for name, found in (("nvcc", find_tool("nvcc")), ("nvrtc", load_nvrtc())) if found]


def main() -> int:
    """Parse, check, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", nargs="+", default=list(ARCHS))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    compilers = find_compilers()
    if not compilers:
        print("no compiler: install a CUDA toolkit, or pip install nvidia-cuda-nvrtc-cu12", file=sys.stderr)
        return NO_COMPILER
    try:
        figures = list(check_all(arguments.arch))
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps([asdict(entry) for entry in figures], indent=1))
    else:
        print(f"compiled for {', '.join(arguments.arch)} with {', '.join(compilers)}")
        print(f"{'kernel':24}{'arch':8}{'compiler':10}{'registers':>10}{'spill bytes':>13}{'shared bytes':>14}")
        for entry in figures:
            print(
                f"{entry.kernel:24}{entry.arch:8}{entry.compiler:10}"
                f"{entry.registers:10}{entry.spill_bytes:13}{entry.shared_bytes:14}"
            )
    return int(any(entry.spill_bytes for entry in figures))


if __name__ == "__main__":
    sys.exit(main())
