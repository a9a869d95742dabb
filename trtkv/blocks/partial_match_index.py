"""PartialMatchIndex: which of a node's children share the most leading tokens with a key, without looking at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

_MOST_MEMBERS: Final = 32
"""Members of a group that is looked through; a larger one is divided."""


class KeyFunctions(NamedTuple):
    """What has to be known of keys to match them in part."""

    family: Callable[[Any], object]
    """What two keys must have in common for any partial match."""
    num_matching_tokens: Callable[[Any, Any], int]
    part_at: Callable[[Any, int], object]
    """The token after this many leading ones, something false after the last; None: the family cannot be divided."""
    supports_partial_matching: Callable[[Any], bool]
    """Whether a key may match in part at all."""


class EqualMatches(NamedTuple):
    """Children that share equally many leading tokens with a key."""

    num_tokens: int
    size: int
    children: Iterator[Any]
    """Newest first, unless the node says otherwise."""
    num_candidates: int = 1
    """Children that share any leading tokens with the key."""


class _Group:
    """Children whose keys share their first ``depth`` tokens; divided by what follows once there are many."""

    __slots__ = ("depth", "members", "parts")

    def __init__(self) -> None:
        self.members: dict[Any, Any] = {}  # child by key, oldest first
        self.depth = 0
        self.parts: dict[object, _Group] | None = None


class PartialMatchIndex:
    """Children by key, in groups of common beginnings. Holds every child of one node; keys are distinct.

    Many children that begin alike (a tokenizer's first token, a chat template) cost a search no more than a few:
    it goes down to the group that shares the most, and only a small group is compared key by key.
    """

    __slots__ = ("_families", "_functions")

    def __init__(self, functions: KeyFunctions) -> None:
        self._functions = functions
        self._families: dict[object, _Group] = {}

    def add(self, key: Any, child: Any) -> None:
        """Take a child in, as the newest."""
        family = self._functions.family(key)
        group = self._families.get(family)
        if group is None:
            group = self._families[family] = _Group()
        while True:
            parts = group.parts
            if parts is not None and self._functions.num_matching_tokens(key, next(iter(group.members))) < group.depth:
                parts = group.parts = None  # what all members share has become less
            group.members[key] = child
            if parts is None:
                self._divide(group)
                return
            group = parts.setdefault(self._functions.part_at(key, group.depth), _Group())

    def replace(self, key: Any, child: Any) -> None:
        """Put another child under a key; its age stays."""
        for group in self._groups_of(key):
            group.members[key] = child

    def discard(self, key: Any) -> None:
        """Take the child of a key out."""
        above: dict[object, _Group] = self._families
        place = self._functions.family(key)
        for group in self._groups_of(key):
            del group.members[key]
            if not group.members:
                del above[place]
                return
            if group.parts is not None:
                above, place = group.parts, self._functions.part_at(key, group.depth)
            if len(group.members) <= _MOST_MEMBERS // 2:
                group.parts = None

    def children(self) -> dict[object, list[Any]]:
        """All children by family, oldest first."""
        return {family: list(group.members.values()) for family, group in self._families.items()}

    def find(self, key: Any) -> Iterator[EqualMatches]:
        """Children that share leading tokens with a key, most tokens first."""
        group = self._families.get(self._functions.family(key))
        num_candidates = 0 if group is None else len(group.members)
        passed: list[tuple[_Group, _Group]] = []
        while group is not None:
            if group.parts is None:
                yield from self._compare(key, group, num_candidates)
                break
            num_shared = self._functions.num_matching_tokens(key, next(iter(group.members)))
            following = self._functions.part_at(key, group.depth) if num_shared >= group.depth else None
            part = group.parts.get(following) if following else None  # a key that ends here matches all alike
            if part is None:
                num_shared = min(num_shared, group.depth)
                yield EqualMatches(num_shared, len(group.members), reversed(group.members.values()), num_candidates)
                break
            passed.append((group, part))
            group = part
        for above, part in reversed(passed):
            size = len(above.members) - len(part.members)
            if size:
                yield EqualMatches(above.depth, size, _others(above, part), num_candidates)

    def _compare(self, key: Any, group: _Group, num_candidates: int) -> Iterator[EqualMatches]:
        by_length: dict[int, list[Any]] = {}
        for other in reversed(group.members):
            num_shared = self._functions.num_matching_tokens(key, other)
            if num_shared:
                by_length.setdefault(num_shared, []).append(group.members[other])
        for num_shared in sorted(by_length, reverse=True):
            children = by_length[num_shared]
            yield EqualMatches(num_shared, len(children), iter(children), num_candidates)

    def _groups_of(self, key: Any) -> Iterator[_Group]:
        """The groups that a child is in, largest first; may be taken apart while they are passed."""
        group: _Group | None = self._families[self._functions.family(key)]
        while group is not None:
            parts, depth = group.parts, group.depth
            yield group
            group = None if parts is None else parts[self._functions.part_at(key, depth)]

    def _divide(self, group: _Group) -> None:
        """Divide a group that has become large, and its parts in turn."""
        pending = [group]
        while pending:
            group = pending.pop()
            if len(group.members) <= _MOST_MEMBERS:
                continue
            first = next(iter(group.members))
            if self._functions.part_at(first, 0) is None:
                return
            group.depth = min(self._functions.num_matching_tokens(first, key) for key in group.members)
            group.parts = {}
            for key, child in group.members.items():
                part = group.parts.setdefault(self._functions.part_at(key, group.depth), _Group())
                part.members[key] = child
            pending += group.parts.values()


def _others(group: _Group, part: _Group) -> Iterator[Any]:
    """Children of a group that are not in one of its parts, newest first."""
    for key in reversed(group.members):
        if key not in part.members:
            yield group.members[key]
