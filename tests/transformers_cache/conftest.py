"""Fixtures of the tests of the cache for transformers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="the cache holds torch tensors")
pytest.importorskip("transformers", reason="the cache is one of transformers")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models are slower on several threads, all the more beside other test processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
