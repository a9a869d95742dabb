"""Words shared by every layer: id types, levels, cache kinds, element types and integer division."""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeAlias

BlockId: TypeAlias = int
"""Identity of a block inside one window; it never changes, while the slot behind it may."""

RequestId: TypeAlias = int
WindowSize: TypeAlias = int
TokenId: TypeAlias = int
Priority: TypeAlias = int

BlocksPerWindow: TypeAlias = "dict[WindowSize, tuple[int, ...]]"
"""Window size -> blocks of each tier, warm to cold: (primary, secondary) unless there are others."""

PRIMARY_LEVEL: Final = 0
SECONDARY_LEVEL: Final = 1
PLACEHOLDER_LEVEL: Final = -1
"""Level of blocks without memory; negative, as levels count the tiers from 0. C++ has two tiers and calls it 2."""

SWA_EXTRA_BLOCK: Final = 1
"""Blocks held beyond a sliding window, so that a full window of tokens is always present."""

CACHED_BLOCKS_ROOT_ID: Final = -1
PLACEHOLDER_BLOCK_ID: Final = -(2**31) + 1
"""Id of the placeholder left at sliding-window positions; looking it up fails."""

RECURRENT_STATES: Final = -(2**31) + 1
"""Window size that stands for recurrent (linear attention) states."""

MAX_INT32: Final = 2**31 - 1


class CacheType(str, Enum):
    """What a cache holds. C++: CacheType."""

    SELF = "self"
    CROSS = "cross"
    SELFKONLY = "selfkonly"


class KeyForm(str, Enum):
    """How a cache keeps the tokens of full blocks, for finding them again."""

    TOKENS = "tokens"
    """Four bytes a token."""
    RUNS = "runs"
    """A few bytes where the tokens of a block are consecutive numbers, as the made-up ones of traces; else as TOKENS.
    """
    DIGESTS = "digests"
    """A SHA-256 digest, cut to 16 bytes, of a whole block. Blocks are found again whole or not at all, and nothing can
    tell their tokens: there are no events, no block hashes and no partial reuse."""


class KvCacheTransferMode(str, Enum):
    """How bytes travel to the secondary level. C++: executor::KvCacheTransferMode."""

    DRAM = "DRAM"
    GDS = "GDS"
    POSIX_DEBUG_FALLBACK = "POSIX_DEBUG_FALLBACK"


class DataType(str, Enum):
    """Element type of a pool. C++: nvinfer1::DataType."""

    FLOAT = "float"
    HALF = "half"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    UINT8 = "uint8"
    INT32 = "int32"
    INT64 = "int64"
    NVFP4 = "nvfp4"

    @property
    def num_bits(self) -> int:
        """Bits of one element."""
        return _NUM_BITS[self]


_NUM_BITS: Final = {
    DataType.FLOAT: 32,
    DataType.HALF: 16,
    DataType.BF16: 16,
    DataType.FP8: 8,
    DataType.INT8: 8,
    DataType.UINT8: 8,
    DataType.INT32: 32,
    DataType.INT64: 64,
    DataType.NVFP4: 4,
}


def ceil_div(numerator: int, denominator: int) -> int:
    """Quotient rounded up, for a non-negative numerator. C++: common::ceilDiv."""
    return -(-numerator // denominator)


def trunc_div(numerator: int, denominator: int) -> int:
    """Quotient rounded towards zero, as integer division of C++ does."""
    quotient = abs(numerator) // abs(denominator)
    return quotient if (numerator < 0) == (denominator < 0) else -quotient


def trunc_mod(numerator: int, denominator: int) -> int:
    """Remainder with the sign of the numerator, as in C++."""
    return numerator - trunc_div(numerator, denominator) * denominator
