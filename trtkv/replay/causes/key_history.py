"""KeyHistory: every block key that a run has computed, as a tree that only grows; knows nothing of what is cached.

A node is a block of tokens behind its own prefix. Nodes are numbered from 1, 0 is the root. A node costs some 150 bytes
however many tokens it has: keys are found by a digest, and tokens are loaded again from the request that brought them
where two siblings have to be compared.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Callable
from typing import Final, NamedTuple

from xxhash import xxh3_128_intdigest

from trtkv.common import RequestId
from trtkv.keys.packed_key import PackedKey, num_key_tokens, num_matching_tokens, token_bytes

UNKNOWN: Final = -1
"""Stands for a node that the history does not have."""

TokenLoader = Callable[[RequestId], bytes]
"""Prompt and generated tokens of a request, little-endian int32; asked for requests that have added keys only."""

_MASK64: Final = 2**64 - 1


class Sibling(NamedTuple):
    """A child that begins like some key."""

    num_tokens: int
    """Leading tokens in common."""
    node: int


class KeyHistory:
    """The tree. ``add`` is the only method that changes it."""

    def __init__(self, tokens_per_block: int, load_tokens: TokenLoader) -> None:
        self._tokens_per_block = tokens_per_block
        self._load_tokens = load_tokens
        self._node_of_digest: dict[int, int] = {}
        self._digests = array("Q", [0])  # lower halves: those of children start from them
        self.parents = array("i", [UNKNOWN])
        self._depths = array("i", [0])
        self._owners = array("q", [0])
        self._lengths = array("i", [0])
        self._only_children = array("i", [0])  # 0: none, UNKNOWN: several, which are in _families
        self._families: dict[int, dict[object, list[tuple[bytes, int]]]] = {}
        self._constrained_keys: dict[int, PackedKey] = {}

    def __len__(self) -> int:
        """Nodes, the root included."""
        return len(self.parents)

    def find(self, parent: int, key: PackedKey) -> int:
        """The child of this key, or UNKNOWN."""
        if parent == UNKNOWN:
            return UNKNOWN
        return self._node_of_digest.get(self._digest(parent, key), UNKNOWN)

    def add(self, parent: int, key: PackedKey, owner: RequestId) -> int:
        """The child of this key, made if need be; ``owner`` is a request whose tokens hold the key at this place."""
        digest = self._digest(parent, key)
        node = self._node_of_digest.get(digest)
        if node is not None:
            return node
        node = self._node_of_digest[digest] = len(self.parents)
        self._digests.append(digest & _MASK64)
        self.parents.append(parent)
        self._depths.append(self._depths[parent] + 1)
        self._owners.append(owner)
        self._lengths.append(num_key_tokens(key))
        self._only_children.append(0)
        if isinstance(key, tuple):
            self._constrained_keys[node] = key
        self._add_to_family(parent, node, key)
        return node

    def find_siblings(self, parent: int, key: PackedKey, more_than: int = 0) -> list[Sibling]:
        """Children that share more than this many leading tokens with a key, which need not be in the tree.

        Longest first. A child of exactly this key is one of them.
        """
        if parent == UNKNOWN:
            return []
        only = self._only_children[parent]
        if only == 0:
            return []
        if only != UNKNOWN:
            matched = num_matching_tokens(key, self.get_key(only))
            return [Sibling(matched, only)] if matched > more_than else []
        siblings = self._find_in_family(parent, key, more_than)
        siblings.sort(key=lambda sibling: (-sibling.num_tokens, sibling.node))
        return siblings

    def get_key(self, node: int) -> PackedKey:
        """The key of a node."""
        key = self._constrained_keys.get(node)
        if key is not None:
            return key
        start = (self._depths[node] - 1) * self._tokens_per_block
        return self._load_tokens(self._owners[node])[4 * start : 4 * (start + self._lengths[node])]

    def _digest(self, parent: int, key: PackedKey) -> int:
        data = repr(key).encode() if isinstance(key, tuple) else token_bytes(key)
        return xxh3_128_intdigest(data, self._digests[parent])

    def _add_to_family(self, parent: int, node: int, key: PackedKey) -> None:
        only = self._only_children[parent]
        if only == 0:
            self._only_children[parent] = node
            return
        family = self._families.setdefault(parent, {})
        if only != UNKNOWN:
            self._only_children[parent] = UNKNOWN
            self._insert(family, self.get_key(only), only)
        self._insert(family, key, node)

    @staticmethod
    def _insert(family: dict[object, list[tuple[bytes, int]]], key: PackedKey, node: int) -> None:
        bisect.insort(family.setdefault(_constraints(key), []), (token_bytes(key), node))

    def _find_in_family(self, parent: int, key: PackedKey, more_than: int) -> list[Sibling]:
        """Keys stand in order of their bytes, so those that share most are next to where this one would stand."""
        members = self._families[parent].get(_constraints(key), [])
        data = token_bytes(key)
        place = bisect.bisect_left(members, (data, 0))
        found: list[Sibling] = []
        for step, index in ((-1, place - 1), (1, place)):
            while 0 <= index < len(members):
                other, node = members[index]
                matched = num_matching_tokens(data, other)
                if matched <= more_than:
                    break
                constrained = self._constrained_keys.get(node)
                if constrained is not None:  # extra ids may differ earlier
                    matched = num_matching_tokens(key, constrained)
                if matched > more_than:
                    found.append(Sibling(matched, node))
                index += step
        return found


def _constraints(key: PackedKey) -> object:
    """What two keys must have in common to match at all."""
    return (key[1] is None, *key[2:]) if isinstance(key, tuple) else None
