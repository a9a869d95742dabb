"""UnifiedBlockTree: one prefix tree for all windows; a node holds at most one block per window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias, cast

from trtkv.blocks.hash_map_order import HashMapOrder
from trtkv.blocks.introsort import MOST_SORTED_STABLY, introsort
from trtkv.blocks.partial_match_index import EqualMatches, KeyFunctions
from trtkv.blocks.templated_trie import ChildMap, Node, Trie, ValuedNode
from trtkv.common import KeyForm
from trtkv.keys import packed_key
from trtkv.keys.key_form import convert_keys
from trtkv.keys.packed_key import EMPTY_KEY, PackedKey

if TYPE_CHECKING:
    from trtkv.blocks.kv_cache_block import KVCacheBlock


BLOCK_KEY_FUNCTIONS: Final = KeyFunctions(
    packed_key.first_token_of, packed_key.num_matching_tokens, packed_key.token_at, packed_key.supports_partial_matching
)


class LookupNode(ValuedNode[PackedKey, "KVCacheBlock"]):
    """Node of the block tree: a packed key, and one block per window (channel 0 is the widest)."""

    __slots__ = ()

    key_functions: ClassVar[KeyFunctions] = BLOCK_KEY_FUNCTIONS


LookupNodePtr: TypeAlias = "Node[PackedKey, KVCacheBlock]"


class UnifiedBlockTree(Trie[PackedKey, "KVCacheBlock"]):
    """The tree of cached blocks. C++: radix_block_tree::UnifiedBlockTree.

    With ``hash_map_order`` equal partial matches are taken in the reference's iteration order (see HashMapOrder);
    otherwise most recently inserted first. ``num_ties`` counts partial look-ups whose two longest candidates
    matched equally, ``num_large_lookups`` those with more candidates than the reference sorts stably. ``key_form`` is
    that of the keys of full blocks.
    """

    def __init__(self, hash_map_order: bool = False, key_form: KeyForm = KeyForm.TOKENS) -> None:
        super().__init__(HashMapOrderedNode if hash_map_order else LookupNode, EMPTY_KEY)
        self.key_form = key_form
        self.num_ties = 0
        self.num_large_lookups = 0

    @property
    def hash_map_order(self) -> bool:
        """Whether equal partial matches are taken in the reference's order."""
        return isinstance(self._root, HashMapOrderedNode)

    def stored_form(self, keys: Sequence[PackedKey], tokens_per_block: int) -> Sequence[PackedKey]:
        """Keys as they would be stored, for keys of tokens."""
        return convert_keys(list(keys), tokens_per_block, self.key_form)

    def find_partial_matches(self, node: LookupNodePtr, key: PackedKey) -> Iterator[tuple[int, LookupNodePtr]]:
        """Children of a node that share leading tokens with a key, as (shared tokens, child), longest first."""
        is_first = True
        for matches in node.find_partial_matches(key):
            if is_first:
                self.num_ties += matches.size > 1
                self.num_large_lookups += matches.num_candidates > MOST_SORTED_STABLY
                is_first = False
            for child in matches.children:
                yield matches.num_tokens, child

    def insert_block(self, prefix: Iterable[PackedKey], channel: int, block: KVCacheBlock) -> bool:
        """Put a block at the end of a prefix unless that slot is taken; does not link the block back."""
        nodes = self.insert_nodes(prefix)
        return bool(nodes) and nodes[-1].try_set_value(channel, block)

    def lookup_block(self, prefix: list[PackedKey], channel: int, allow_partial_match: bool) -> KVCacheBlock | None:
        """The block at the end of a prefix; with partial matching the deepest one along it. Changes nothing."""
        nodes = self.lookup_nodes(prefix)
        if not allow_partial_match:
            return nodes[-1].get_value(channel) if prefix and len(nodes) == len(prefix) else None
        if len(nodes) < len(prefix):
            last = nodes[-1] if nodes else self.root
            for _, node in self.find_partial_matches(last, prefix[len(nodes)]):
                block = node.get_value(channel)
                if block is not None:
                    return block
        return next((b for n in reversed(nodes) if (b := n.get_value(channel)) is not None), None)

    def lookup_blocks_at_all_positions(self, prefix: list[PackedKey], channel: int) -> list[KVCacheBlock | None]:
        """One entry per key: the block there, or None."""
        found: list[KVCacheBlock | None] = [node.get_value(channel) for node in self.lookup_nodes(prefix)]
        return found + [None] * (len(prefix) - len(found))

    def take_num_ties(self) -> int:
        """``num_ties`` since the last call; sets it to 0."""
        ties, self.num_ties = self.num_ties, 0
        return ties

    def take_num_large_lookups(self) -> int:
        """``num_large_lookups`` since the last call; sets it to 0."""
        lookups, self.num_large_lookups = self.num_large_lookups, 0
        return lookups


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
