"""The token loop of the block hash, compiled by Numba (extra ``fast``); key_hash has it in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class CompiledHash(NamedTuple):
    """The compiled loops."""

    mix: Callable[[bytes, int], int]
    """int32 tokens as bytes and a 64-bit seed to the new seed."""
    chain: Callable[[bytes, Sequence[int], int], list[int]]
    """int32 tokens of consecutive blocks, the tokens per block and the hash of the parent to the hash of each block."""


def compile_hash() -> CompiledHash:
    """Compile the loops now; nothing is written to disk. Raises ImportError without Numba."""
    import numpy as np
    from numba import int64, njit, types, uint32, uint64

    def mix(tokens: Any, seed: Any) -> Any:
        factor, golden = uint32(0x45D9F3B), uint32(0x9E3779B9)
        for token in tokens:
            value = uint32((token >> uint32(16)) ^ token) * factor
            value = uint32((uint32(value) >> uint32(16)) ^ uint32(value)) * factor
            value = uint32(uint32(value) >> uint32(16)) ^ uint32(value)
            seed ^= uint64(uint32(value + golden)) + (seed << uint64(6)) + (seed >> uint64(2))
        return seed

    tokens_type = types.Array(uint32, 1, "C", readonly=True)
    compiled_mix: Any = njit(uint64(tokens_type, uint64))(mix)

    def chain(tokens: Any, lengths: Any, parent: Any, hashes: Any) -> None:
        start = 0
        for index in range(len(lengths)):
            end = start + lengths[index]
            parent = compiled_mix(tokens[start:end], uint64(lengths[index]) ^ parent * uint64(0xBF58476D1CE4E5B9))
            hashes[index] = parent
            start = end

    signature = types.void(tokens_type, types.Array(int64, 1, "C"), uint64, types.Array(uint64, 1, "C"))
    compiled_chain: Any = njit(signature)(chain)
    from_buffer, token_type, word = np.frombuffer, np.dtype(np.uint32), np.uint64

    def mix_tokens(tokens: bytes, seed: int) -> int:
        return int(compiled_mix(from_buffer(tokens, token_type), word(seed)))

    def hash_chain(tokens: bytes, lengths: Sequence[int], parent_hash: int) -> list[int]:
        hashes = np.empty(len(lengths), np.uint64)
        compiled_chain(from_buffer(tokens, token_type), np.array(lengths, np.int64), word(parent_hash), hashes)
        result: list[int] = hashes.tolist()
        return result

    return CompiledHash(mix_tokens, hash_chain)
