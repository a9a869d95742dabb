"""Offset tables: after any number of steps the device table holds what the flat-index rule says."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from trtkv.common import RECURRENT_STATES, CacheType, DataType
from trtkv.errors import ConfigurationError, InvalidInputError
from trtkv.kernels.block_offsets import OffsetRule, make_offset_rule, scatter_block_offsets
from trtkv.kernels.kernel_launch import Backend
from trtkv.kernels.offset_table import DeviceOffsetTable
from trtkv.kernels.staging_ring import StagingRing
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.kv_cache_index import NULL_ENTRY
from trtkv.records.linear_attention import LinearAttentionMetadata
from trtkv.records.llm_request import LlmRequest

# Two windows: the first with two head counts and block scales, the second keys only, the third recurrent states.
RULES = [
    make_offset_rule(0, 3, 2, layer_first_layout=False, is_k_only=False),
    make_offset_rule(0, 5, 2, layer_first_layout=False, is_k_only=False),
    make_offset_rule(1, 4, 1, layer_first_layout=False, is_k_only=True),
    make_offset_rule(2, 6, 1, layer_first_layout=True, is_k_only=True),
    make_offset_rule(1, 4, 2, layer_first_layout=True, is_k_only=False),
]


@pytest.fixture(params=["kernel", "reference"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Both computations of every test."""
    return request.getfixturevalue("host_launcher") if request.param == "kernel" else "reference"


def expected_entry(rule: OffsetRule, slot: int, is_v: bool) -> int:
    return NULL_ENTRY if slot == NULL_ENTRY else slot * rule.entries_per_slot + (rule.v_distance if is_v else 0)


def test_rules_follow_the_flat_index() -> None:
    assert make_offset_rule(0, 3, 2, False, False) == OffsetRule(0, 6, 1)
    assert make_offset_rule(0, 3, 1, False, True) == OffsetRule(0, 3, 0)
    assert make_offset_rule(0, 3, 1, True, True) == OffsetRule(0, 1, 0)
    assert make_offset_rule(0, 3, 2, True, False) == OffsetRule(0, 2, 1)


@pytest.mark.parametrize(("num_rows", "width"), [(1, 1), (3, 7), (5, 64), (4, 300)])
def test_table_equals_a_dense_one_after_random_steps(num_rows: int, width: int, backend: Backend) -> None:
    rng = random.Random(num_rows * 1000 + width)
    num_slots = [50, 60, 70]
    table = DeviceOffsetTable(RULES, num_slots, num_rows, width, backend=backend)
    dense = np.zeros((len(RULES), num_rows, 2, width), dtype=np.int32)
    for _ in range(25):
        for _ in range(rng.randint(0, 6)):
            window, row, first = rng.randrange(3), rng.randrange(num_rows), rng.randrange(width)
            slots = [
                NULL_ENTRY if rng.random() < 0.1 else rng.randrange(num_slots[window])
                for _ in range(rng.randint(0, width - first))
            ]
            table.set_row(window, row, slots, first)
            for pool, rule in enumerate(RULES):
                if rule.window_idx == window:
                    for field in (0, 1):
                        dense[pool, row, field, first : first + len(slots)] = [
                            expected_entry(rule, slot, field == 1) for slot in slots
                        ]
        table.flush()
        assert np.array_equal(table.table.numpy(), dense)


def test_bytes_follow_the_sequences_that_grow_and_not_the_table(backend: Backend) -> None:
    rows, width, growing = 256, 1024, 4
    rules = [make_offset_rule(0, 32, 2, False, False)]
    table = DeviceOffsetTable(rules, [rows * width], rows, width, backend=backend)
    slots = np.arange(rows * width, dtype=np.int32).reshape(rows, width)
    lengths = [width - 10] * rows
    for row in range(rows):
        table.set_row(0, row, slots[row, : lengths[row]])
    first = table.flush()
    assert first == rows * 16 + sum(lengths) * 4
    for step in range(5):
        for row in range(growing):
            lengths[row] += 1
        for row in range(rows):
            table.set_row(0, row, slots[row, : lengths[row]])
        assert table.flush() == growing * (16 + 4), step
    assert table.flush() == 0
    assert table.total_bytes_sent == first + 5 * growing * 20
    assert np.array_equal(table.table[0, :growing, 0, : width - 5].numpy(), slots[:growing, : width - 5] * 64)
    assert np.array_equal(table.table[0, growing:, 1, : width - 10].numpy(), slots[growing:, : width - 10] * 64 + 1)


def test_number_of_pools_does_not_change_the_bytes() -> None:
    sent = []
    for num_pools in (1, 6):
        table = DeviceOffsetTable([make_offset_rule(0, 2, 2, False, False)] * num_pools, [100], 4, 16)
        table.set_row(0, 2, [7, 8, 9])
        sent.append(table.flush())
    assert sent == [16 + 12] * 2


def test_a_column_set_twice_before_a_flush_keeps_the_last_slot(backend: Backend) -> None:
    table = DeviceOffsetTable(RULES[:1], [50], 2, 8, backend=backend)
    table.set_row(0, 1, [1, 2, 3, 4])
    table.set_row(0, 1, [9, 8], first_column=2)
    table.set_row(0, 1, [30], first_column=6)
    assert table.flush() == 2 * 16 + 5 * 4
    assert table.table[0, 1, 0].tolist() == [6, 12, 54, 48, 0, 0, 180, 0]
    assert table.table[0, 1, 1].tolist() == [7, 13, 55, 49, 0, 0, 181, 0]
    assert not table.table[0, 0].any()


def test_only_changed_slots_are_counted() -> None:
    table = DeviceOffsetTable(RULES[:1], [50], 2, 8)
    assert table.set_row(0, 0, [1, 2, 3]) == 3
    assert table.set_row(0, 0, [1, 5, 3, 4]) == 2
    table.flush()
    assert table.set_row(0, 0, [1, 5, 3, 4]) == 0


def test_wrong_slots_are_refused_and_change_nothing() -> None:
    table = DeviceOffsetTable(RULES, [50, 60, 70], 2, 8)
    for window, row, slots, column in [
        (3, 0, [1], 0),
        (0, 2, [1], 0),
        (0, 0, [1, 2], 7),
        (0, 0, [1], -1),
        (0, 0, [50], 0),
        (0, 0, [-2], 0),
    ]:
        with pytest.raises(InvalidInputError):
            table.set_row(window, row, slots, column)
    assert table.flush() == 0
    with pytest.raises(ConfigurationError, match="32-bit"):
        DeviceOffsetTable([OffsetRule(0, 64, 1)], [2**25], 1, 1)


@pytest.mark.parametrize("step", ["staging", "launch"])
def test_what_could_not_be_sent_stays_to_be_sent(monkeypatch: pytest.MonkeyPatch, step: str, backend: Backend) -> None:
    table = DeviceOffsetTable(RULES[:1], [50], 2, 8, backend=backend)

    def fail(*args: object) -> None:
        raise RuntimeError("the device is busy")

    table.set_row(0, 0, [1, 2, 3])
    with monkeypatch.context() as patch:
        if step == "staging":
            patch.setattr(StagingRing, "send", fail)
        else:
            patch.setattr("trtkv.kernels.offset_table.scatter_block_offsets", fail)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="busy"):
                table.flush()
    assert (table.bytes_sent, table.total_bytes_sent) == (0, 0)
    table.set_row(0, 0, [1, 2, 3])
    table.set_row(0, 1, [4])
    assert table.flush() == 2 * 16 + 4 * 4
    assert table.table[0, :, 0, :3].tolist() == [[6, 12, 18], [24, 0, 0]]
    assert table.flush() == 0


def test_scatter_without_runs_does_nothing(backend: Backend) -> None:
    table = torch.full((1, 1, 2, 4), 5, dtype=torch.int32)
    empty = torch.zeros((0, 4), dtype=torch.int32)
    scatter_block_offsets(table, empty, empty.view(-1), torch.zeros((1, 4), dtype=torch.int32), 0, backend)
    assert (table == 5).all()


class FakeEvent:
    """An event that takes place when the test says so."""

    def __init__(self) -> None:
        self.done = False

    def record(self, stream: object) -> None:
        self.done = False

    def query(self) -> bool:
        return self.done


def test_a_staging_buffer_is_not_reused_while_its_copy_is_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    from trtkv.kernels.staging_ring import _StagingBuffer

    ring = StagingRing("cpu", min_capacity=8)
    monkeypatch.setattr(ring, "_make_buffer", lambda size: _StagingBuffer(torch.empty(max(8, size)), FakeEvent()))
    first = ring._take_buffer(4)
    ring._buffers.append(first)
    second = ring._take_buffer(4)
    assert second is not first
    ring._buffers.append(second)
    first.copied.done = True  # type: ignore[attr-defined]
    assert ring._take_buffer(4) is first
    ring._buffers.append(first)
    second.copied.done = True  # type: ignore[attr-defined]
    assert ring._take_buffer(100) is not second
    assert ring.num_buffers == 1


def test_on_the_cpu_the_sent_values_are_a_copy() -> None:
    values = np.arange(4, dtype=np.int32)
    sent = StagingRing("cpu").send(values)
    values[:] = 9
    assert sent.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["head counts and windows", "keys only with index keys", "nvfp4", "recurrent"])
def test_table_of_a_manager_equals_its_own_offsets(kind: str, backend: Backend) -> None:
    manager = make_manager(kind)
    num_rows, width = 4, manager.max_blocks_per_seq
    table = DeviceOffsetTable.for_pools(manager.pool_tensors.pools, num_rows, width, backend=backend)
    expected = np.zeros((manager.num_pools, num_rows, 2, width), dtype=np.int32)
    requests = [LlmRequest(number, range(7 * number, 7 * number + 13), 20) for number in range(num_rows)]
    manager.add_sequence_batch([(request.request_id, 13, 1) for request in requests], requests)
    for step in range(12):
        for request in requests:
            request.add_new_token(step)
            manager.add_token(request.request_id)
            sequence = manager.get_sequence(request.request_id)
            for window_idx, window_size in enumerate(manager.window_sizes_metadata):
                window = sequence.get_window(window_size)
                table.set_row(window_idx, request.request_id, window.slots[0][: len(window.block_ids[0])])
            manager.copy_block_offsets(expected, request.request_id, request.request_id)
        table.flush()
        assert np.array_equal(table.table.numpy(), expected), step
    has_holes = kind in ("recurrent", "head counts and windows")  # states without memory, and what left the window
    assert (expected == NULL_ENTRY).any() == has_holes


def make_manager(kind: str) -> KVCacheManager:
    """A manager with pools of one kind."""
    sizes: dict[str, Any] = {"max_sequence_length": 32, "enable_partial_reuse": False}
    windows = {16: (40, 0), 32: (50, 0)}
    if kind == "head counts and windows":
        return KVCacheManager.from_arguments([2, 1, 2, 4], 8, 4, windows, 8, 1, [16, 32], **sizes)
    if kind == "keys only with index keys":
        sizes |= {"cache_type": CacheType.SELFKONLY, "enable_indexer_k_cache": True}
        return KVCacheManager.from_arguments(
            [1, 1], 8, 4, {32: (50, 0)}, 8, 1, [32], **sizes, indexer_k_cache_index_head_dim=128
        )
    if kind == "nvfp4":
        return KVCacheManager.from_arguments([2, 4], 32, 4, {32: (50, 0)}, 8, 1, [32], DataType.NVFP4, **sizes)
    linear = LinearAttentionMetadata(linear_layer_indices=[1], states_snapshot_interval=8)
    windows = {RECURRENT_STATES: (30, 0), 32: (50, 0)}
    return KVCacheManager.from_arguments(
        [2, 2], 8, 4, windows, 8, 1, [32, RECURRENT_STATES], **sizes, linear_attention_metadata=linear
    )
