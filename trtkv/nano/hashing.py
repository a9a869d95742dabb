"""The 64-bit xxHash and the byte form of tokens it is fed with: signed 64-bit integers, little endian."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from typing import Any, Final

from xxhash import xxh64_intdigest

from trtkv.checks import refuse_bytes
from trtkv.errors import InvalidInputError

TOKEN_BYTES: Final = 8
"""Bytes of one hashed token, on every platform."""


def hash_block(parent: bytes, content: bytes) -> int:
    """Unsigned 64-bit xxHash of a block: its parent's hash in 8 little-endian bytes (or none), then its tokens."""
    return xxh64_intdigest(parent + content)


def pack_tokens(token_ids: Iterable[int]) -> array[int]:
    """A new int64 array with these tokens; integer NumPy arrays are converted without touching single tokens.

    Raises InvalidInputError for anything that is not a flat sequence of integers of 64 bits.
    """
    refuse_bytes("token ids", token_ids)
    dtype = getattr(token_ids, "dtype", None)
    if dtype is not None:
        return _pack_ndarray(token_ids, dtype)
    try:
        return array("q", token_ids)
    except (TypeError, OverflowError) as error:
        raise InvalidInputError(f"token ids must be integers that fit 64 bits: {error}") from error


def _pack_ndarray(token_ids: Any, dtype: Any) -> array[int]:
    if dtype.kind not in "iu" or token_ids.ndim != 1:
        raise InvalidInputError(f"token ids must be a flat integer array, got {token_ids.ndim} dimensions of {dtype}")
    if dtype.kind == "u" and dtype.itemsize == TOKEN_BYTES and len(token_ids) and int(token_ids.max()) >= 2**63:
        raise InvalidInputError(f"token id {int(token_ids.max())} does not fit a signed 64-bit integer")
    tokens = array("q")
    tokens.frombytes(token_ids.astype("=i8").tobytes())
    return tokens


def token_bytes(tokens: array[int]) -> bytes:
    """The tokens as little-endian 64-bit integers, ``TOKEN_BYTES`` each."""
    if sys.byteorder == "big":
        tokens = tokens[:]
        tokens.byteswap()
    return tokens.tobytes()


def unpack_tokens(content: bytes) -> list[int]:
    """Inverse of token_bytes."""
    tokens = array("q")
    tokens.frombytes(content)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tolist()
