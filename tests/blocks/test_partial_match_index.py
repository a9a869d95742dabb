"""PartialMatchIndex against a plain list of children, in small and in large, much divided families."""

from __future__ import annotations

import random

import pytest

from trtkv.blocks.partial_match_index import KeyFunctions, PartialMatchIndex
from trtkv.keys.block_key import BlockKey
from trtkv.keys.packed_key import PackedKey, first_token_of, num_matching_tokens, supports_partial_matching, token_at

FUNCTIONS = KeyFunctions(first_token_of, num_matching_tokens, token_at, supports_partial_matching)


def found(index: PartialMatchIndex, key: PackedKey) -> list[tuple[int, object]]:
    result = []
    for matches in index.find(key):
        children = list(matches.children)
        assert matches.size == len(children) > 0
        result += [(matches.num_tokens, child) for child in children]
    return result


def expected(children: dict[PackedKey, object], key: PackedKey) -> list[tuple[int, object]]:
    matches = [(num_matching_tokens(key, other), child) for other, child in reversed(children.items())]
    return sorted((match for match in matches if match[0]), key=lambda match: -match[0])


class Keys:
    """Draws keys that begin alike: some constrained, some folded, some of a few tokens only."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.template = [self.rng.randrange(3) for _ in range(self.rng.choice([1, 5, 12]))]

    def draw(self) -> PackedKey:
        rng = self.rng
        tokens = self.template[: rng.choice([len(self.template)] * 6 + [1, 2, 3])]
        tokens = (tokens + [rng.randrange(rng.choice([2, 50])) for _ in range(rng.randint(0, 16))])[:16]
        if rng.random() < 0.05:
            return range(5, 5 + rng.randint(1, 16))
        return BlockKey(tuple(tokens), lora_task_id=rng.choice([None] * 9 + [1])).packed


@pytest.mark.parametrize("growth", [0.5, 0.7, 0.95])
@pytest.mark.parametrize("seed", range(8))
def test_children_are_found_as_by_looking_at_all(seed: int, growth: float) -> None:
    keys = Keys(seed)
    rng = keys.rng
    index = PartialMatchIndex(FUNCTIONS)
    children: dict[PackedKey, object] = {}
    for number in range(700):
        key = keys.draw()
        if rng.random() < growth:
            if key in children:
                children[key] = number
                index.replace(key, number)
            else:
                children[key] = number
                index.add(key, number)
        elif children:
            key = rng.choice(list(children))
            del children[key]
            index.discard(key)
        search = keys.draw()
        assert found(index, search) == expected(children, search)
    by_family: dict[object, list[object]] = {}
    for key, child in children.items():
        by_family.setdefault(first_token_of(key), []).append(child)
    assert index.children() == by_family
    for key in list(children):
        index.discard(key)
    assert index.children() == {}


class CountingFunctions:
    """Counts comparisons of keys."""

    def __init__(self) -> None:
        self.num_comparisons = 0

    def num_matching_tokens(self, key: PackedKey, other: PackedKey) -> int:
        self.num_comparisons += 1
        return num_matching_tokens(key, other)


@pytest.mark.parametrize("num_shared", [1, 15, 60])
def test_many_children_that_begin_alike_cost_no_search(num_shared: int) -> None:
    counting = CountingFunctions()
    index = PartialMatchIndex(FUNCTIONS._replace(num_matching_tokens=counting.num_matching_tokens))
    for number in range(5000):
        index.add(BlockKey((*[7] * num_shared, number, *[0] * 10)).packed, number)
    counting.num_comparisons = 0
    new = BlockKey((*[7] * num_shared, 9999)).packed
    matches = next(index.find(new))
    assert (matches.num_tokens, matches.size, next(matches.children)) == (num_shared, 5000, 4999)
    closest = BlockKey((*[7] * num_shared, 1234, 0, 5)).packed
    assert [next(found.children) for found in index.find(closest)] == [1234, 4999]
    index.add(new, 9999)
    index.discard(new)
    assert counting.num_comparisons < 20
