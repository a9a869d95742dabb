"""Keys as recorded: blocks say which images overlap them, not where; their hashes leave names out."""

from __future__ import annotations

from collections.abc import Sequence

from trtkv.keys.packed_key import ConstrainedKey, MmKey, PackedKey
from trtkv.keys.recorded_name import RecordedName


def to_recorded_keys(keys: Sequence[PackedKey]) -> list[PackedKey]:
    """The keys that compatibility mode uses in place of these; digests stay as they are."""
    return [_to_recorded_key(key) if isinstance(key, tuple) and key[4] else key for key in keys]


def _to_recorded_key(key: ConstrainedKey) -> ConstrainedKey:
    items = tuple(
        MmKey(item.hash, item.start_offset, None if item.uuid is None else RecordedName(item.uuid)) for item in key[4]
    )
    return (*key[:4], items)
