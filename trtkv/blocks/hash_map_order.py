"""HashMapOrder: the order in which the reference's hash map would list the children of one node."""

from __future__ import annotations

from trtkv.keys.key_hash import hash_keys_alone
from trtkv.keys.packed_key import PackedKey

_BUCKET_COUNTS = (
    13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933,
    351061, 712697, 1447153, 2938679,
)  # fmt: skip
"""Sizes through which the map grows."""

_MOST_PENDING = 4096
"""Changes written down before they are worked out, so that the list stays in proportion to the children."""


class HashMapOrder:
    """Keys in the order of a hash map that is one list in which the members of a bucket are neighbours.

    A new key goes to the front of its bucket, or of the list when the bucket is empty; growing re-inserts all keys
    in list order; erasing unlinks. So a key's place follows from two ages, its bucket's and its own, the younger
    first, and no list is kept. The order matters only between equal partial matches: changes are written down and
    worked out, with one hash per key, when it is asked for.
    """

    __slots__ = ("_ages", "_buckets", "_hashes", "_last_age", "_pending", "bucket_count")

    def __init__(self, first_key: PackedKey) -> None:
        self.bucket_count = 1
        self._pending: list[tuple[bool, PackedKey]] = [(True, first_key)]  # (inserted, key)
        self._hashes: dict[PackedKey, int] = {}
        self._ages: dict[PackedKey, tuple[int, int]] = {}  # of its bucket and its own; less is younger
        self._buckets: dict[int, list[int]] = {}  # age, number of keys
        self._last_age = 0

    def write_down(self, inserted: bool, key: PackedKey) -> None:
        """Note that a key came or went."""
        self._pending.append((inserted, key))
        if len(self._pending) > _MOST_PENDING and len(self._pending) > 4 * len(self._ages):
            self._work_out()

    @property
    def num_pending(self) -> int:
        """Changes not worked out yet."""
        return len(self._pending)

    def place_of(self, key: PackedKey) -> tuple[int, int]:
        """Something that sorts keys into the order of the map."""
        self._work_out()
        return self._ages[key]

    def ordered_keys(self) -> list[PackedKey]:
        """All keys in the order of the map."""
        self._work_out()
        return sorted(self._ages, key=self._ages.__getitem__)

    def _work_out(self) -> None:
        new_keys = [key for inserted, key in self._pending if inserted]
        hashes = dict(zip(new_keys, hash_keys_alone(new_keys), strict=True))
        for inserted, key in self._pending:
            if not inserted:
                self._erase(key)
                continue
            if len(self._ages) >= (self.bucket_count if self.bucket_count > 1 else 0):
                self._grow()
            self._hashes[key] = hashes[key]
            self._place(key)
        self._pending.clear()

    def _erase(self, key: PackedKey) -> None:
        del self._ages[key]
        bucket = self._hashes.pop(key) % self.bucket_count
        self._buckets[bucket][1] -= 1
        if not self._buckets[bucket][1]:
            del self._buckets[bucket]

    def _grow(self) -> None:
        keys = sorted(self._ages, key=self._ages.__getitem__)
        self.bucket_count = next(count for count in _BUCKET_COUNTS if count > self.bucket_count)
        self._buckets.clear()
        for key in keys:
            self._place(key)

    def _place(self, key: PackedKey) -> None:
        self._last_age -= 1
        bucket = self._buckets.setdefault(self._hashes[key] % self.bucket_count, [self._last_age, 0])
        bucket[1] += 1
        self._ages[key] = (bucket[0], self._last_age)
