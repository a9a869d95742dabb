"""Page tables for attention kernels, read back the way each kernel would."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.builders import add, finish_prompt, make_kv_cache_manager, make_linear_attention, make_request, prefill
from tests.fake_memory import FakeMemory, digests
from tests.shapes.fake_server import FakeServer
from trtkv.common import RECURRENT_STATES
from trtkv.errors import InvalidInputError, UnknownIdError
from trtkv.exporters.page_tables import (
    NO_SLOT,
    BlockTable,
    FlashInferTables,
    export_block_table,
    export_flashinfer,
    export_flex,
    export_slot_mapping,
)

FULL = 64


def make_two_requests():
    """Request 0 in slots 0 to 2, request 1 in slots 3 and 4."""
    manager = make_kv_cache_manager(16)
    add(manager, make_request(0, 9))
    add(manager, make_request(1, 8))
    return manager


# -- layouts --------------------------------------------------------------------------------------------


def test_flashinfer_gets_ragged_pages():
    tables = export_flashinfer(make_two_requests(), [1, 0], FULL)
    assert tables.kv_indptr.tolist() == [0, 2, 5]
    assert tables.kv_indices.tolist() == [3, 4, 0, 1, 2]
    assert tables.kv_last_page_len.tolist() == [4, 1]
    assert {array.dtype for array in tables} == {np.dtype(np.int32)}


def test_flash_attention_and_vllm_get_a_rectangle_padded_with_a_valid_page():
    manager = make_two_requests()
    table = export_block_table(manager, [1, 0], FULL, width=4)
    assert table.block_table.tolist() == [[3, 4, 0, 0], [0, 1, 2, 0]]
    assert table.seq_lens.tolist() == [8, 9]
    assert table.block_table.dtype == table.seq_lens.dtype == np.int32
    assert export_block_table(manager, [1, 0], FULL).block_table.shape == (2, 3)


def test_transformers_gets_a_rectangle_padded_with_minus_one():
    table = export_block_table(make_two_requests(), [0, 1], FULL, padding=-1)
    assert table.block_table.tolist() == [[0, 1, 2], [3, 4, -1]]


def test_flex_attention_gets_both_directions():
    tables = export_flex(make_two_requests(), [0, 1], FULL, width=4)
    assert tables.page_table.tolist() == [[0, 1, 2, -1], [3, 4, -1, -1]]
    assert tables.physical_to_logical.shape == (2, 16)
    assert tables.physical_to_logical[:, :6].tolist() == [[0, 1, 2, -1, -1, -1], [-1, -1, -1, 0, 1, -1]]
    for row, pages in enumerate(tables.page_table):
        for logical, page in enumerate(pages):
            assert page < 0 or tables.physical_to_logical[row, page] == logical


def test_slot_mapping_says_where_new_tokens_go():
    manager = make_two_requests()
    manager.add_token(1)  # the ninth token opens a block in slot 5
    mapping = export_slot_mapping(manager, [0, 1], FULL, [3, 1])
    assert mapping.tolist() == [1 * 4 + 2, 1 * 4 + 3, 2 * 4 + 0, 5 * 4 + 0]
    assert mapping.dtype == np.int64
    assert export_slot_mapping(manager, [0, 1], FULL, [0, 0]).tolist() == []


def test_shorter_lengths_show_a_prompt_that_is_computed_in_chunks():
    manager = make_two_requests()
    tables = export_flashinfer(manager, [0, 1], FULL, kv_lens=[5, 0])
    assert tables.kv_indptr.tolist() == [0, 2, 2]
    assert tables.kv_indices.tolist() == [0, 1]
    assert tables.kv_last_page_len.tolist() == [1, 0]
    assert export_slot_mapping(manager, [0], FULL, [5], kv_lens=[5]).tolist() == [0, 1, 2, 3, 4]
    assert export_block_table(manager, [1], FULL, kv_lens=[0]).block_table.shape == (1, 0)


def test_beams_follow_one_another():
    manager = make_kv_cache_manager(16)
    add(manager, make_request(0, 6, beam_width=2))
    add(manager, make_request(1, 4))
    table = export_block_table(manager, [0, 1], FULL, padding=-1)
    assert table.block_table.tolist() == [[0, 1], [0, 2], [3, -1]]
    assert table.seq_lens.tolist() == [6, 6, 4]
    assert export_slot_mapping(manager, [0, 1], FULL, [1, 2]).tolist() == [1 * 4 + 1, 2 * 4 + 1, 3 * 4 + 2, 3 * 4 + 3]


def test_an_empty_batch_gives_empty_tables():
    manager = make_two_requests()
    assert export_flashinfer(manager, [], FULL).kv_indptr.tolist() == [0]
    assert export_block_table(manager, [], FULL).block_table.shape == (0, 0)
    assert export_slot_mapping(manager, [], FULL, []).shape == (0,)
    assert export_flex(manager, [], FULL).page_table.shape == (0, 0)


# -- sliding windows ----------------------------------------------------------------------------------------


def make_sliding(num_tokens: int = 12, num_decoded: int = 4):
    manager = make_kv_cache_manager(windows={8: (20, 0), FULL: (20, 0)})
    finish_prompt(add(manager, make_request(0, num_tokens)))
    for _ in range(num_decoded):
        manager.add_token(0)
    return manager


def test_pages_that_left_the_window_are_not_shown():
    manager = make_sliding()
    assert manager.get_cache_block_ids(0, 8)[0] == [0, 1, 2, 0]  # block 0 left the window, and nobody can find it
    assert export_flashinfer(manager, [0], 8).kv_indices.tolist() == [2, 0]
    assert export_flashinfer(manager, [0], 8).kv_last_page_len.tolist() == [4]
    assert export_block_table(manager, [0], 8, padding=-1).block_table.tolist() == [[-1, -1, 2, 0]]
    assert export_block_table(manager, [0], 8).seq_lens.tolist() == [16]
    flex = export_flex(manager, [0], 8)
    assert flex.page_table.tolist() == [[-1, -1, 2, 0]]
    assert flex.physical_to_logical[0, :5].tolist() == [3, -1, 2, -1, -1]
    assert export_block_table(manager, [0], FULL).block_table.tolist() == [[0, 1, 2, 3]]


def test_positions_never_loaded_are_not_shown():
    manager = make_kv_cache_manager(windows={8: (20, 0)}, enable_partial_reuse=False)
    request = prefill(manager, make_request(0, 24))
    manager.remove_sequence(0, request)
    manager.block_manager.get_block_by_id(1, 8).detach_from_lookup_node()
    add(manager, make_request(1, 26))
    table = export_block_table(manager, [1], 8, padding=-1).block_table.tolist()
    assert table[0][:3] == [-1, -1, 2]  # block 0 is held but lies before the hole
    assert export_flashinfer(manager, [1], 8).kv_indices.tolist() == table[0][2:]


# -- arrays given by the caller -------------------------------------------------------------------------------


def test_given_arrays_are_filled_and_their_rest_left_alone():
    manager = make_two_requests()
    arrays = FlashInferTables(*(np.full(12, -9, np.int32) for _ in range(3)))
    tables = export_flashinfer(manager, [0, 1], FULL, out=arrays)
    assert [len(array) for array in tables] == [3, 5, 2]
    assert all(np.shares_memory(view, array) for view, array in zip(tables, arrays, strict=True))
    assert (arrays.kv_indices[5:] == -9).all()
    assert (arrays.kv_indptr[3:] == -9).all()

    out = BlockTable(np.full((4, 6), -9, np.int32), np.full(4, -9, np.int32))
    table = export_block_table(manager, [0, 1], FULL, out=out)
    assert table.block_table.tolist() == [[0, 1, 2, 0, 0, 0], [3, 4, 0, 0, 0, 0]]
    assert (out.block_table[2:] == -9).all()
    assert out.seq_lens.tolist() == [9, 8, -9, -9]

    slots = np.full(6, -9, np.int64)
    assert export_slot_mapping(manager, [0, 1], FULL, [1, 2], out=slots).tolist() == [8, 18, 19]
    assert slots.tolist() == [8, 18, 19, NO_SLOT, NO_SLOT, NO_SLOT]


def int32(*shape: int) -> np.ndarray:
    return np.full(shape, -9, np.int32)


def export_into(manager, out):
    if isinstance(out, FlashInferTables):
        return export_flashinfer(manager, [0, 1], FULL, out=out)
    if isinstance(out, BlockTable):
        return export_block_table(manager, [0, 1], FULL, out=out)
    return export_slot_mapping(manager, [0, 1], FULL, [1, 2], out=out)


@pytest.mark.parametrize(
    "out",
    [
        FlashInferTables(int32(2), int32(5), int32(2)),
        FlashInferTables(int32(3), int32(4), int32(2)),
        FlashInferTables(int32(3), int32(5), int32(1)),
        FlashInferTables(int32(3), int32(5).astype(np.int64), int32(2)),
        FlashInferTables(int32(3), int32(1, 5), int32(2)),
        BlockTable(int32(2, 2), int32(2)),
        BlockTable(int32(1, 3), int32(2)),
        BlockTable(int32(2, 3), int32(1)),
        BlockTable(int32(2, 3).astype(np.int64), int32(2)),
        np.full(2, -9, np.int64),
        np.full(3, -9, np.int32),
    ],
    ids=str,
)
def test_arrays_that_are_too_small_are_left_alone(out):
    manager = make_two_requests()
    with pytest.raises(InvalidInputError, match="at least"):
        export_into(manager, out)
    arrays = [out] if isinstance(out, np.ndarray) else out
    assert all((array == -9).all() for array in arrays)


def test_a_width_that_is_too_small_is_refused():
    with pytest.raises(InvalidInputError, match="2 rows of 3 columns"):
        export_block_table(make_two_requests(), [0, 1], FULL, width=2)
    with pytest.raises(InvalidInputError, match="2 rows of 3 columns"):
        export_flex(make_two_requests(), [0, 1], FULL, width=2)


# -- errors ------------------------------------------------------------------------------------------------------


def test_wrong_input_is_named():
    manager = make_two_requests()
    with pytest.raises(UnknownIdError, match="request 9"):
        export_flashinfer(manager, [0, 9], FULL)
    with pytest.raises(UnknownIdError, match="window 5"):
        export_flashinfer(manager, [0], 5)
    with pytest.raises(InvalidInputError, match="1 lengths for 2 requests"):
        export_flashinfer(manager, [0, 1], FULL, kv_lens=[4])
    with pytest.raises(InvalidInputError, match="13 tokens do not fit"):
        export_block_table(manager, [0], FULL, kv_lens=[13])
    with pytest.raises(InvalidInputError, match="-1 tokens do not fit"):
        export_block_table(manager, [0], FULL, kv_lens=[-1])
    with pytest.raises(InvalidInputError, match="1 counts of new tokens for 2 requests"):
        export_slot_mapping(manager, [0, 1], FULL, [1])
    with pytest.raises(InvalidInputError, match="10 new tokens in a row of 9"):
        export_slot_mapping(manager, [0], FULL, [10])
    with pytest.raises(InvalidInputError, match="8 left the window"):
        export_slot_mapping(make_sliding(), [0], 8, [9])


def test_recurrent_states_have_no_pages():
    manager = make_kv_cache_manager(
        windows={RECURRENT_STATES: (8, 0), FULL: (16, 0)},
        enable_partial_reuse=False,
        linear_attention_metadata=make_linear_attention(),
    )
    add(manager, make_request(0, 6))
    with pytest.raises(InvalidInputError, match="no pages"):
        export_flashinfer(manager, [0], RECURRENT_STATES)
    assert export_flashinfer(manager, [0], FULL).kv_indices.tolist() == [0, 1]


def test_pages_and_slots_address_the_buffers_of_every_layer():
    """Written through the slot mapping, read through the page table."""
    torch = pytest.importorskip("torch")
    manager = make_kv_cache_manager(16)
    for request_id, prompt_len in ((0, 9), (1, 6)):
        add(manager, make_request(request_id, [100 * request_id + token for token in range(prompt_len)]))
    manager.allocate_pools()
    keys = manager.get_buffers(0, "NHD")[:, 0]  # [pages, tokens per block, heads, head size]
    slots = torch.from_numpy(export_slot_mapping(manager, [0, 1], FULL, [9, 6]))
    tokens = [
        token for request_id, count in ((0, 9), (1, 6)) for token in range(100 * request_id, 100 * request_id + count)
    ]
    keys[slots // 4, slots % 4] = torch.tensor(tokens, dtype=keys.dtype)[:, None, None]
    table = export_block_table(manager, [0, 1], FULL)
    for row, (first, count) in enumerate(((0, 9), (100, 6))):
        pages = torch.from_numpy(table.block_table[row]).long()
        assert keys[pages].reshape(-1)[: table.seq_lens[row]].tolist() == list(range(first, first + count))


# -- every layout reads the tokens of its requests ---------------------------------------------------------------


class TableReader(FakeServer):
    """After every action the tables of all running requests are read back from the fake memory."""

    def check(self) -> None:
        super().check()
        requests = [request for request in self.running.values() if request.context_current_position]
        kv_lens = [
            r.context_current_position if r.context_remaining_length else r.get_num_tokens(0) - 1 for r in requests
        ]
        for window in self.model.windows:
            self.check_window(window, requests, kv_lens)

    def check_window(self, window, requests, kv_lens) -> None:
        width = self.manager.tokens_per_block
        ids = [request.request_id for request in requests]
        ragged = export_flashinfer(self.manager, ids, window, kv_lens=kv_lens)
        table = export_block_table(self.manager, ids, window, kv_lens=kv_lens, padding=-1)
        flex = export_flex(self.manager, ids, window, kv_lens=kv_lens)
        assert np.array_equal(flex.page_table, table.block_table)
        for row, (request, kv_len) in enumerate(zip(requests, kv_lens, strict=True)):
            pages = ragged.kv_indices[ragged.kv_indptr[row] : ragged.kv_indptr[row + 1]].tolist()
            num_pages = -(-kv_len // width)
            first_page = num_pages - len(pages)
            assert kv_len == (num_pages - 1) * width + ragged.kv_last_page_len[row]
            assert table.block_table[row, first_page:num_pages].tolist() == pages
            assert (table.block_table[row, :first_page] == -1).all()
            expected = digests(request)
            first = max(0, kv_len + 1 - window)
            assert first >= first_page * width
            for position in range(first, kv_len):
                content = self.memory.slots[window, pages[position // width - first_page]]
                assert content[position % width] == expected[position + 1]
            self.num_read = getattr(self, "num_read", 0) + kv_len - first


@pytest.mark.parametrize("windows", [(40,), (8,), (7, 40)])
def test_every_layout_reads_the_tokens_of_its_requests(windows):
    memory = FakeMemory()
    manager = make_kv_cache_manager(windows=dict.fromkeys(windows, (20, 4)), max_sequence_length=40, copy_engine=memory)
    server = TableReader(manager, memory, Random(5))
    server.run(120, 30, 38)
    assert server.num_read > 1000
