"""The token loop of the block hash, compiled by Numba (extra ``fast``); block_key has it in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def compile_token_mixer() -> Callable[[bytes, int], int]:
    """Compile the loop now; nothing is written to disk. Raises ImportError without Numba.

    The result takes int32 tokens as bytes and a 64-bit seed and returns the new seed.
    """
    import numpy as np
    from numba import njit, types, uint32, uint64

    def mix(tokens: Any, seed: Any) -> Any:
        factor, golden = uint32(0x45D9F3B), uint32(0x9E3779B9)
        for token in tokens:
            value = uint32((token >> uint32(16)) ^ token) * factor
            value = uint32((uint32(value) >> uint32(16)) ^ uint32(value)) * factor
            value = uint32(uint32(value) >> uint32(16)) ^ uint32(value)
            seed ^= uint64(uint32(value + golden)) + (seed << uint64(6)) + (seed >> uint64(2))
        return seed

    compiled: Any = njit(uint64(types.Array(uint32, 1, "C", readonly=True), uint64))(mix)
    from_buffer, token_type, word = np.frombuffer, np.dtype(np.uint32), np.uint64

    def mix_tokens(tokens: bytes, seed: int) -> int:
        return int(compiled(from_buffer(tokens, token_type), word(seed)))

    return mix_tokens
