"""A prefix tree whose nodes hold one value per channel. It knows nothing of KV caches.

A node lives as long as it has a value or a child; clearing the last one removes it and cascades upwards.
Most nodes have one child, so children are kept as None, as the child itself, or as a map.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, ClassVar, Generic, TypeVar, cast

from trtkv.blocks.partial_match_index import EqualMatches, KeyFunctions, PartialMatchIndex
from trtkv.errors import check

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ChildMap(dict[Any, Any]):
    """Children by key, with an index for partial matches that is built at first use."""

    __slots__ = ("index",)

    def __init__(self) -> None:
        super().__init__()
        self.index: PartialMatchIndex | None = None


class Node(Generic[K, V]):
    """One position in the tree: a key below its parent, and children. C++: templated_trie::Node.

    Subclasses say what values it has, and supply the functions of their keys.
    """

    __slots__ = ("children", "key", "parent")

    key_functions: ClassVar[KeyFunctions]

    def __init__(self, key: K, parent: Node[K, V] | None) -> None:
        self.key = key
        self.parent = parent
        self.children: Any = None

    # -- values -----------------------------------------------------------------------------------

    def get_value(self, channel: int) -> V | None:
        """Value of a channel, or None."""
        raise NotImplementedError

    def try_set_value(self, channel: int, value: V, overwrite: bool = False) -> bool:
        """Set the value of a channel; False and no change if there is one and it must stay."""
        raise NotImplementedError

    def clear_value(self, channel: int) -> bool:
        """Remove the value of a channel; prunes the node and its ancestors if nothing is left of them."""
        raise NotImplementedError

    @property
    def has_values(self) -> bool:
        """Whether any channel has a value."""
        raise NotImplementedError

    def values(self) -> dict[int, V]:
        """All values by channel."""
        raise NotImplementedError

    # -- children ---------------------------------------------------------------------------------

    @property
    def has_children(self) -> bool:
        """Whether there is any child, with or without values."""
        return self.children is not None

    def find_matching_node(self, key: K) -> Node[K, V] | None:
        """The child of exactly this key."""
        children = self.children
        if children is None:
            return None
        if children.__class__ is ChildMap:
            return cast("Node[K, V] | None", children.get(key))
        return cast("Node[K, V]", children) if children.key == key else None

    def create_node(self, key: K) -> Node[K, V]:
        """A node without a place in the tree yet."""
        return self.__class__(key, None)

    def insert_node(self, key: K) -> Node[K, V]:
        """Create the child of this key, which must not exist yet."""
        node = self.create_node(key)
        self.link_node(node)
        return node

    def link_node(self, node: Node[K, V]) -> None:
        """Make a node a child; no child may have its key."""
        node.parent = self
        children = self.children
        if children is None:
            self.children = node
            return
        if children.__class__ is not ChildMap:
            only = children
            children = self.children = ChildMap()
            children[only.key] = only
        key = node.key
        children[key] = node
        if children.index is not None:
            children.index.add(key, node)

    def replace_node(self, old: Node[K, V], new: Node[K, V]) -> None:
        """Put a node of the same key in a child's place; the order of children stays."""
        new.parent = self
        children = self.children
        if children is old:
            self.children = new
        else:
            children[old.key] = new
            if children.index is not None:
                children.index.replace(old.key, new)
        old.parent = None

    def remove_node(self, node: Node[K, V]) -> None:
        """Unlink a child. C++: Node::clearNode, which also prunes this node; see ``prune``."""
        children = self.children
        if children is node:
            self.children = None
        else:
            check(children.__class__ is ChildMap and children.get(node.key) is node, "a pruned node was not a child")
            del children[node.key]
            if children.index is not None:
                children.index.discard(node.key)
            if not children:
                self.children = None
        node.parent = None

    def prune(self) -> None:
        """Remove this node, and every ancestor that is left without values and children; the root stays."""
        node: Node[K, V] = self
        while node.children is None and not node.has_values:
            parent = node.parent
            if parent is None:
                return
            parent.remove_node(node)
            node = parent

    def ordered_children(self) -> Iterable[Node[K, V]]:
        """Children in the order that decides between equal partial matches: most recently inserted first."""
        children = self.children
        if children is None:
            return ()
        if children.__class__ is ChildMap:
            return reversed(children.values())
        return (children,)

    def find_partial_matches(self, key: K) -> Iterator[EqualMatches]:
        """Children that share leading tokens, those that share most first; they must not change in the meantime.

        Equal lengths come in the order of ``ordered_children``.
        """
        children = self.children
        functions = self.key_functions
        if children is None or not functions.supports_partial_matching(key):
            return
        if children.__class__ is not ChildMap:
            matched = functions.num_matching_tokens(key, children.key)
            if matched:
                yield EqualMatches(matched, 1, iter((children,)))
            return
        if children.index is None:
            children.index = PartialMatchIndex(functions)
            for child_key, child in children.items():
                children.index.add(child_key, child)
        yield from children.index.find(key)


class ValuedNode(Node[K, V]):
    """A node with a value per channel. Channel 0 has a slot of its own, the others share a map."""

    __slots__ = ("other_values", "value")

    def __init__(self, key: K, parent: Node[K, V] | None, value: V | None = None) -> None:
        super().__init__(key, parent)
        self.value = value
        self.other_values: dict[int, V] | None = None

    def get_value(self, channel: int) -> V | None:
        """Value of a channel, or None."""
        if channel == 0:
            return self.value
        return None if self.other_values is None else self.other_values.get(channel)

    def try_set_value(self, channel: int, value: V, overwrite: bool = False) -> bool:
        """Set the value of a channel; False and no change if there is one and it must stay."""
        if not overwrite and self.get_value(channel) is not None:
            return False
        if channel == 0:
            self.value = value
        else:
            if self.other_values is None:
                self.other_values = {}
            self.other_values[channel] = value
        return True

    def clear_value(self, channel: int) -> bool:
        """Remove the value of a channel; prunes the node and its ancestors if nothing is left of them."""
        if channel == 0:
            if self.value is None:
                return False
            self.value = None
        else:
            if self.other_values is None or self.other_values.pop(channel, None) is None:
                return False
            if not self.other_values:
                self.other_values = None
        self.prune()
        return True

    @property
    def has_values(self) -> bool:
        """Whether any channel has a value."""
        return self.value is not None or self.other_values is not None

    def values(self) -> dict[int, V]:
        """All values by channel."""
        result = {} if self.value is None else {0: self.value}
        return result | (self.other_values or {})


class Trie(Generic[K, V]):
    """Tree of nodes below one root. C++: templated_trie::Trie."""

    def __init__(self, node_class: type[Node[K, V]], root_key: K) -> None:
        self._root = node_class(root_key, None)

    @property
    def root(self) -> Node[K, V]:
        """The root: no parent, never pruned."""
        return self._root

    def insert_nodes(self, prefix: Iterable[K]) -> list[Node[K, V]]:
        """The nodes along a prefix, creating those that are missing."""
        node = self._root
        result: list[Node[K, V]] = []
        for key in prefix:
            child = node.find_matching_node(key)
            if child is None:
                child = node.insert_node(key)
                if result and child.parent is not None:
                    result[-1] = child.parent  # a node may give way to another when it gets a second child
            node = child
            result.append(node)
        return result

    def lookup_nodes(self, prefix: Iterable[K]) -> list[Node[K, V]]:
        """The nodes along a prefix as far as they exist."""
        node = self._root
        result = []
        for key in prefix:
            child = node.find_matching_node(key)
            if child is None:
                break
            node = child
            result.append(node)
        return result

    def count_number_of_nodes(self) -> int:
        """Nodes below the root; walks the whole tree."""
        count = 0
        stack = list(self._root.ordered_children())
        while stack:
            count += 1
            stack.extend(stack.pop().ordered_children())
        return count
