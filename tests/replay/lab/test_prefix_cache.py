"""Policies in the simple cache: worked cases, a naive twin, and the bound that none may beat."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from trtkv.errors import InvalidInputError
from trtkv.eviction.orders.registry import ORDERS, OrderSpec
from trtkv.replay.lab.admission import ADMISSIONS, make_admission
from trtkv.replay.lab.clairvoyant_cache import clairvoyant_found, infinite_found
from trtkv.replay.lab.policy_case import block_path, run_policy_case
from trtkv.replay.lab.prefix_cache import PrefixCache

ROOT = Path(__file__).resolve().parents[3]

CASE = {
    "name": "hot prompt, then a scan",
    "capacity_blocks": 6,
    "requests": [["h1", "h2"], ["h1", "h2"], ["p1", "p2"], ["q1", "q2"], ["r1", "r2"], ["u1", "u2"], ["h1", "h2"]],
    "clairvoyant_found": 4,
    "infinite_found": 4,
    "policies": {
        "lru": {"found": [0, 2, 0, 0, 0, 0, 0]},
        "lfu": {"found": [0, 2, 0, 0, 0, 0, 2]},
        "sieve": {"found": [0, 2, 0, 0, 0, 0, 2]},
        "arc": {"found": [0, 2, 0, 0, 0, 0, 2]},
        "s3-fifo": {"found": [0, 2, 0, 0, 0, 0, 0]},
        "2q": {"found": [0, 2, 0, 0, 0, 0, 0]},
        "lru+second": {"found": [0, 0, 0, 0, 0, 0, 2], "not_admitted": 10},
        "priority(first block 80, others 35)": {"found": [0, 2, 0, 0, 0, 0, 1]},
    },
}


def random_paths(seed: int) -> list[list[tuple[str, ...]]]:
    random = Random(seed)
    stems = [[f"{name}{i}" for i in range(random.randint(1, 6))] for name in "abcdef"]
    paths = []
    for _ in range(40):
        stem = random.choice(stems)
        paths.append(block_path(stem[: random.randint(1, len(stem))] + random.choice([[], ["x"], ["x", "y"]])))
    return paths


def test_outcomes_of_the_case_are_those_stated() -> None:
    for name, expected, found in run_policy_case(CASE):
        assert found == expected, name


def test_cases_of_the_reference_are_equal() -> None:
    path = ROOT.parent / "shared" / "reference" / "cases" / "policies_shown.json"
    if not path.exists():
        pytest.skip("the reference cases are not beside this checkout")
    outcomes = [outcome for case in json.loads(path.read_text()) for outcome in run_policy_case(case)]
    assert len(outcomes) >= 100
    assert [outcome for outcome in outcomes if outcome[1] != outcome[2]] == []


class NaiveLru:
    """LRU under the leaf rule by looking at everything every time."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.last, self.now = capacity, {}, 0

    def serve(self, path):
        found = 0
        while found < len(path) and path[found] in self.last:
            found += 1
        for key in path[:found]:
            self.last[key] = self.now
        for key in path[found:]:
            if len(self.last) == self.capacity:
                leaves = [
                    k for k in self.last if k not in path and not any(o[: len(k)] == k and o != k for o in self.last)
                ]
                if not leaves:
                    break
                del self.last[min(leaves, key=lambda k: (self.last[k], -len(k)))]
            self.last[key] = self.now
        self.now += 1
        return found


@pytest.mark.parametrize("seed", range(30))
def test_lru_equals_the_naive_twin_after_every_request(seed: int) -> None:
    paths = random_paths(seed)
    capacity = Random(seed).randint(2, 9)
    cache, naive = PrefixCache(capacity, OrderSpec("lru").make(capacity)), NaiveLru(capacity)
    for path in paths:
        assert cache.serve(path).found == naive.serve(path)
        assert sorted(cache.resident) == sorted(naive.last)


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("admission", ADMISSIONS)
def test_no_rule_beats_the_clairvoyant_bound(name: str, admission: str) -> None:
    for seed in range(20):
        paths, capacity = random_paths(seed), 3 + seed % 6
        cache = PrefixCache(capacity, OrderSpec(name).make(capacity), make_admission(admission, capacity))
        found = sum(cache.serve(path).found for path in paths)
        assert 0 <= found <= sum(clairvoyant_found(paths, capacity)) <= sum(infinite_found(paths))
        assert len(cache) <= capacity


@pytest.mark.parametrize("name", ORDERS)
def test_with_room_for_everything_all_rules_find_what_an_unlimited_cache_finds(name: str) -> None:
    paths = random_paths(3)
    cache = PrefixCache(10_000, OrderSpec(name).make(10_000))
    assert [cache.serve(path).found for path in paths] == infinite_found(paths)


def test_without_the_leaf_rule_a_parent_can_go_before_its_children() -> None:
    cache = PrefixCache(3, OrderSpec("fifo").make(3), leaves_only=False)
    deep = block_path(["a", "b", "c"])
    cache.serve(deep[:1])
    cache.serve(deep)
    assert cache.serve(block_path(["z"])).evicted == [("a",)]
    assert cache.serve(deep).found == 0
    with_rule = PrefixCache(3, OrderSpec("fifo").make(3))
    with_rule.serve(deep[:1])
    with_rule.serve(deep)
    assert with_rule.serve(block_path(["z"])).evicted == [("a", "b", "c")]


def test_a_cache_without_room_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="capacity is 0"):
        PrefixCache(0, OrderSpec("lru").make(1))


def test_the_tool_counts_equal_outcomes_and_fails_on_others(tmp_path: Path) -> None:
    def run(*cases: object) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "cases.json"
        path.write_text(json.dumps(list(cases)))
        command = [sys.executable, str(ROOT / "tools" / "check_cases.py"), str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    equal = run(CASE)
    assert (equal.returncode, "10 of 10 outcomes equal" in equal.stdout) == (0, True)
    wrong = run(CASE | {"infinite_found": 5})
    assert (wrong.returncode, "9 of 10 outcomes equal" in wrong.stdout) == (1, True)
    assert run({"what": 1}).returncode == 2
