"""Recurrent states by default: what is cached is the state it says, and no sequence ever loses its own."""

from __future__ import annotations

import re
from collections import Counter
from itertools import product
from random import Random

import pytest

from tests.builders import add, finish_prompt, make_kv_cache_manager, make_linear_attention, make_request
from tests.fake_memory import FakeMemory, cached_blocks, digests
from tests.shapes.fake_model import FakeModel
from tests.shapes.fake_server import FakeServer, check_free_counts
from trtkv import KVCacheManager, LlmRequest
from trtkv.common import RECURRENT_STATES
from trtkv.errors import InvalidInputError, OutOfBlocksError
from trtkv.records.kv_cache_index import NULL_ENTRY
from trtkv.records.linear_attention import LinearAttentionMetadata
from trtkv.records.llm_request import LlmRequestState

FULL = 64


def make_hybrid(
    memory: FakeMemory | None = None,
    *,
    num_states: int = 16,
    num_blocks: int = 64,
    interval: int = 8,
    save_last_snapshot: bool = False,
    **options: object,
) -> KVCacheManager:
    """One layer of full attention and one of recurrent states, blocks of four tokens."""
    num_placeholder_blocks = options.pop("num_placeholder_blocks", None)
    return make_kv_cache_manager(
        windows={RECURRENT_STATES: (num_states, 0), FULL: (num_blocks, 0)},
        enable_partial_reuse=False,
        copy_engine=memory,
        linear_attention_metadata=make_linear_attention(
            states_snapshot_interval=interval,
            save_last_snapshot=save_last_snapshot,
            num_placeholder_blocks=num_placeholder_blocks,
        ),
        **options,
    )


def make_server(manager: KVCacheManager, memory: FakeMemory) -> FakeServer:
    return FakeServer(manager, memory, Random(0))


def admit(server: FakeServer, prompt: list[int], beam_width: int = 1) -> LlmRequest:
    (request,) = server.admit([prompt], beam_width)
    return request


def prefill(server: FakeServer, request: LlmRequest, *ends: int) -> None:
    """Compute the prompt in steps that end at these tokens and at its end, then offer it for reuse."""
    for end in (*ends, request.prompt_len):
        server.compute_chunk(request, end)
    server.manager.store_context_blocks(request)
    server.check()


def state_blocks(manager: KVCacheManager, request: LlmRequest, beam: int = 0) -> list[int]:
    return manager.get_cache_block_ids(request.request_id, RECURRENT_STATES)[beam]


def which_are_real(manager: KVCacheManager, request: LlmRequest) -> list[bool]:
    return [block_id >= 0 for block_id in state_blocks(manager, request)]


# -- random programs ------------------------------------------------------------------------------


def make_random_server(seed: int, max_drafts: int, compatibility: bool = False) -> tuple[FakeServer, int]:
    """A server of random shape, and its most beams."""
    rng = Random(seed)
    memory = FakeMemory()
    tokens_per_block = rng.choice((2, 4))
    beam_width = rng.choice((1, 1, 2, 3))
    num_secondary = rng.choice((0, 4))
    blocks = {RECURRENT_STATES: (rng.choice((8, 14, 30)), num_secondary), 40: (rng.choice((20, 40)), num_secondary)}
    if rng.random() < 0.3 and beam_width == 1:
        blocks[6] = (20, 0)
    manager = make_kv_cache_manager(
        windows=blocks,
        tokens_per_block=tokens_per_block,
        max_sequence_length=40,
        enable_partial_reuse=False,
        enable_block_reuse=rng.random() < 0.85,
        copy_engine=memory,
        linear_attention_metadata=LinearAttentionMetadata(
            states_snapshot_interval=rng.choice((0, 1, 2, 3)) * tokens_per_block,
            save_last_snapshot=rng.random() < 0.5,
            num_placeholder_blocks=rng.choice((None, 60)),
        ),
        compatibility=compatibility,
    )
    if not compatibility:
        manager.set_spec_decoding_budget(0, max_drafts)
    return FakeServer(manager, memory, rng), beam_width


@pytest.mark.parametrize("max_drafts", [0, 3])
@pytest.mark.parametrize("first_seed", range(0, 40, 10))
def test_every_cached_state_is_that_after_its_tokens(first_seed, max_drafts):
    for seed in range(first_seed, first_seed + 10):
        server, beam_width = make_random_server(seed, max_drafts)
        server.run(120, 24, 36, beam_width, max_drafts)


def test_random_programs_reach_what_they_are_about():
    events: Counter[str] = Counter()
    for seed in range(12):
        server, beam_width = make_random_server(seed, 3)
        server.run(120, 24, 36, beam_width, 3)
        events.update(server.events)
    for name in ("prepopulated", "state_copies", "rewinds", "paused", "refused", "whole_prompts", "truncations"):
        assert events[name] > 5, name


def test_the_recorded_behaviour_serves_wrong_states():
    """The check notices the faults that only compatibility mode repeats."""
    num_wrong = 0
    for seed in range(12):
        server, beam_width = make_random_server(seed, 0, compatibility=True)
        try:
            server.run(120, 24, 36, beam_width, 0)
        except AssertionError as error:
            num_wrong += bool(re.search(r"window -2147483647|state", str(error)))
    assert num_wrong > 3


# -- a live state is never a snapshot ---------------------------------------------------------------


@pytest.mark.parametrize("save_last_snapshot", [False, True])
def test_a_prompt_that_ends_a_block_keeps_its_snapshot_while_decoding_goes_on(save_last_snapshot):
    memory = FakeMemory()
    manager = make_hybrid(memory, interval=0, save_last_snapshot=save_last_snapshot)
    server = make_server(manager, memory)
    first = admit(server, [1, 2, 3, 4, 5, 6, 7, 8])
    prefill(server, first)
    snapshot = state_blocks(manager, first)[1]
    for _ in range(9):
        server.decode(first)
        server.check()
    assert state_blocks(manager, first)[1] == snapshot
    assert state_blocks(manager, first)[-1] != snapshot

    second = admit(server, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert second.prepopulated_prompt_len == 8
    assert state_blocks(manager, second)[1] == snapshot
    server.compute_chunk(second, 9)  # fails if the state is not that after 8 tokens


def test_the_recorded_behaviour_overwrites_that_snapshot():
    memory = FakeMemory()
    manager = make_hybrid(memory, interval=0, compatibility=True)
    server = make_server(manager, memory)
    first = admit(server, [1, 2, 3, 4])
    prefill(server, first)
    server.decode(first)
    with pytest.raises(AssertionError, match="cached for"):
        memory.check_tree(manager)


def test_a_new_live_block_receives_the_state():
    memory = FakeMemory()
    manager = make_hybrid(memory, interval=0, save_last_snapshot=True)
    server = make_server(manager, memory)
    request = admit(server, [1, 2, 3, 4])
    prefill(server, request)
    (snapshot,) = state_blocks(manager, request)
    manager.add_token(request.request_id)
    live = state_blocks(manager, request)[-1]
    (copy,) = memory.copies
    assert (copy.src_block_id, copy.dst_block_id, copy.num_tokens) == (snapshot, live, 4)
    assert manager.copy_linear_attention_block(request) is False  # nothing is left to copy


def test_every_beam_receives_the_state_behind_an_aligned_prompt():
    for reuse, save_last_snapshot in product((False, True), repeat=2):
        memory = FakeMemory()
        manager = make_hybrid(memory, save_last_snapshot=save_last_snapshot, enable_block_reuse=reuse)
        server = make_server(manager, memory)
        request = admit(server, [1, 2, 3, 4, 5, 6, 7, 8], 3)
        prefill(server, request)
        for _ in range(9):
            assert server.decode(request)
        assert len({ids[-1] for ids in manager.get_cache_block_ids(request.request_id, RECURRENT_STATES)}) == 3


@pytest.mark.parametrize("reuse", [False, True])
def test_every_beam_receives_the_state_of_a_prompt_that_ends_inside_a_block(reuse):
    """The prompt is computed once, into beam 0's block."""
    memory = FakeMemory()
    manager = make_hybrid(memory, enable_block_reuse=reuse)
    server = make_server(manager, memory)
    request = admit(server, [1, 2, 3, 4, 5, 6], 3)
    prefill(server, request)
    for step in range(6):
        assert server.decode(request)
        assert server.events["state_copies"] == 1, step


def test_a_request_about_to_complete_keeps_its_live_state():
    """In that stage the recorded rule copies the snapshot of the prompt over the live state."""
    memory = FakeMemory()
    manager = make_hybrid(memory, save_last_snapshot=True)
    server = make_server(manager, memory)
    request = admit(server, [1, 2, 3, 4])
    prefill(server, request)
    server.decode(request)
    manager.add_token(request.request_id)
    request.set_state(LlmRequestState.GENERATION_TO_COMPLETE)
    num_copies = len(memory.copies)
    assert manager.copy_linear_attention_block(request) is False
    assert len(memory.copies) == num_copies


def test_a_snapshot_stored_while_decoding_stays_as_well():
    memory = FakeMemory()
    manager = make_hybrid(memory, interval=0)
    server = make_server(manager, memory)
    request = admit(server, [1, 2, 3])
    prefill(server, request)
    while request.get_num_tokens(0) < 9:
        server.decode(request)
    manager.store_context_blocks(request)  # eight tokens are computed: the live state is that after 8
    live = state_blocks(manager, request)[-1]
    server.decode(request)
    assert state_blocks(manager, request)[-1] != live
    server.check()
    tokens = list(request.get_tokens(0))
    server.remove(request)
    follower = admit(server, [*tokens[:8], 5, 5])
    assert follower.prepopulated_prompt_len == 8


# -- snapshots are where steps ended ------------------------------------------------------------------


def test_a_step_over_a_snapshot_position_leaves_none_there():
    memory = FakeMemory()
    manager = make_hybrid(memory, interval=4)
    server = make_server(manager, memory)
    request = admit(server, list(range(14)))
    assert which_are_real(manager, request) == [True, True, True, True]
    prefill(server, request)  # one step over all snapshot positions
    assert [len(tokens) for tokens, _ in cached_blocks(manager, RECURRENT_STATES)] == []

    request = admit(server, list(range(14)))
    assert request.prepopulated_prompt_len == 0


@pytest.mark.parametrize(("ends", "stored"), [((4, 8, 12), [4, 8, 12]), ((4,), [4]), ((4, 8), [4, 8])])
def test_snapshots_are_stored_where_steps_ended(ends, stored):
    memory = FakeMemory()
    manager = make_hybrid(memory, interval=4)
    server = make_server(manager, memory)
    request = admit(server, list(range(14)))
    model = FakeModel(manager, memory)
    for first, last in zip((0, *ends), (*ends, 14), strict=True):
        manager.copy_linear_attention_block(request)
        tokens = [request.get_tokens(0)]
        model.attend(request, tokens, first, last)
        slot = model.read_slots(request, RECURRENT_STATES)[0][(last - 1) // 4]
        memory.slot(RECURRENT_STATES, slot)[0] = digests(request)[last]
        request.set_context_current_position(last)
    request.add_new_token(1)
    finish_prompt(request)
    manager.store_context_blocks(request)
    memory.check_tree(manager)
    assert sorted(len(tokens) for tokens, _ in cached_blocks(manager, RECURRENT_STATES)) == stored


def test_without_calls_for_steps_every_snapshot_counts():
    """A simulation that never carries states has no steps to be told from."""
    manager = make_hybrid(interval=4)
    request = add(manager, make_request(0, 14))
    finish_prompt(request).add_new_token(1)
    manager.store_context_blocks(request)
    manager.remove_sequence(0)
    assert add(manager, make_request(1, 14)).prepopulated_prompt_len == 12


def test_steps_of_a_removed_request_are_forgotten():
    manager = make_hybrid(interval=4)
    request = add(manager, make_request(0, 14))
    manager.copy_linear_attention_block(request)
    manager.remove_sequence(0)
    request = add(manager, make_request(0, 14))
    finish_prompt(request).add_new_token(1)
    manager.store_context_blocks(request)
    assert len(list(cached_blocks(manager, RECURRENT_STATES))) == 3


def test_a_chunked_prompt_carries_its_state_over_snapshots():
    memory = FakeMemory()
    manager = make_hybrid(memory, interval=8)
    server = make_server(manager, memory)
    request = admit(server, list(range(23)))
    assert which_are_real(manager, request) == [False, True, False, True, False, True]
    prefill(server, request, 8, 16)
    ids = state_blocks(manager, request)
    assert [(copy.src_block_id, copy.dst_block_id) for copy in memory.copies] == [(ids[1], ids[3]), (ids[3], ids[5])]


# -- placeholders ----------------------------------------------------------------------------------------


def test_placeholders_behind_the_last_state_are_not_taken_over():
    """They could stand where the request needs memory for a state of its own."""
    memory = FakeMemory()
    manager = make_hybrid(memory, interval=8)
    server = make_server(manager, memory)
    first = admit(server, list(range(8)))
    prefill(server, first)
    while first.get_num_tokens(0) < 18:
        server.decode(first)
    manager.store_context_blocks(first)  # blocks 2 and 3 of the sequence are placeholders
    assert which_are_real(manager, first) == [False, True, False, False, True]

    second = add(manager, make_request(100, [*first.get_tokens(0)[:17], *range(7)]))
    assert second.prepopulated_prompt_len == 8
    assert which_are_real(manager, second) == [False, True, False, True, False, True]
    assert state_blocks(manager, second)[1] == state_blocks(manager, first)[1]
    assert state_blocks(manager, second)[2] != state_blocks(manager, first)[2]


def test_a_state_takes_the_place_of_a_placeholder_in_the_tree():
    memory = FakeMemory()
    manager = make_hybrid(memory, interval=8, save_last_snapshot=True)
    server = make_server(manager, memory)
    longer = admit(server, list(range(14)))  # states after 8 and 12 tokens
    prefill(server, longer, 8, 12)
    shorter = admit(server, list(range(6)))  # a state after 4, where the longer one has a placeholder
    prefill(server, shorter, 4)
    assert {len(tokens) for tokens, block in cached_blocks(manager, RECURRENT_STATES) if not block.is_placeholder} == {
        4,
        8,
        12,
    }
    server.remove(longer)
    server.remove(shorter)
    check_free_counts(manager)
    assert admit(server, list(range(6))).prepopulated_prompt_len == 4
    assert admit(server, list(range(14))).prepopulated_prompt_len == 12


def test_a_recycled_placeholder_does_not_cut_the_prefix():
    memory = FakeMemory()
    manager = make_hybrid(memory, interval=8, num_placeholder_blocks=6)
    server = make_server(manager, memory)
    first = admit(server, list(range(17)))
    prefill(server, first, 8, 16)
    server.remove(first)
    other = admit(server, [50 + token for token in range(25)])  # takes all free placeholders, cached ones included
    assert sum(not real for real in which_are_real(manager, other)) == 3
    another = admit(server, [80 + token for token in range(25)])
    assert sum(not real for real in which_are_real(manager, another)) == 3
    server.remove(other)
    placeholders = [block for _, block in cached_blocks(manager, RECURRENT_STATES) if block.is_placeholder]
    assert placeholders == []

    again = admit(server, list(range(17)))
    assert again.prepopulated_prompt_len == 16
    prefill(server, again)


def test_the_offset_table_shows_placeholders_as_such_while_decoding():
    memory = FakeMemory()
    manager = make_hybrid(memory, interval=0)
    server = make_server(manager, memory)
    request = admit(server, [1, 2])
    prefill(server, request)
    for _ in range(8):
        server.decode(request)
        (slots,) = server.model.read_slots(request, RECURRENT_STATES)
        assert [slot == NULL_ENTRY for slot in slots] == [block_id < 0 for block_id in state_blocks(manager, request)]
    assert which_are_real(manager, request) == [False, False, True]


# -- rewinding -------------------------------------------------------------------------------------------


def test_rewinding_over_a_kept_snapshot_keeps_the_live_block():
    memory = FakeMemory()
    manager = make_hybrid(memory, interval=0)
    server = make_server(manager, memory)
    request = admit(server, [1, 2, 3, 4])
    prefill(server, request)
    snapshot = state_blocks(manager, request)[0]
    for _ in range(3):
        manager.add_token(request.request_id)  # one token and two drafts
    live = state_blocks(manager, request)[-1]
    manager.rewind_kv_cache(request.request_id, 3)
    assert state_blocks(manager, request) == [live]
    (slots,) = server.model.read_slots(request, RECURRENT_STATES)
    assert slots == [manager.block_manager.get_block_by_id(live, RECURRENT_STATES).memory_pool_block_index]
    server.check()
    assert admit(server, [1, 2, 3, 4, 5]).prepopulated_prompt_len == 4  # the snapshot is still there
    assert snapshot != live


def test_rewinding_beyond_the_live_state_changes_nothing():
    manager = make_hybrid()
    request = add(manager, make_request(0, 6))
    before = manager.get_cache_block_ids(0, RECURRENT_STATES), manager.get_cache_block_ids(0, FULL)
    with pytest.raises(InvalidInputError, match="no recurrent state"):
        manager.rewind_kv_cache(request.request_id, 6)
    assert manager.get_token_count(0) == 6
    assert (manager.get_cache_block_ids(0, RECURRENT_STATES), manager.get_cache_block_ids(0, FULL)) == before


# -- budgets ---------------------------------------------------------------------------------------------


def grid():
    return product(range(1, 26), (0, 4, 8, 12), (False, True), (False, True), (1, 3))


def test_budgets_count_the_states_that_are_taken():
    for prompt_len, interval, save_last_snapshot, reuse, beam_width in grid():
        manager = make_hybrid(
            interval=interval, save_last_snapshot=save_last_snapshot, enable_block_reuse=reuse, num_states=32
        )
        request = make_request(0, prompt_len, beam_width=beam_width)
        needed = manager.get_needed_blocks_one_step(request, False, RECURRENT_STATES)
        remaining = manager.get_remaining_blocks_to_completion(request, RECURRENT_STATES)
        add(manager, request)
        taken = 32 - manager.num_free_blocks_per_window_size[RECURRENT_STATES]
        to_come = manager.get_remaining_blocks_to_completion(request, RECURRENT_STATES)
        finish_prompt(request).add_new_tokens([[1]] * beam_width)
        manager.store_context_blocks(request)
        assert manager.get_needed_blocks_one_step(request, False, RECURRENT_STATES) == to_come
        for _ in range(9):
            manager.add_token(0)
        at_end = 32 - manager.num_free_blocks_per_window_size[RECURRENT_STATES]
        where = (prompt_len, interval, save_last_snapshot, reuse, beam_width)
        assert needed == remaining == at_end == taken + to_come, where
        assert manager.get_remaining_blocks_to_completion(request, RECURRENT_STATES) == 0
        assert manager.get_needed_blocks_one_step(request, True, RECURRENT_STATES) == 0


def test_what_the_budget_allows_can_be_added_and_decoded():
    for prompt_len, interval, save_last_snapshot, reuse, beam_width in grid():
        metadata = make_linear_attention(states_snapshot_interval=interval, save_last_snapshot=save_last_snapshot)
        count = metadata.count_states(prompt_len, 4, reuse, beam_width)
        options = {"interval": interval, "save_last_snapshot": save_last_snapshot, "enable_block_reuse": reuse}
        manager = make_hybrid(num_states=count, **options)
        request = finish_prompt(add(manager, make_request(0, prompt_len, beam_width=beam_width)))
        request.add_new_tokens([[1]] * beam_width)
        manager.store_context_blocks(request)
        manager.add_token(0)
        assert manager.num_free_blocks_per_window_size[RECURRENT_STATES] == 0


def test_one_state_too_few_is_refused_and_nothing_is_taken():
    manager = make_hybrid(num_states=2, interval=4)
    with pytest.raises(OutOfBlocksError, match="too few free blocks"):
        add(manager, make_request(0, 10))
    assert manager.num_free_blocks_per_window_size == {RECURRENT_STATES: 2, FULL: 64}
    assert not manager.sequences
    add(manager, make_request(0, 7))
    assert manager.num_free_blocks_per_window_size[RECURRENT_STATES] == 0


def test_too_few_placeholders_are_refused_and_nothing_is_taken():
    manager = make_hybrid(num_placeholder_blocks=2, interval=0)
    with pytest.raises(OutOfBlocksError, match="placeholders"):
        add(manager, make_request(0, 16))
    assert manager.num_free_blocks_per_window_size == {RECURRENT_STATES: 16, FULL: 64}
    add(manager, make_request(0, 12))
    with pytest.raises(OutOfBlocksError, match="0 placeholders"):
        manager.add_token(0)
    assert manager.get_token_count(0) == 12


def test_largest_batch_is_limited_by_states():
    manager = make_hybrid(num_states=16, interval=8, max_beam_width=1)
    assert manager.get_max_capacity_batch_size(16, 8) == 16 // 3
    assert manager.get_max_capacity_batch_size(10, 8) == 16 // 2


# -- beside sliding windows --------------------------------------------------------------------------------


def test_a_state_is_taken_at_the_length_that_all_windows_have():
    """States after 8 and 16 tokens. Window 6 lacks block 2, so it has 8 tokens, or 20 and more, but not 16."""
    memory = FakeMemory()
    manager = make_kv_cache_manager(
        windows={RECURRENT_STATES: (16, 0), 6: (20, 0), FULL: (20, 0)},
        enable_partial_reuse=False,
        copy_engine=memory,
        linear_attention_metadata=make_linear_attention(),
    )
    server = make_server(manager, memory)
    first = admit(server, list(range(30)))
    prefill(server, first, 8, 16, 24)
    server.remove(first)
    for window, length in ((6, 12), (RECURRENT_STATES, 24)):
        (block,) = [block for tokens, block in cached_blocks(manager, window) if len(tokens) == length]
        block.detach_from_lookup_node()
    cached = {len(tokens): block.block_id for tokens, block in cached_blocks(manager, RECURRENT_STATES)}

    second = admit(server, list(range(30)))
    assert second.prepopulated_prompt_len == 8
    assert state_blocks(manager, second)[1] == cached[8]
    assert state_blocks(manager, second)[3] != cached[16]
    prefill(server, second, 16, 24)
