"""The prefix tree alone, with strings as keys: values per channel, pruning, order, partial matches."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import pytest

from trtkv.blocks.partial_match_index import KeyFunctions
from trtkv.blocks.templated_trie import ChildMap, Node, Trie, ValuedNode
from trtkv.errors import LogicError

pytestmark = pytest.mark.pure


def num_common_letters(key: str, other: str) -> int:
    count = 0
    for left, right in zip(key, other, strict=False):
        if left != right:
            break
        count += 1
    return count


class TextNode(ValuedNode[str, object]):
    """Keys are words; they match in part by their first letters, unless they begin with a capital."""

    __slots__ = ()

    key_functions: ClassVar[KeyFunctions] = KeyFunctions(
        lambda key: key[:1],
        num_common_letters,
        lambda key, position: key[position : position + 1],
        lambda key: not key[:1].isupper(),
    )


def make_trie(*paths: str) -> Trie[str, object]:
    """A tree of these paths (words separated by spaces), each with its own text as value of channel 0."""
    trie: Trie[str, object] = Trie(TextNode, "")
    for path in paths:
        trie.insert_nodes(path.split())[-1].try_set_value(0, path)
    return trie


def keys(nodes: Any) -> list[str]:
    return [node.key for node in nodes]


def partial_matches(node: Node[str, object], key: str) -> list[tuple[int, Node[str, object]]]:
    """(shared letters, child) for each child that matches in part, one by one."""
    return [(matches.num_tokens, child) for matches in node.find_partial_matches(key) for child in matches.children]


# -- values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("channel", [0, 1, 7])
def test_value_of_a_channel_is_set_once_and_overwritten_on_demand(channel: int) -> None:
    node = TextNode("a", None)
    assert node.get_value(channel) is None
    assert node.try_set_value(channel, "first")
    assert not node.try_set_value(channel, "second")
    assert node.get_value(channel) == "first"
    assert node.try_set_value(channel, "second", overwrite=True)
    assert node.values() == {channel: "second"}


def test_channels_do_not_see_each_other() -> None:
    node = TextNode("a", None)
    for channel in (0, 1, 2):
        node.try_set_value(channel, f"value {channel}")
    assert node.values() == {0: "value 0", 1: "value 1", 2: "value 2"}
    assert node.clear_value(1)
    assert not node.clear_value(1)
    assert node.values() == {0: "value 0", 2: "value 2"}


def test_node_says_whether_any_channel_has_a_value() -> None:
    node = TextNode("a", None)
    assert not node.has_values
    node.try_set_value(0, "zero")
    assert node.has_values
    node.try_set_value(2, "two")
    node.clear_value(0)
    assert node.has_values
    node.clear_value(2)
    assert not node.has_values


def test_clearing_what_is_not_there_changes_nothing() -> None:
    trie = make_trie("a b")
    (node,) = trie.lookup_nodes(["a"])
    assert not node.clear_value(0)
    assert not node.clear_value(3)
    assert trie.count_number_of_nodes() == 2


# -- nodes ------------------------------------------------------------------------------------------


def test_prefixes_share_their_nodes() -> None:
    trie = make_trie("a b c", "a b d", "a e")
    assert trie.count_number_of_nodes() == 5
    assert keys(trie.lookup_nodes(["a", "b", "x"])) == ["a", "b"]
    assert trie.lookup_nodes(["x"]) == []
    again = trie.insert_nodes(["a", "b", "c"])
    assert again == trie.lookup_nodes(["a", "b", "c"])
    assert trie.count_number_of_nodes() == 5


def test_equal_words_under_different_parents_are_different_nodes() -> None:
    trie = make_trie("a x", "b x")
    left, right = trie.lookup_nodes(["a", "x"])[-1], trie.lookup_nodes(["b", "x"])[-1]
    assert left is not right
    assert (left.get_value(0), right.get_value(0)) == ("a x", "b x")


def test_last_value_takes_the_whole_empty_branch_along() -> None:
    trie = make_trie("a b c d")
    trie.lookup_nodes(["a", "b", "c", "d"])[-1].clear_value(0)
    assert trie.count_number_of_nodes() == 0
    assert not trie.root.has_children


@pytest.mark.parametrize("kept", ["a", "a b x"])
def test_pruning_stops_where_something_is_left(kept: str) -> None:
    trie = make_trie("a b c d", kept)
    trie.lookup_nodes(["a", "b", "c", "d"])[-1].clear_value(0)
    assert trie.count_number_of_nodes() == len(kept.split())
    assert trie.lookup_nodes(kept.split())[-1].get_value(0) == kept


def test_node_with_children_outlives_its_value() -> None:
    trie = make_trie("a", "a b")
    trie.lookup_nodes(["a"])[0].clear_value(0)
    assert keys(trie.lookup_nodes(["a", "b"])) == ["a", "b"]
    trie.lookup_nodes(["a", "b"])[-1].clear_value(0)
    assert trie.count_number_of_nodes() == 0


def test_value_of_another_channel_keeps_the_node() -> None:
    trie = make_trie("a")
    (node,) = trie.lookup_nodes(["a"])
    node.try_set_value(2, "other")
    node.clear_value(0)
    assert trie.lookup_nodes(["a"]) == [node]
    node.clear_value(2)
    assert trie.lookup_nodes(["a"]) == []


def test_pruned_node_forgets_its_parent() -> None:
    trie = make_trie("a b")
    child = trie.lookup_nodes(["a", "b"])[-1]
    child.clear_value(0)
    assert child.parent is None


def test_root_is_never_pruned() -> None:
    trie = make_trie()
    trie.root.prune()
    assert trie.root.parent is None
    assert trie.insert_nodes([]) == []


def test_removing_a_stranger_is_a_fault() -> None:
    trie = make_trie("a", "b")
    with pytest.raises(LogicError, match="was not a child"):
        trie.root.remove_node(TextNode("c", None))


def test_replaced_child_keeps_its_place() -> None:
    trie = make_trie("a", "b", "ab")
    partial_matches(trie.root, "a")  # the index exists from now on
    old = trie.lookup_nodes(["a"])[0]
    new = TextNode("a", None)
    trie.root.replace_node(old, new)
    assert old.parent is None
    assert new.parent is trie.root
    assert keys(trie.root.ordered_children()) == ["ab", "b", "a"]
    assert partial_matches(trie.root, "a")[0] == (1, trie.lookup_nodes(["ab"])[0])
    assert new in [node for _, node in partial_matches(trie.root, "ax")]


def test_only_child_is_replaced_too() -> None:
    trie = make_trie("a")
    new = TextNode("a", None)
    trie.root.replace_node(trie.lookup_nodes(["a"])[0], new)
    assert list(trie.root.ordered_children()) == [new]


# -- order and partial matches ----------------------------------------------------------------------


def test_children_come_newest_first() -> None:
    trie = make_trie("a", "b", "c")
    assert keys(trie.root.ordered_children()) == ["c", "b", "a"]
    trie.lookup_nodes(["b"])[0].clear_value(0)
    trie.insert_nodes(["b"])
    assert keys(trie.root.ordered_children()) == ["b", "c", "a"]


@pytest.mark.parametrize("others", [[], ["q"], ["q", "r", "s"]])
def test_longest_partial_match_comes_first_and_newest_of_equals(others: list[str]) -> None:
    trie = make_trie("abcd", "abxx", "abyy", "zz", *others)
    assert [(n, node.key) for n, node in partial_matches(trie.root, "abcz")] == [
        (3, "abcd"),
        (2, "abyy"),
        (2, "abxx"),
    ]
    assert partial_matches(trie.root, "x") == []


def test_only_child_may_match_in_part() -> None:
    trie = make_trie("abcd")
    assert [n for n, _ in partial_matches(trie.root, "ab")] == [2]
    assert partial_matches(trie.root, "b") == []


def test_key_that_does_not_support_it_never_matches_in_part() -> None:
    trie = make_trie("Abc", "Abd")
    assert partial_matches(trie.root, "Abx") == []


def test_leaf_has_no_partial_matches() -> None:
    assert partial_matches(make_trie().root, "a") == []


def test_many_random_changes_agree_with_a_list_of_children() -> None:
    """The index for partial matches follows insertions, removals and replacements."""
    rng = random.Random(7)
    trie = make_trie()
    children: list[Node[str, object]] = []
    for step in range(3000):
        key = "".join(rng.choice("abc") for _ in range(rng.randint(1, 4)))
        present = next((child for child in children if child.key == key), None)
        if present is None:
            node = trie.root.insert_node(key)
            node.try_set_value(0, step)
            children.append(node)
        elif rng.random() < 0.3:
            new = TextNode(key, None)
            new.try_set_value(0, step)
            trie.root.replace_node(present, new)
            children[children.index(present)] = new
        else:
            present.clear_value(0)
            children.remove(present)
        search = "".join(rng.choice("abc") for _ in range(4))
        matches = [(num_common_letters(search, c.key), c) for c in reversed(children)]
        expected = sorted([m for m in matches if m[0]], key=lambda match: -match[0])
        assert partial_matches(trie.root, search) == expected
        assert list(trie.root.ordered_children()) == children[::-1]
        assert isinstance(trie.root.children, ChildMap | TextNode | None)
