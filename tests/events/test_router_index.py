"""The router's index: who holds how much of a prompt, compared with the managers it listens to."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.events.router_lookups import FORMS, compare_lookups
from tests.events.test_event_recovery import run_program
from tests.events.test_kv_cache_event_consumer import make_removed, make_stored
from trtkv import LlmRequest
from trtkv.common import RECURRENT_STATES
from trtkv.errors import InvalidInputError
from trtkv.events.block_holders import BlockHolders
from trtkv.events.router_index import RouterIndex, WorkerRank

LEFT, RIGHT = WorkerRank("left"), WorkerRank("right")


@pytest.mark.parametrize("first_seed", range(0, 24, 8))
def test_look_ups_give_what_the_managers_say(first_seed: int) -> None:
    """tools/check_router_index.py runs 2,000 programs and 1,000 look-ups of each."""
    counts = sum((compare_lookups(seed, 100) for seed in range(first_seed, first_seed + 8)), Counter[str]())
    assert {counts[f"{form} lookups"] for form in FORMS} == {800}
    assert counts["non-empty"] > 0.2 * counts["lookups"]
    assert min(counts[f"{form} repaired"] for form in FORMS) > 0


def test_prefixes_of_many_holders_in_one_walk() -> None:
    holders = BlockHolders()
    for holder, chain in enumerate([[1, 2, 3], [1, 2], [2, 3], [1, 3], []]):
        holders.put(holder, chain)
    assert holders.count_prefixes([1, 2, 3, 4]) == {0: 3, 1: 2, 3: 1}
    assert holders.count_prefixes([]) == {}
    assert holders.count_prefixes([9, 1]) == {}
    assert [holders.count(holder) for holder in range(5)] == [3, 2, 2, 2, 0]


def test_holder_stays_until_the_last_block_of_a_hash_is_gone() -> None:
    holders = BlockHolders()
    holders.put(0, [1, 1, 1])
    holders.put(1, [1])
    assert holders.discard(0, [1, 1]) == 0
    assert holders.has(0, 1)
    assert holders.discard(0, [1, 1, 2]) == 2
    assert not holders.has(0, 1)
    assert holders.has(1, 1)
    holders.put(1, [1])
    holders.clear(1)
    assert len(holders) == 0
    holders.put(1, [1])
    assert holders.discard(1, [1]) == 0  # the second block was forgotten with the first
    assert len(holders) == 0


def test_worker_that_is_gone_leaves_room_for_another() -> None:
    index = RouterIndex(4)
    for worker in ("left", "right"):
        index.apply(worker, [make_stored(0, None, 1, 2)])
    index.remove_worker("left")
    index.remove_worker("never heard of")
    assert index.workers == [RIGHT]
    index.apply("new", [make_stored(0, None, 1)])
    assert index.find([1, 2]) == {RIGHT: 8, WorkerRank("new"): 4}
    assert index.num_hashes == {64: 2}


def test_restart_gap_and_repeat_of_one_worker_leave_the_others_alone() -> None:
    index = RouterIndex(4)
    _, old = run_program(1, epoch=5)
    manager, new = run_program(2, epoch=6)
    index.apply("left", old)
    index.apply("right", old)
    num_right = {window: index.count_blocks(RIGHT, window) for window in index.num_hashes}
    index.apply("left", new[:10] + new[:10] + new[12:])
    assert index.needs_resync == [LEFT]
    index.apply("left", old)  # too late
    index.resync("left", manager.get_cached_block_events())
    assert index.needs_resync == []
    for window, window_manager in manager.block_manager.window_block_managers.items():
        cached = {block.hash for block in window_manager.matcher.list_blocks() if not block.is_placeholder}
        assert all(index.has(LEFT, window, block_hash) for block_hash in cached)
        assert index.count_blocks(LEFT, window) == len(cached)
    assert {window: index.count_blocks(RIGHT, window) for window in num_right} == num_right


def test_ranks_are_apart() -> None:
    index = RouterIndex(4)
    index.apply("left", [make_stored(0, None, 1)._replace(attention_dp_rank=rank) for rank in (0, 1)])
    index.apply("left", [make_removed(1, 1)._replace(attention_dp_rank=1)])
    assert index.find([1]) == {WorkerRank("left", 0): 4}
    assert index.count_unknown(WorkerRank("left", 1)) == 0
    index.apply("left", [make_removed(2, 1)._replace(attention_dp_rank=1)])
    assert index.count_unknown(WorkerRank("left", 1)) == 1
    with pytest.raises(InvalidInputError, match="snapshot of one rank"):
        index.resync("left", [make_stored(0, None, 1)._replace(attention_dp_rank=rank) for rank in (0, 1)])


def test_sliding_window_and_recurrent_states_may_lack_blocks() -> None:
    index = RouterIndex(4, max_sequence_length=64)
    index.store(LEFT, 64, [1, 2, 3, 4])
    index.store(LEFT, 8, [1, 3, 4])  # 2 is a hole that ends at token 8: found again from token 16 on
    index.store(RIGHT, 64, [1, 2, 3, 4])
    index.store(RIGHT, 8, [1, 3])
    assert index.find([1, 2, 3, 4]) == {LEFT: 16, RIGHT: 4}
    index.store(LEFT, RECURRENT_STATES, [1])
    assert index.find([1, 2, 3, 4]) == {LEFT: 4}


def test_last_token_is_never_looked_up_and_beams_do_not_share_the_last_block() -> None:
    index = RouterIndex(4)
    assert index.hash_request(LlmRequest(1, range(8), 4)).num_tokens == 7
    assert RouterIndex(4, enable_partial_reuse=False).hash_request(LlmRequest(1, range(8), 4)).num_tokens == 4
    assert len(index.hash_request(LlmRequest(1, range(8), 4)).block_hashes) == 2
    assert index.hash_request(LlmRequest(1, range(8), 4, beam_width=2)).num_tokens == 7
    assert index.hash_request(LlmRequest(1, range(7), 4, beam_width=2)).num_tokens == 4
    assert index.hash_request(LlmRequest(1, range(1), 4)) == ([], 0)
    assert index.find_request(LlmRequest(1, range(1), 4)) == {}


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="tokens_per_block"):
        RouterIndex(0)
    index = RouterIndex(4)
    with pytest.raises(InvalidInputError, match="2 hashes stand for 9 tokens"):
        index.find([1, 2], 9)
    with pytest.raises(InvalidInputError, match="no events"):
        index.resync("left", [])
