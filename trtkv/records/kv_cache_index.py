"""KVCacheIndex: a pool slot and its level in one number."""

from __future__ import annotations

from typing import Final, TypeAlias

KVCacheIndex: TypeAlias = int
"""Slot number, with the level from bit 31 on. C++: kernels::KVCacheIndex.

With the two levels that C++ has these are its 32 bits, bit 31 set in the secondary pool; ``to_int32`` gives them as
tables hold them. Slots of colder levels appear in no table.
"""

SECONDARY_POOL_FLAG: Final = 1 << 31
NULL_INDEX: Final = (1 << 32) - 1
"""Index of a position without memory (placeholders); -1 in tables."""
NULL_ENTRY: Final = -1
"""NULL_INDEX as tables hold it."""


def make_index(slot: int, level: int = 0) -> KVCacheIndex:
    """Index of a slot of a level: 0 for the primary pool, 1 for the secondary one."""
    return slot | level << 31


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
