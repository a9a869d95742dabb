"""HashMapOrderedNode: a node whose children come in the order of the reference's hash map, and its block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import cast

from trtkv.blocks.hash_map_order import HashMapOrder
from trtkv.blocks.introsort import MOST_SORTED_STABLY, introsort
from trtkv.blocks.kv_cache_block import KVCacheBlock, LookupNode, LookupNodePtr
from trtkv.blocks.partial_match_index import EqualMatches
from trtkv.blocks.templated_trie import ChildMap
from trtkv.keys.packed_key import PackedKey


class HashMapOrderedNode(LookupNode):
    """A node that takes equal partial matches in the order in which the reference's hash map lists its children."""

    __slots__ = ("order",)

    def __init__(self, key: PackedKey, parent: LookupNodePtr | None, value: KVCacheBlock | None = None) -> None:
        super().__init__(key, parent, value)
        self.order: HashMapOrder | None = None  # None: there was never more than one child at a time

    def link_node(self, node: LookupNodePtr) -> None:
        """Make a node a child."""
        only_child = self.children
        super().link_node(node)
        if self.order is None and only_child is not None:
            self.order = HashMapOrder(only_child.key)
        if self.order is not None:
            self.order.write_down(True, node.key)

    def remove_node(self, node: LookupNodePtr) -> None:
        """Unlink a child; the order of the others stays."""
        super().remove_node(node)
        if self.order is not None:
            self.order.write_down(False, node.key)

    def ordered_children(self) -> Iterable[LookupNodePtr]:
        """Children in hash-map order."""
        if self.children.__class__ is not ChildMap:
            return super().ordered_children()
        return [self.children[key] for key in cast(HashMapOrder, self.order).ordered_keys()]

    def find_partial_matches(self, key: PackedKey) -> Iterator[EqualMatches]:
        """As in Node, equal lengths in hash-map order, as far as the reference's sort keeps that order."""
        for matches in super().find_partial_matches(key):
            if matches.size == 1:
                yield matches
            elif matches.num_candidates <= MOST_SORTED_STABLY:
                yield matches._replace(children=iter(self._in_map_order(matches.children)))
            else:
                yield from self._find_by_introsort(key, matches.num_tokens)
                return

    def _in_map_order(self, children: Iterable[LookupNodePtr]) -> list[LookupNodePtr]:
        place_of = cast(HashMapOrder, self.order).place_of
        return sorted(children, key=lambda child: place_of(child.key))

    def _find_by_introsort(self, key: PackedKey, most_tokens: int) -> Iterator[EqualMatches]:
        """All candidates sorted as the reference sorts them; those that share at most so many tokens."""
        lengths: dict[LookupNodePtr, int] = {}
        for matches in super().find_partial_matches(key):
            lengths.update(dict.fromkeys(matches.children, matches.num_tokens))
        candidates = self._in_map_order(lengths)
        order = introsort([-lengths[child] for child in candidates])
        for num_tokens, group in groupby((candidates[index] for index in order), lengths.__getitem__):
            if num_tokens <= most_tokens:
                children = list(group)
                yield EqualMatches(num_tokens, len(children), iter(children), len(candidates))


class HashMapOrderedBlock(KVCacheBlock):
    """A block of a tree with hash-map order."""

    __slots__ = ()

    node_class = HashMapOrderedNode
