"""Sliding windows by default: every position that a token sees holds the right content, at every step."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.builders import add, make_kv_cache_manager, make_request, prefill
from tests.fake_memory import FakeMemory, cached_blocks
from tests.shapes.fake_server import FakeServer, check_free_counts
from trtkv import KVCacheManager

SHAPES = [(8,), (7,), (10, 40), (8, 40), (5, 12), (6, 9, 40), (40,)]
"""Windows of a model, multiples of the block and others; 40 is full attention."""


def make_random_server(seed: int, max_drafts: int, compatibility: bool = False) -> FakeServer:
    rng = Random(seed)
    memory = FakeMemory()
    num_secondary = rng.choice((0, 0, 4, 12))
    windows = rng.choice(SHAPES)
    manager = make_kv_cache_manager(
        windows={window: (rng.choice((14, 20, 40)), num_secondary) for window in windows},
        tokens_per_block=rng.choice((2, 3, 4)),
        max_sequence_length=40,
        enable_partial_reuse=rng.random() < 0.75,
        copy_on_partial_reuse=rng.random() < 0.6,
        enable_block_reuse=rng.random() < 0.9,
        copy_engine=memory,
        compatibility=compatibility,
    )
    if not compatibility:
        manager.set_spec_decoding_budget(0, max_drafts)
    return FakeServer(manager, memory, rng)


@pytest.mark.parametrize("max_drafts", [0, 3])
@pytest.mark.parametrize("first_seed", range(0, 50, 10))
def test_every_position_inside_the_window_reads_the_right_token(first_seed, max_drafts):
    for seed in range(first_seed, first_seed + 10):
        make_random_server(seed, max_drafts).run(120, 30, 38, max_drafts=max_drafts)


def test_random_programs_reach_what_they_are_about():
    events: Counter[str] = Counter()
    for seed in range(20):
        server = make_random_server(seed, 3)
        server.run(120, 30, 38, max_drafts=3)
        events.update(server.events)
        events.update(copy.kind for copy in server.memory.copies)
    for name in ("prepopulated", "rewinds", "paused", "refused", "truncations", "copy", "offload", "onboard"):
        assert events[name] > 5, name


def test_the_recorded_behaviour_stores_blocks_of_others():
    """The check notices what only compatibility mode does: recycled blocks are cached under foreign tokens."""
    num_wrong = 0
    for seed in range(20):
        try:
            make_random_server(seed, 0, compatibility=True).run(120, 30, 38)
        except AssertionError:
            num_wrong += 1
    assert num_wrong > 2


# -- several windows -----------------------------------------------------------------------------------


def cache_prompt(manager: KVCacheManager, num_tokens: int) -> list[int]:
    """Compute and store a prompt, and let go of it; nothing leaves a window before the first generated token."""
    request = prefill(manager, make_request(0, num_tokens))
    tokens = list(request.get_tokens(0))
    manager.remove_sequence(0, request)
    return tokens


def evict(manager: KVCacheManager, window: int, *positions: int, first_token: int = 1) -> None:
    """Take cached blocks of one window and one prompt out of the tree, by position."""
    for tokens, block in list(cached_blocks(manager, window)):
        if tokens[0] == first_token and (len(tokens) - 1) // manager.tokens_per_block in positions:
            block.detach_from_lookup_node()


def cached_lengths(manager: KVCacheManager, window: int) -> list[int]:
    return sorted(len(tokens) for tokens, _ in cached_blocks(manager, window))


def test_a_match_cut_by_a_narrower_window_is_looked_at_again():
    """At 32 tokens window 16 can do without block 0. At 16 tokens, all that window 6 has, it cannot."""
    for compatibility, prepopulated in ((True, 16), (False, 0)):
        manager = make_kv_cache_manager(
            windows={6: (20, 0), 16: (20, 0), 64: (20, 0)}, enable_partial_reuse=False, compatibility=compatibility
        )
        tokens = cache_prompt(manager, 32)
        evict(manager, 16, 0)
        evict(manager, 6, 4, 5, 6, 7)
        request = make_request(1, [*tokens, 99])
        if not compatibility:
            assert manager.probe_prefix_match_length(request) == prepopulated
        add(manager, request)
        assert request.prepopulated_prompt_len == prepopulated
        held = manager.get_cache_block_ids(1, 16)[0]
        assert (held[0] < 0) == compatibility  # the recorded behaviour leaves tokens 1 to 3 unreadable


def test_a_shorter_match_is_found_when_the_longer_one_is_cut():
    """Window 16 lacks blocks 0 and 6. It takes 24 tokens at most; window 6, which lacks 5, has 20: both agree on 20."""
    manager = make_kv_cache_manager(windows={6: (20, 0), 16: (20, 0), 64: (20, 0)}, enable_partial_reuse=False)
    tokens = cache_prompt(manager, 32)
    evict(manager, 16, 0, 6)
    evict(manager, 6, 5, 6, 7)
    request = add(manager, make_request(1, [*tokens, 99]))
    assert request.prepopulated_prompt_len == 20
    assert [block_id < 0 for block_id in manager.get_cache_block_ids(1, 16)[0][:5]] == [True] + [False] * 4


def test_only_the_cut_request_of_a_batch_is_looked_at_again():
    manager = make_kv_cache_manager(windows={6: (30, 0), 16: (30, 0), 64: (30, 0)}, enable_partial_reuse=False)
    tokens = cache_prompt(manager, 32)
    other = prefill(manager, make_request(5, [200 + token for token in range(24)]))
    manager.remove_sequence(5, other)
    evict(manager, 16, 0, first_token=200)
    evict(manager, 6, 5, first_token=200)
    evict(manager, 16, 0)
    evict(manager, 6, 4, 5, 6, 7)
    first = make_request(1, [*tokens, 99])
    second = make_request(2, [200 + token for token in range(24)])
    manager.add_sequence_batch([(1, 33, 1), (2, 24, 1)], [first, second])
    assert (first.prepopulated_prompt_len, second.prepopulated_prompt_len) == (0, 20)
    assert manager.get_cache_block_ids(1, 16)[0][0] >= 0
    assert manager.get_cache_block_ids(2, 16)[0][0] < 0


# -- drafts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reserve", "num_gone"), [(0, 2), (3, 1), (4, 1)])
def test_a_window_keeps_more_tokens_for_drafts(reserve, num_gone):
    manager = make_kv_cache_manager(windows={8: (10, 0)})
    manager.set_spec_decoding_budget(0, reserve)
    add(manager, make_request(0, 12))
    for _ in range(4):  # one token, three drafts
        manager.add_token(0)
    assert manager.sequences[0].get_num_front_blocks_removed(8) == num_gone
    manager.rewind_kv_cache(0, 3)
    # The next token is number 13, at position 13, and sees positions 6 to 12.
    assert (num_gone * 4 <= 6) == (reserve >= 3)


def test_without_a_reserve_drafts_push_tokens_out_that_are_still_seen():
    """The model reads what another sequence has written; with the reserve the same program reads right."""
    outcomes = {}
    for reserve in (0, 3):
        num_wrong = 0
        for seed in range(20):
            server = make_random_server(seed, 3)
            server.manager.set_spec_decoding_budget(0, reserve)
            try:
                server.run(120, 30, 38, max_drafts=3)
            except AssertionError:
                num_wrong += 1
        outcomes[reserve] = num_wrong
    assert outcomes[3] == 0
    assert outcomes[0] > 0


# -- rewinding ---------------------------------------------------------------------------------------------


def test_rewinding_into_a_partly_cached_block_takes_it_out_of_the_tree():
    manager = make_kv_cache_manager(8)
    request = prefill(manager, make_request(0, 7))
    request.add_new_token(8)
    manager.store_blocks_for_reuse(0, request)  # block 1 is cached for tokens 5, 6, 7
    assert cached_lengths(manager, 64) == [4, 7]
    manager.rewind_kv_cache(0, 1)  # six tokens are kept, the next one overwrites token 7
    assert cached_lengths(manager, 64) == [4]
    check_free_counts(manager)


def test_rewinding_to_what_a_block_is_cached_for_leaves_it():
    manager = make_kv_cache_manager(8)
    request = prefill(manager, make_request(0, 7))
    manager.store_blocks_for_reuse(0, request)  # block 1 is cached for tokens 5, 6
    manager.rewind_kv_cache(0, 1)
    assert cached_lengths(manager, 64) == [4, 6]


# -- hashes -------------------------------------------------------------------------------------------------


def test_hashes_of_a_sequence_with_holes_are_those_of_its_tokens():
    """They are the hashes that a sequence without holes has, and asking leaves the holes alone."""
    manager = make_kv_cache_manager(windows={8: (20, 0)}, enable_partial_reuse=False)
    tokens = cache_prompt(manager, 24)
    plain = make_request(1, [*tokens, 99])
    add(manager, plain)
    expected = manager.commit_and_get_block_hashes_for_request(plain, 8)
    manager.remove_sequence(1)
    evict(manager, 8, 0)
    holed = make_request(2, [*tokens, 99])
    add(manager, holed)
    assert manager.get_cache_block_ids(2, 8)[0][0] < 0
    assert manager.commit_and_get_block_hashes_for_request(holed, 8) == expected
    assert manager.sequences[2].get_window(8).held[0].hash == 0


def test_asking_for_hashes_does_not_rename_a_cached_block():
    manager = make_kv_cache_manager(8)
    request = prefill(manager, make_request(0, 7))
    request.add_new_token(8)
    manager.add_token(0)
    manager.store_blocks_for_reuse(0, request)
    (before,) = [block.block_key for tokens, block in cached_blocks(manager, 64) if len(tokens) == 7]
    manager.commit_and_get_block_hashes_for_request(request, 64)
    (block,) = [block for tokens, block in cached_blocks(manager, 64) if len(tokens) == 7]
    assert (block.block_key, block.is_full) == (before, False)
