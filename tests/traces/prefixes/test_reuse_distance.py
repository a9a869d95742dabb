"""Reuse distances against a plain least-recently-used list, and the Fenwick tree below them."""

from __future__ import annotations

import random
from collections import OrderedDict
from pathlib import Path

import pytest

from tests.replay.trace_builders import random_requests, token_request
from trtkv.errors import InvalidInputError
from trtkv.traces.prefixes.fenwick import FenwickTree
from trtkv.traces.prefixes.prefix_tree import PrefixTree
from trtkv.traces.prefixes.reuse_distance import ReuseDistances, WorkingSets, measure_reuse
from trtkv.traces.prefixes.symbols import BlockSymbols, prompt_tokens
from trtkv.traces.trace import TraceRequest
from trtkv.traces.trace_reader import read_trace


def measure(
    requests: list[TraceRequest], tokens_per_block: int, windows: tuple[int, ...] = ()
) -> tuple[ReuseDistances, list[WorkingSets]]:
    symbols = BlockSymbols(requests, prompt_tokens, tokens_per_block, partial=True)
    tree = PrefixTree(symbols.load)
    for i in range(len(requests)):
        tree.insert(symbols.load(i))
    return measure_reuse(tree, len(requests), windows)


def prefixes(request: TraceRequest, tokens_per_block: int) -> list[tuple[int, ...]]:
    tokens = request.tokens().tolist()
    return [tuple(tokens[:end]) for end in [*range(tokens_per_block, len(tokens), tokens_per_block), len(tokens)]]


def distances_by_list(requests: list[TraceRequest], tokens_per_block: int) -> list[int]:
    """A stack of blocks, the most recently used one last, searched from its end."""
    stack: list[tuple[int, ...]] = []
    found = []
    for request in requests:
        blocks = prefixes(request, tokens_per_block)
        found += [len(stack) - 1 - stack.index(block) for block in blocks if block in stack]
        stack = [block for block in stack if block not in blocks] + blocks[::-1]
    return found


def hits_of_a_cache(requests: list[TraceRequest], tokens_per_block: int, capacity: int) -> int:
    """A cache that matches, takes what it lacks from the oldest end, and gives back deepest first."""
    cache: OrderedDict[tuple[int, ...], None] = OrderedDict()
    hits = 0
    for request in requests:
        blocks = prefixes(request, tokens_per_block)
        num_found = 0
        while num_found < len(blocks) and blocks[num_found] in cache:
            del cache[blocks[num_found]]
            num_found += 1
        hits += num_found
        while len(cache) > capacity - len(blocks):
            cache.popitem(last=False)
        cache.update(dict.fromkeys(reversed(blocks)))
    return hits


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("tokens_per_block", [1, 3])
def test_distances_are_those_of_a_plain_list(seed: int, tokens_per_block: int) -> None:
    requests = random_requests(random.Random(seed), 40)
    distances, _ = measure(requests, tokens_per_block)
    runs = zip(distances.starts.tolist(), distances.lengths.tolist(), strict=True)
    ours = sorted(start + i for start, length in runs for i in range(length))
    expected = sorted(distances_by_list(requests, tokens_per_block))
    assert ours == expected
    assert distances.num_touched == sum(-(-request.input_length // tokens_per_block) for request in requests)
    assert distances.num_distinct == len({block for r in requests for block in prefixes(r, tokens_per_block)})
    assert distances.num_touched - distances.num_distinct == distances.num_reused
    for share in (0.01, 0.5, 0.9, 1.0):
        wanted = max(1, -(-len(expected) * share // 1))
        assert distances.quantile(share) == expected[int(wanted) - 1]


@pytest.mark.parametrize("seed", range(10))
def test_one_pass_gives_the_hits_of_every_capacity(seed: int) -> None:
    requests = random_requests(random.Random(seed), 60)
    distances, _ = measure(requests, 3)
    largest = max(-(-request.input_length // 3) for request in requests)
    for capacity in range(largest, 120, 7):
        assert distances.num_hits(capacity) == hits_of_a_cache(requests, 3, capacity)
    assert distances.num_hits(10**9) == distances.num_reused
    assert distances.num_hits(0) == 0


@pytest.mark.parametrize("seed", range(10))
def test_working_sets_are_distinct_blocks_of_consecutive_requests(seed: int) -> None:
    requests = random_requests(random.Random(seed), 30)
    _, working_sets = measure(requests, 3, (1, 4, 30, 31, 0))
    assert [working_set.num_requests for working_set in working_sets] == [1, 4, 30]
    for length, mean, largest in working_sets:
        sizes = [
            len({block for request in requests[i : i + length] for block in prefixes(request, 3)})
            for i in range(30 - length + 1)
        ]
        assert largest == max(sizes)
        assert mean == pytest.approx(sum(sizes) / len(sizes))


def test_trace_without_reuse() -> None:
    distances, _ = measure([token_request(0, [1, 2]), token_request(1, [3])], 2)
    assert (distances.num_reused, distances.num_hits(100), distances.quantile(0.5)) == (0, 0, None)
    assert (distances.num_touched, distances.num_distinct) == (2, 2)


def test_block_size_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="tokens_per_block is 0"):
        BlockSymbols([], prompt_tokens, 0)


def test_fenwick_tree_sums_like_a_list() -> None:
    rng = random.Random(1)
    for size in (1, 2, 7, 64):
        tree, numbers = FenwickTree(size), [0] * size
        for _ in range(200):
            position, amount = rng.randrange(size), rng.randint(-5, 5)
            tree.add(position, amount)
            numbers[position] += amount
            start, end = sorted((rng.randint(0, size), rng.randint(0, size)))
            assert tree.total(start, end) == sum(numbers[start:end])
    with pytest.raises(InvalidInputError):
        FenwickTree(-1)


def test_public_traces_give_the_known_hits_at_every_capacity(shared_dir: Path) -> None:
    known = {
        "conversation": {
            300: 12126,
            1000: 12847,
            5859: 39258,
            10000: 61046,
            19531: 82273,
            30000: 93978,
            50000: 102290,
            97656: 104870,
            10**9: 105710,
        },
        "synthetic": {1000: 10252, 5859: 37703, 10000: 51669, 19531: 69059, 30000: 76077, 50000: 77953, 10**9: 77953},
    }
    sizes = {"conversation": (288_500, 182_790), "synthetic": (121_877, 43_924)}
    for name, hits in known.items():
        trace = read_trace(shared_dir / "traces" / "mooncake" / f"{name}_trace.jsonl", block_size=512)
        distances, _ = measure(list(trace.requests), 512)
        assert (distances.num_touched, distances.num_distinct) == sizes[name]
        assert {capacity: distances.num_hits(capacity) for capacity in hits} == hits
