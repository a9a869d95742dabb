"""What is cached is given up last, and only what can be found again is copied to the host."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.builders import (
    add,
    block_ids,
    decode,
    finish_prompt,
    make_kv_cache_manager,
    make_request,
    num_free,
    prefill,
    serve,
)
from trtkv.inspection.invariants import check_invariants
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest
from trtkv.records.retention_config import KvCacheRetentionConfig, TokenRangeRetentionConfig
from trtkv.transfers.copy_engine import OFFLOAD, RecordingCopyEngine


def count_offloads(engine: RecordingCopyEngine) -> int:
    return sum(copy.kind == OFFLOAD for copy in engine.copies)


def serve_in_turn(manager: KVCacheManager, prompts: Iterable[list[int]], num_rounds: int) -> list[int]:
    """Tokens found by each request of the later rounds; one token is generated."""
    found = []
    prompts = list(prompts)
    for turn in range(num_rounds):
        for index, prompt in enumerate(prompts):
            request = add(manager, make_request(len(prompts) * turn + index, prompt))
            finish_prompt(request)
            manager.store_context_blocks(request)
            manager.add_token(request.request_id)
            request.add_new_tokens([[7]])
            manager.remove_sequence(request.request_id, request)
            if turn:
                found.append(request.prepopulated_prompt_len)
        check_invariants(manager)
    return found


# -- blocks that nobody can find go first --------------------------------------------------------------


@pytest.mark.parametrize("compatibility", [False, True])
def test_prompts_that_fit_device_and_host_are_found_again(compatibility: bool) -> None:
    """The slot that onboarding empties is the next one to be filled; the original fills it last."""
    manager = make_kv_cache_manager(3, 8, compatibility=compatibility)
    prompts = [[1000 * n + t for t in range(8)] for n in range(4)]
    found = serve_in_turn(manager, prompts, 15)
    num_lost = sum(length < 7 for length in found)
    assert len(found) == 56
    assert (num_lost > 50) == compatibility
    assert num_lost == 0 or compatibility


@pytest.mark.parametrize("compatibility", [False, True])
def test_uncached_blocks_that_slide_out_are_taken_before_cached_ones(compatibility: bool) -> None:
    manager = make_kv_cache_manager(windows={8: (8, 0)}, compatibility=compatibility)
    serve(manager, make_request(1, range(100, 108)))
    probe = make_request(9, range(100, 108))
    assert manager.probe_prefix_match_length(probe) == 7
    live = finish_prompt(add(manager, make_request(2, range(200, 212))))
    for token in range(28):
        decode(manager, live, [token])
    assert num_free(manager) > 2
    assert (manager.probe_prefix_match_length(probe) == 7) != compatibility


def test_a_low_priority_does_not_cost_content_while_unused_blocks_are_free() -> None:
    manager = make_kv_cache_manager(6)
    low = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 0)], 0)
    serve(manager, make_request(1, range(10, 18), kv_cache_retention_config=low))
    add(manager, make_request(2, range(50, 58)))
    assert manager.probe_prefix_match_length(make_request(3, range(10, 18))) == 7
    assert not set(block_ids(manager, 2)) & {block.block_id for block in cached_blocks(manager)}


def test_a_high_priority_does_not_protect_what_was_never_cached() -> None:
    manager = make_kv_cache_manager(4)
    high = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 100)], 100)
    serve(manager, make_request(1, range(10, 18)))
    add(manager, make_request(2, range(50, 58), kv_cache_retention_config=high))
    manager.remove_sequence(2, None)  # cancelled: nothing is stored
    add(manager, make_request(3, range(70, 78)))
    assert manager.probe_prefix_match_length(make_request(4, range(10, 18))) == 7


def test_what_leaves_the_tree_while_it_is_free_goes_first() -> None:
    manager = make_kv_cache_manager(6)
    serve(manager, make_request(1, range(10, 22)))
    serve(manager, make_request(2, range(50, 58)))
    manager.truncate_blocks(list(range(50, 58)), 0)
    check_invariants(manager)
    add(manager, make_request(3, range(70, 78)))
    assert manager.probe_prefix_match_length(make_request(4, range(10, 22))) == 11
    manager.reset_reuse_state()
    check_invariants(manager)


def test_pins_of_what_is_not_cached_give_way_first() -> None:
    manager = make_kv_cache_manager(5)
    serve(manager, make_request(1, range(10, 18)))
    add(manager, make_request(2, range(50, 58)))
    manager.pin_blocks(2)
    ids = block_ids(manager, 2)
    manager.remove_sequence(2, None)
    manager.unpin_blocks_by_id(ids)
    check_invariants(manager)
    add(manager, make_request(3, range(70, 82)))
    assert manager.probe_prefix_match_length(make_request(4, range(10, 18))) == 7


def test_a_cached_block_that_is_cut_off_goes_last() -> None:
    manager = make_kv_cache_manager(6)
    request = prefill(manager, make_request(1, range(10, 18)))
    decode(manager, request, range(5))
    manager.store_blocks_for_reuse(1, request)
    generated = request.get_tokens(0)[8:].tolist()
    manager.rewind_kv_cache(1, 5)  # the third block is cached, and free now
    probe = make_request(9, [*range(10, 18), *generated[:5]])
    assert manager.probe_prefix_match_length(probe) == 12
    add(manager, make_request(2, range(70, 82)))
    assert manager.probe_prefix_match_length(probe) == 12
    check_invariants(manager)


def cached_blocks(manager: KVCacheManager) -> list:  # type: ignore[type-arg]
    return manager.block_manager.window_block_managers[64].matcher.list_blocks()


# -- only what can be found is copied to the host -----------------------------------------------------


def serve_groups(num_groups: int, *, compatibility: bool) -> tuple[float, int]:
    """Share of the prompt tokens that are found, and copies to the host, for groups of equal prompts."""
    engine = RecordingCopyEngine()
    manager = make_kv_cache_manager(
        160,
        160,
        window=256,
        max_sequence_length=256,
        max_num_sequences=64,
        copy_engine=engine,
        compatibility=compatibility,
    )
    asked = found = next_id = 0
    for turn in range(6):
        for group in range(num_groups):
            prompt = [1000 * group + t for t in range(24 + 8 * turn)]
            requests = [make_request(next_id + index, prompt) for index in range(8)]
            next_id += 8
            manager.add_sequence_batch([(r.request_id, r.prompt_len, 1) for r in requests], requests)
            for index, request in enumerate(requests):
                finish_prompt(request)
                manager.store_context_blocks(request)
                manager.add_token(request.request_id)
                request.add_new_tokens([[100_000 + index]])
            for request in requests:
                manager.remove_sequence(request.request_id, request)
                asked += request.prompt_len
                found += request.prepopulated_prompt_len
    return found / asked, count_offloads(engine)


@pytest.mark.parametrize(("num_groups", "least", "as_recorded"), [(20, 0.33, 0.16), (12, 0.757, 0.76)])
def test_copies_of_what_nobody_finds_push_nothing_out(num_groups: int, least: float, as_recorded: float) -> None:
    rate, num_offloads = serve_groups(num_groups, compatibility=False)
    recorded_rate, recorded_offloads = serve_groups(num_groups, compatibility=True)
    assert rate >= least
    assert recorded_rate < as_recorded
    assert num_offloads < recorded_offloads


def test_nothing_is_copied_to_the_host_without_reuse() -> None:
    engine = RecordingCopyEngine()
    manager = make_kv_cache_manager(4, 8, enable_block_reuse=False, copy_engine=engine)
    for request_id in range(20):
        serve(manager, make_request(request_id, range(100 * request_id, 100 * request_id + 8)))
    assert engine.copies == []


def test_offloading_by_hand_leaves_free_blocks_that_hold_nothing() -> None:
    engine = RecordingCopyEngine()
    manager = make_kv_cache_manager(4, 2, copy_engine=engine)
    request: LlmRequest = add(manager, make_request(1, 8))
    window = manager.block_manager.window_block_managers[64]
    free, held = window.get_block_by_id(3), window.get_block_by_id(0)
    window.claimer.offload_block(free)
    assert free.is_primary
    assert engine.copies == []
    window.claimer.offload_block(held)  # its sequence goes on with it
    assert not held.is_primary
    assert request.prompt_len == 8
