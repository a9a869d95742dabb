"""The prefix tree against plain lists of strings."""

from __future__ import annotations

import random

import numpy as np
import pytest

from trtkv.traces.prefixes.prefix_tree import Edge, PrefixTree


def common_prefix(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def build(strings: list[list[int]], cuts: list[tuple[int, ...]] | None = None) -> tuple[PrefixTree, list[int]]:
    arrays = [np.array(string, dtype=np.int32) for string in strings]
    tree = PrefixTree(lambda owner: arrays[owner])
    return tree, [tree.insert(array, cuts[i] if cuts else ()) for i, array in enumerate(arrays)]


def random_strings(rng: random.Random) -> list[list[int]]:
    strings: list[list[int]] = []
    for _ in range(rng.randint(1, 25)):
        start = rng.choice(strings)[: rng.randint(0, 12)] if strings else []
        strings.append(start + [rng.randrange(3) for _ in range(rng.randint(0, 8))])
    return strings


@pytest.mark.parametrize("seed", range(40))
def test_matches_are_the_longest_common_prefixes(seed: int) -> None:
    strings = random_strings(random.Random(seed))
    _, matches = build(strings)
    expected = [max((common_prefix(s, t) for t in strings[:i]), default=0) for i, s in enumerate(strings)]
    assert matches == expected


@pytest.mark.parametrize("seed", range(40))
def test_paths_cover_their_strings_and_edges_have_one_set_of_strings(seed: int) -> None:
    rng = random.Random(seed)
    strings = random_strings(rng)
    cuts = [tuple(rng.randint(0, len(string)) for _ in range(2)) for string in strings]
    tree, _ = build(strings, cuts)
    prefixes_of_edges: dict[Edge, tuple[int, ...]] = {}
    for i, string in enumerate(strings):
        path = tree.path(i)
        ends = [edge.end for edge in path]
        assert [edge.start for edge in path] == [0, *ends][: len(path)]
        assert (ends[-1] if ends else 0) == len(string)
        assert set(cuts[i]) - {0} <= set(ends)
        for edge in path:
            prefix = tuple(string[: edge.end])
            assert prefixes_of_edges.setdefault(edge, prefix) == prefix
    assert len(set(prefixes_of_edges.values())) == len(prefixes_of_edges)
    assert set(tree.edges()) == set(prefixes_of_edges)
    num_prefixes = len({tuple(string[:n]) for string in strings for n in range(1, len(string) + 1)})
    assert sum(len(edge) for edge in tree.edges()) == num_prefixes


def test_edges_are_runs_not_single_symbols() -> None:
    tree, _ = build([[1] * 100, [1] * 60 + [2] * 40, [3]])
    assert sorted((edge.start, edge.end) for edge in tree.edges()) == [(0, 1), (0, 60), (60, 100), (60, 100)]


def test_string_that_ends_inside_an_edge_gets_an_end_of_its_own() -> None:
    tree, matches = build([[1, 2, 3, 4], [1, 2], []])
    assert matches == [0, 2, 0]
    assert [(edge.start, edge.end) for edge in tree.path(0)] == [(0, 2), (2, 4)]
    assert [(edge.start, edge.end) for edge in tree.path(1)] == [(0, 2)]
    assert tree.path(2) == []
