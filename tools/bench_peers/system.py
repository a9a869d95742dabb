"""What the benchmark asks of a block manager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Pool(NamedTuple):
    """The cache to build."""

    tokens_per_block: int
    capacity_tokens: int
    live: int
    """Most requests live at a time."""
    max_tokens: int
    """Longest sequence."""


class System(Protocol):
    """One block manager. Handles stand for live requests and belong to the system."""

    def prepare(self, tokens: NDArray[np.int32]) -> Any:
        """Tokens in the form this system takes fastest; not timed."""

    def add(self, request_id: int, prompt: Any) -> tuple[Any, int]:
        """Make the request, find what is cached, allocate the prompt; returns its handle and the tokens found."""

    def store(self, handle: Any) -> None:
        """Make the full blocks of a computed prompt reusable."""

    def decode(self, handle: Any, tokens: list[int]) -> None:
        """Append tokens to one request."""

    def decode_step(self, handles: Sequence[Any], tokens: list[int]) -> None:
        """Append one token to each of several requests."""

    def free(self, handle: Any) -> None:
        """Let a request go and keep its blocks for reuse."""
