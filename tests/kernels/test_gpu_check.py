"""The GPU check itself: comparisons pass with the kernels on the CPU and find a broken one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import gpu_check
from trtkv.kernels.kernel_launch import KernelLaunch, Launcher

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", gpu_check.CHECKS)
def test_comparison_passes_with_the_kernels_on_the_cpu(name: str, host_launcher: Launcher) -> None:
    gpu_check.CHECKS[name]("cpu", host_launcher, 5, 4)


@pytest.mark.parametrize("name", gpu_check.CHECKS)
def test_comparison_notices_a_kernel_that_leaves_a_cta_out(name: str, host_launcher: Launcher) -> None:
    def launch(plan: KernelLaunch) -> None:
        columns, rows, layers = plan.grid
        if columns > 1:
            host_launcher(plan._replace(grid=(columns - 1, rows, layers)))

    with pytest.raises(RuntimeError, match="differ"):
        gpu_check.CHECKS[name]("cpu", launch, 5, 4)


def test_without_a_gpu_it_says_so_and_succeeds() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    command = [sys.executable, str(ROOT / "tools" / "gpu_check.py")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0
    assert "nothing to check here" in result.stdout
