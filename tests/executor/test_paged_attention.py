"""Attention of a step in groups, beside plain attention of every token over its own history."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import pytest
import torch

from trtkv.executor.attention_group import SequenceSlice, group_slices
from trtkv.executor.executor_config import ExecutorConfig, create_kv_cache_manager
from trtkv.executor.model_spec import ModelSpec
from trtkv.executor.paged_attention import paged_attention_forward
from trtkv.executor.paged_batch import PagedBatch
from trtkv.executor.paged_kv_cache import PagedKvCache

HEADS, KV_HEADS, DIM, LENGTH = 4, 2, 6, 300


def make_cache(kv_layout: str, num_rows: int) -> PagedKvCache:
    """Two layers in one pool; every row has blocks for LENGTH tokens, in an order of their own."""
    spec = ModelSpec((KV_HEADS, KV_HEADS), DIM, (None, None), torch.float64)
    blocks_per_row = -(-LENGTH // 4)
    config = ExecutorConfig(LENGTH, num_rows * blocks_per_row, tokens_per_block=4, kv_layout=kv_layout)
    manager = create_kv_cache_manager(spec, config)
    for pool in manager.pool_tensors.pools:
        assert pool.primary is not None
        pool.primary.view(torch.float64).fill_(float("nan"))
    cache = PagedKvCache(manager, spec, "cpu", num_rows)
    slots = list(range(num_rows * blocks_per_row))
    random.Random(1).shuffle(slots)
    for row in range(num_rows):
        cache.offsets.set_row(0, row, slots[row * blocks_per_row : (row + 1) * blocks_per_row])
    cache.offsets.flush()
    return cache


class Histories:
    """All queries, keys and values of some rows, [rows, heads, positions, dim], and plain attention over them."""

    def __init__(self, num_rows: int) -> None:
        torch.manual_seed(0)
        self.queries = torch.randn(num_rows, HEADS, LENGTH, DIM, dtype=torch.float64)
        self.keys, self.values = torch.randn(2, num_rows, KV_HEADS, LENGTH, DIM, dtype=torch.float64)

    def take(self, slices: list[SequenceSlice], of: torch.Tensor) -> torch.Tensor:
        """The part of a step, [1, heads, tokens, dim]."""
        parts = [
            of[entry.table_row, :, entry.first_position : entry.first_position + entry.num_tokens] for entry in slices
        ]
        return torch.cat(parts, dim=1)[None]

    def attend(self, entry: SequenceSlice, window: int | None, softcap: float | None) -> torch.Tensor:
        """What the tokens of a slice must see, [tokens, heads, dim]."""
        result = []
        for position in range(entry.first_position, entry.first_position + entry.num_tokens):
            seen = range(0 if window is None else max(0, position - window + 1), position + 1)
            rows = entry.find_rows(seen)
            keys = torch.stack([self.keys[row, :, place] for row, place in zip(rows, seen, strict=True)], 1)
            values = torch.stack([self.values[row, :, place] for row, place in zip(rows, seen, strict=True)], 1)
            for head in range(HEADS):
                kv_head = head // (HEADS // KV_HEADS)
                scores = keys[kv_head] @ self.queries[entry.table_row, head, position] / math.sqrt(DIM)
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                result.append(torch.softmax(scores, 0) @ values[kv_head])
        return torch.stack(result).view(entry.num_tokens, HEADS, DIM)


def run_step(
    cache: PagedKvCache,
    histories: Histories,
    slices: list[SequenceSlice],
    layer_idx: int,
    window: int | None,
    softcap: float | None = None,
) -> list[torch.Tensor]:
    """Compute slices through the pages, in the batch's order; outputs [tokens, heads, dim] in the order given."""
    batch = PagedBatch(cache, slices)
    ordered = [slices[index] for index in batch.order]
    states = [histories.take(ordered, of) for of in (histories.queries, histories.keys, histories.values)]
    layer = SimpleNamespace(layer_idx=layer_idx)
    output, _ = paged_attention_forward(
        layer, *states, None, 1 / math.sqrt(DIM), paged_batch=batch, sliding_window=window, softcap=softcap
    )
    parts = torch.split(output[0], [entry.num_tokens for entry in ordered])
    return [parts[batch.order.index(index)] for index in range(len(slices))]


@pytest.mark.parametrize("kv_layout", ["HND", "NHD"])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 1, 7, 40])
def test_each_token_sees_its_own_history_and_window(kv_layout: str, window: int | None, softcap: float | None) -> None:
    rng = random.Random(f"{window} {softcap}")
    cache, histories = make_cache(kv_layout, 6), Histories(6)
    ends = [0] * 6
    sizes = [[5, 40, 5, 1, 70, 0], [1, 1, 1, 1, 1, 90], [1, 3, 3, 1, 1, 1], [1, 1, 40, 1, 2, 1], [1] * 6, [1] * 6]
    for step in sizes:
        rows = [row for row in range(6) if step[row]]
        rng.shuffle(rows)
        slices = [SequenceSlice(row, ends[row], step[row]) for row in rows]
        for layer_idx in (0, 1):
            outputs = run_step(cache, histories, slices, layer_idx, window, softcap)
            for entry, output in zip(slices, outputs, strict=True):
                torch.testing.assert_close(output, histories.attend(entry, window, softcap))
        for row in rows:
            ends[row] += step[row]


@pytest.mark.parametrize("kv_layout", ["HND", "NHD"])
@pytest.mark.parametrize("window", [None, 5])
def test_beams_see_positions_of_several_rows(kv_layout: str, window: int | None) -> None:
    cache, histories = make_cache(kv_layout, 4), Histories(4)
    for row in range(4):
        run_step(cache, histories, [SequenceSlice(row, 0, 9)], 0, window)
    slices = [
        SequenceSlice(1, 9, 1, [0, 0, 0, 0, 2, 2, 1, 3, 1]),
        SequenceSlice(3, 7, 1, [0, 0, 0, 0, 3, 2, 2]),
        SequenceSlice(0, 9, 1),
    ]
    outputs = run_step(cache, histories, slices, 0, window)
    for entry, output in zip(slices, outputs, strict=True):
        torch.testing.assert_close(output, histories.attend(entry, window, None))


def test_a_decode_batch_is_one_group_unless_lengths_are_far_apart() -> None:
    assert group_slices([SequenceSlice(row, 100 + 7 * row, 1) for row in range(20)]) == [list(range(20))]
    lengths = [5, 1000, 3, 2001, 600, 256, 257]
    assert group_slices([SequenceSlice(row, length, 1) for row, length in enumerate(lengths)]) == [
        [2, 0, 5],
        [6],
        [4, 1],
        [3],
    ]


def test_slices_are_grouped_by_their_tokens_and_long_ones_stand_alone() -> None:
    slices = [
        SequenceSlice(0, 10, 1),
        SequenceSlice(1, 0, 64),
        SequenceSlice(2, 9, 1),
        SequenceSlice(3, 0, 64),
        SequenceSlice(4, 9, 1, [4] * 9),
        SequenceSlice(5, 0, 4),
        SequenceSlice(6, 50, 4),
    ]
    assert group_slices(slices) == [[2, 0], [1], [3], [4], [5, 6]]


def test_a_group_reads_once_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, histories = make_cache("HND", 6), Histories(6)
    for row in range(6):
        run_step(cache, histories, [SequenceSlice(row, 0, 20 + row)], 0, None)
    reads = []
    read = PagedKvCache.read
    monkeypatch.setattr(PagedKvCache, "read", lambda *arguments: reads.append(1) or read(*arguments))
    run_step(cache, histories, [SequenceSlice(row, 20 + row, 1) for row in range(6)], 0, None)
    assert len(reads) == 1
