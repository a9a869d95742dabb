"""Fixtures and markers shared by all tests."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from tests.fake_clock import FakeClock
from trtkv.eviction import eviction_policy

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Folder with recorded programs and public traces: TRTKV_SHARED, or ``shared`` beside the repository."""
    path = Path(os.environ.get("TRTKV_SHARED") or ROOT.parent / "shared").resolve()
    if not path.is_dir():
        pytest.skip(f"no folder with recorded programs and traces at {path}; set TRTKV_SHARED to it")
    return path


@pytest.fixture
def fake_clock() -> FakeClock:
    return FakeClock()


@cache
def why_no_gpu() -> str | None:
    """None when torch or cupy can use a CUDA device, else the reason why not."""
    reasons = []
    for name, count in (("torch", count_torch_devices), ("cupy", count_cupy_devices)):
        try:
            if count():
                return None
            reasons.append(f"{name} finds none")
        except ImportError:
            reasons.append(f"{name} is not installed")
        except Exception as error:  # cupy has its own error types, known only once it is imported
            reasons.append(f"{name}: {error}")
    return f"needs a CUDA device: {', '.join(reasons)}"


def count_torch_devices() -> int:
    import torch

    return torch.cuda.device_count()


def count_cupy_devices() -> int:
    import cupy

    return int(cupy.cuda.runtime.getDeviceCount())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    is_compiled = not str(eviction_policy.__file__).endswith(".py")
    for item in items:
        if is_compiled and item.get_closest_marker("pure"):
            item.add_marker(pytest.mark.skip(reason="needs interpreted sources"))
        if item.get_closest_marker("gpu") and (reason := why_no_gpu()):
            item.add_marker(pytest.mark.skip(reason=reason))
