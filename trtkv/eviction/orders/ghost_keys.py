"""GhostKeys: the keys of what was evicted last, without the blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class GhostKeys:
    """At most ``capacity`` keys; the oldest one makes room."""

    __slots__ = ("_capacity", "_keys")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._keys: OrderedDict[Hashable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def add(self, key: Hashable) -> None:
        """Remember a key as the newest."""
        self._keys.pop(key, None)
        self._keys[key] = None
        if len(self._keys) > self._capacity:
            self._keys.popitem(last=False)

    def discard(self, key: Hashable) -> bool:
        """Forget a key; whether it was there."""
        if key not in self._keys:
            return False
        del self._keys[key]
        return True
