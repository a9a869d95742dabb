"""A call that raises has changed nothing, and an error of a listener fails no call."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.builders import add, finish_prompt, make_kv_cache_manager, make_request, num_free, prefill, serve
from tests.snapshot import take_snapshot
from trtkv.errors import InvalidInputError, OutOfBlocksError
from trtkv.inspection.invariants import check_invariants


@pytest.mark.parametrize("second", [[90] * 4, [90] * 3])
def test_a_batch_without_room_for_all_evicts_nothing(second: list[int]) -> None:
    manager = make_kv_cache_manager(4)
    serve(manager, make_request(0, 4))  # one cached block
    for request_id, tokens in ((1, [80] * 4), (2, [90] * 4), (3, second)):
        finish_prompt(add(manager, make_request(request_id, tokens)))
    if len(second) == 3:
        manager.add_token(3)
    before = take_snapshot(manager)
    assert num_free(manager) <= 1
    with pytest.raises(OutOfBlocksError, match="too few for the next token of request"):
        manager.add_tokens([1, 2, 3])
    assert take_snapshot(manager) == before
    assert manager.get_kv_cache_stats().alloc_total_blocks == 4


def test_a_batch_with_a_sequence_that_is_full_evicts_nothing() -> None:
    manager = make_kv_cache_manager(12, max_sequence_length=16, window=16)
    serve(manager, make_request(0, 9))
    finish_prompt(add(manager, make_request(1, [80] * 4)))
    finish_prompt(add(manager, make_request(2, [90] * 16)))
    before = take_snapshot(manager)
    with pytest.raises(InvalidInputError, match="request 2 has 16 tokens, as many as block tables hold"):
        manager.add_tokens([1, 2])
    assert take_snapshot(manager) == before


def test_what_one_sequence_lets_go_of_the_next_may_take() -> None:
    manager = make_kv_cache_manager(7, window=8)
    for request_id in (1, 2):
        finish_prompt(add(manager, make_request(request_id, [request_id] * 12)))
    assert num_free(manager) == 1
    manager.add_tokens([1, 2])
    check_invariants(manager)


class Faulty:
    """A listener that fails in one of its methods."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_failures = 0

    def __getattr__(self, name: str) -> Any:
        def tell(*args: object) -> None:
            if name == self.name:
                self.num_failures += 1
                raise RuntimeError(name)

        return tell


@pytest.mark.parametrize("name", ["on_match", "on_allocation", "on_removed", "on_moved"])
def test_an_error_of_a_listener_fails_no_call(name: str, caplog: pytest.LogCaptureFixture) -> None:
    listener = Faulty(name)
    manager = make_kv_cache_manager(4, 3, block_listener=listener)
    twin = make_kv_cache_manager(4, 3)
    with caplog.at_level(logging.ERROR):
        for manager_ in (manager, twin):
            for request_id in range(12):
                serve(manager_, make_request(request_id, [request_id % 5] * 9), [7] * 3)
    assert listener.num_failures
    assert f"{name} of the block listener failed" in caplog.text
    check_invariants(manager)
    assert num_free(manager) == 4
    assert manager.get_kv_cache_stats() == twin.get_kv_cache_stats()


def test_a_sharer_in_a_sliding_window_waits_for_its_whole_prompt() -> None:
    """A would let go of a block that B reckons to share: both fit only if B needs none of it."""
    manager = make_kv_cache_manager(7, window=16)
    first = prefill(manager, make_request(0, 20, max_new_tokens=20))
    second = make_request(1, [*range(1, 13), 99], max_new_tokens=4)
    assert (num_free(manager), manager.get_needed_blocks_one_step(first, False, 16)) == (2, 0)
    assert manager.get_needed_blocks_one_step(second, False, 16) == 4


def test_a_paused_sharer_is_no_credit() -> None:
    manager = make_kv_cache_manager(8)
    prefill(manager, make_request(0, 9))
    request = make_request(1, 9)
    assert manager.get_needed_blocks_one_step(request, False, 64) == 1
    manager.start_scheduling()
    manager.scheduling_remove_sequence(0)
    assert manager.get_needed_blocks_one_step(request, False, 64) == 3
