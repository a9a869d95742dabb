"""EvictionOrder: which of the evictable blocks goes next; a policy without its tiers, windows and queues."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, Protocol, runtime_checkable


class Item:
    """One cached block as an order sees it: its place in the prefix tree and nothing else.

    Orders keep what they know of an item themselves. Two items are the same only if they are the same object.
    """

    __slots__ = ("depth", "key", "priority")

    def __init__(self, key: Hashable, depth: int, priority: int = 0) -> None:
        self.key = key
        """Names the block together with all blocks before it, so it outlives an eviction."""
        self.depth = depth
        """Blocks before it."""
        self.priority = priority

    def __repr__(self) -> str:
        return f"Item({self.key!r}, depth={self.depth})"


class Incoming(NamedTuple):
    """The block that room is made for."""

    key: Hashable
    depth: int


class EvictionOrder(Protocol):
    """Ranks the items of one window and level.

    An item is *stored* once, then *used* and *released* and *claimed* in any order, until it is *taken* (evicted by
    this order) or *removed* (gone for another reason). Only released items are evictable. ``now`` never decreases;
    items of one request share it.
    """

    def stored(self, item: Item, now: int) -> None:
        """The item entered the cache. This is its first use; it is not evictable yet."""

    def used(self, item: Item, now: int) -> None:
        """A request found the item. It is not evictable at this moment."""

    def released(self, item: Item, now: int) -> None:
        """The item is evictable from now on."""

    def claimed(self, item: Item) -> None:
        """The item is not evictable any more; nothing else about it changes."""

    def removed(self, item: Item) -> None:
        """The item left the cache without having been taken."""

    def peek(self, incoming: Incoming | None = None) -> Item | None:
        """What ``take`` would return. Changes nothing."""

    def take(self, incoming: Incoming | None = None) -> Item | None:
        """Evict: the item leaves the cache. None if no item is evictable."""


@runtime_checkable
class AdaptiveOrder(Protocol):
    """An order that learns from what comes back, where room is made before anybody knows for what."""

    def adapt(self, incoming: Incoming) -> None:
        """The block is about to be stored, in room that was made by ``take()`` without its name, or was there."""
