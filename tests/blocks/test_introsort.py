"""The order of equal elements is that of the C++ library's sort."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from trtkv.blocks.introsort import introsort

pytestmark = pytest.mark.pure


def make_killer(size: int) -> list[int]:
    """Ranks that a median of three divides so badly that the sort falls back to a heap."""
    half = size // 2
    ranks = [0] * (2 * half)
    for place in range(1, half + 1):
        if place % 2:
            ranks[place - 1] = place
            ranks[place] = half + place
        ranks[half + place - 1] = 2 * place
    return ranks


def make_cases(seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    cases = []
    for _ in range(300):
        size = rng.choice([0, 1, 2, 5, 16, 17, 18, 33, 64, rng.randrange(1, 300)])
        num_ranks = rng.choice([1, 2, 3, 5, 50, 1000])
        cases.append([rng.randrange(num_ranks) for _ in range(size)])
    for size in (40, 64, 100, 400):
        cases += [make_killer(size), [rank // 7 for rank in make_killer(size)]]
    return cases


@pytest.mark.parametrize("size", [0, 1, 2, 16])
def test_up_to_16_elements_are_sorted_stably(size: int) -> None:
    ranks = [index % 3 for index in range(size)]
    assert introsort(ranks) == sorted(range(size), key=ranks.__getitem__)


def test_seventeen_equal_elements_are_not() -> None:
    assert introsort([5] * 17) == [8, 16, 15, 14, 13, 12, 11, 10, 9, 0, 7, 6, 5, 4, 3, 2, 1]


def test_any_ranks_come_out_sorted_each_once() -> None:
    for ranks in make_cases(1):
        order = introsort(ranks)
        assert sorted(order) == list(range(len(ranks)))
        assert [ranks[index] for index in order] == sorted(ranks)


def test_order_is_that_of_the_library_itself(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++ with the C++ library whose sort is reproduced")
    program = tmp_path / "introsort"
    source = Path(__file__).with_name("introsort.cpp")
    subprocess.run([compiler, "-std=c++17", "-O1", str(source), "-o", str(program)], check=True)
    cases = make_cases(2)
    lines = "".join(f"{len(ranks)} {' '.join(map(str, ranks))}\n" for ranks in cases)
    result = subprocess.run([str(program)], input=lines, capture_output=True, text=True, check=True)
    expected = [[int(word) for word in line.split()] for line in result.stdout.splitlines()]
    assert [introsort(ranks) for ranks in cases] == expected
