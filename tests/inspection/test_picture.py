"""Pictures of managers; the pages in docs/ show more of them."""

from __future__ import annotations

import pytest

from tests.builders import add, make_kv_cache_manager, make_linear_attention, make_request, prefill
from trtkv.common import RECURRENT_STATES
from trtkv.inspection.picture import draw, name_window


def test_an_empty_manager():
    assert draw(make_kv_cache_manager(3, 1)).splitlines() == ["cached: nothing", "free: 0..2", "free, host: 3"]


def test_requests_tree_and_free_blocks():
    manager = make_kv_cache_manager(8)
    first = prefill(manager, make_request(0, [1, 2, 3, 4, 5, 6, 7, 8, 9]))
    prefill(manager, make_request(1, [1, 2, 3, 4, 50, 60, 70, 80, 90], cache_salt=None))
    manager.remove_sequence(0, first)
    assert draw(manager).splitlines() == [
        "request 1: 0 3 4",
        "cached:",
        "  1 2 3 4        0*",
        "    5 6 7 8      1",
        "    50 60 70 80  3*",
        "free: 2 5..7 1",
    ]


def test_beams_stand_side_by_side():
    manager = make_kv_cache_manager(8)
    add(manager, make_request(0, 6, beam_width=2))
    assert draw(manager).splitlines()[0] == "request 0: 0 1 | 0 2"


def test_several_windows_and_blocks_that_slid_out():
    manager = make_kv_cache_manager(windows={8: (6, 0), 64: (6, 0)})
    request = prefill(manager, make_request(0, 12))
    request.add_new_token(1)
    manager.store_context_blocks(request)
    manager.add_token(0)
    lines = draw(manager).splitlines()
    assert lines[:2] == ["request 0, window 8: (0) 1 2 3", "request 0, window 64: 0 1 2 3"]
    assert lines[3] == "  1 2 3 4         window 8: 0    window 64: 0*"
    assert lines[-2:] == ["free, window 8: 4 5 0", "free, window 64: 4 5"]


def test_states_and_placeholders():
    manager = make_kv_cache_manager(
        windows={RECURRENT_STATES: (4, 0), 64: (8, 0)},
        enable_partial_reuse=False,
        linear_attention_metadata=make_linear_attention(),
    )
    prefill(manager, make_request(0, 10))
    assert draw(manager).splitlines() == [
        "request 0, states: . 0 1",
        "request 0, window 64: 0 1 2",
        "cached:",
        "  1 2 3 4    states: .    window 64: 0*",
        "    5 6 7 8  states: 0*   window 64: 1*",
        "free, states: 2 3",
        "free placeholders, states: -3..-9",
        "free, window 64: 3..7",
    ]
    assert name_window(RECURRENT_STATES) == "states"


def test_a_full_pool_has_no_free_blocks():
    manager = make_kv_cache_manager(2)
    add(manager, make_request(0, 8))
    assert draw(manager).splitlines()[-1] == "free: none"


def test_blocks_in_host_memory_are_marked():
    manager = make_kv_cache_manager(3, 3)
    request = prefill(manager, make_request(0, 9))
    manager.remove_sequence(0, request)
    add(manager, make_request(1, [50 + token for token in range(12)]))
    lines = draw(manager).splitlines()
    assert lines[2] == "  1 2 3 4    0h"


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([], "none"),
        ([4], "4"),
        ([4, 5], "4 5"),
        ([4, 5, 6], "4..6"),
        ([6, 5, 4, 9], "6..4 9"),
        ([1, 2, 3, 2, 1], "1..3 2 1"),
        ([5, 7, 9], "5 7 9"),
        ([0, 1, 2, 2, 3, 4], "0..2 2..4"),
    ],
)
def test_runs_of_ids_are_shortened(ids, text):
    from trtkv.inspection.picture import _draw_ids

    assert _draw_ids(ids) == text
