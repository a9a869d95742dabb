"""The CUDA sources compile for the devices they are written for, and the package carries them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.host_launcher import render_host_source
from tools.check_kernels import NO_COMPILER, parse_figures
from trtkv.kernels._loader import read_source

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    "block_copy.cu": "copy_blocks",
    "block_offsets.cu": "scatter_block_offsets",
    "page_table.cu": "build_page_table",
}


def test_kernels_compile_for_sm_80_and_sm_90_without_spills() -> None:
    command = [sys.executable, str(ROOT / "tools" / "check_kernels.py"), "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == NO_COMPILER:
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    compiled = {(entry["kernel"], entry["arch"]) for entry in figures}
    assert not figures or compiled == {(kernel, arch) for kernel in SOURCES.values() for arch in ("sm_80", "sm_90")}
    assert all(entry["registers"] <= 64 for entry in figures)  # four CTAs of 256 threads fit into one multiprocessor


@pytest.mark.parametrize(("source", "kernel"), SOURCES.items())
def test_source_begins_with_its_layout_and_defines_its_kernel(source: str, kernel: str) -> None:
    text = read_source(source)
    head = text.split("\n\n#define", 1)[0].split("\nextern", 1)[0]
    assert re.match(r"// \w", text)
    assert "// Layout " in head
    assert "// Grid " in head
    assert kernel in render_host_source(source)[1]
    assert "#include" not in text  # NVRTC finds no headers without a toolkit


def test_every_source_is_listed_here() -> None:
    assert {path.name for path in (ROOT / "trtkv" / "kernels" / "csrc").glob("*.cu")} == set(SOURCES)


def test_figures_are_read_from_the_output_of_the_assembler() -> None:
    text = (
        "ptxas info    : Compiling entry function 'f' for 'sm_80'\n"
        "    8 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 30 registers, used 1 barriers, 512 bytes smem, 428 bytes cmem[0]\n"
    )
    (entry,) = parse_figures(text, "nvcc", "sm_80", "f.cu")
    assert (entry.kernel, entry.registers, entry.spill_bytes, entry.shared_bytes) == ("f", 30, 20, 512)
