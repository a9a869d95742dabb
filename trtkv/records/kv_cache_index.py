"""KVCacheIndex: a pool slot and its level in one signed 32-bit number."""

from __future__ import annotations

from typing import Final, TypeAlias

KVCacheIndex: TypeAlias = int
"""Slot number, with bit 31 set when the slot lies in the secondary pool. C++: kernels::KVCacheIndex.

Stored as a Python int in the range of an unsigned 32-bit number; ``to_int32`` gives the raw table entry.
"""

SECONDARY_POOL_FLAG: Final = 1 << 31
NULL_INDEX: Final = (1 << 32) - 1
"""Index of a position without memory (placeholders); -1 in tables."""
NULL_ENTRY: Final = -1
"""NULL_INDEX as tables hold it."""


def make_index(slot: int, is_secondary: bool = False) -> KVCacheIndex:
    """Index of a slot in the primary or the secondary pool."""
    return slot | SECONDARY_POOL_FLAG if is_secondary else slot


def get_level(index: KVCacheIndex) -> int:
    """Level on which the slot lies; not for placeholders, which have no slot."""
    return index >> 31


def is_primary(index: KVCacheIndex) -> bool:
    """Whether the slot lies in the primary pool."""
    return index < SECONDARY_POOL_FLAG


def get_slot(index: KVCacheIndex) -> int:
    """Slot number without the level bit. C++: KVCacheIndex::get."""
    return index & (SECONDARY_POOL_FLAG - 1)


def to_int32(index: KVCacheIndex) -> int:
    """The same 32 bits read as a signed number, as device tables hold them."""
    return index - (1 << 32) if index >= SECONDARY_POOL_FLAG else index
