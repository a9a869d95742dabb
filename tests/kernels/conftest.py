"""Fixtures of the kernel tests."""

from __future__ import annotations

import pytest

from tests.kernels.host_launcher import find_compiler, launch_on_host
from trtkv.kernels.kernel_launch import Launcher

torch = pytest.importorskip("torch", reason="kernel tests compare torch tensors")


@pytest.fixture(scope="session")
def host_launcher() -> Launcher:
    """Runs kernels on the CPU from their .cu source."""
    if find_compiler() is None:
        pytest.skip("no host C++ compiler to build the kernels with")
    return launch_on_host
