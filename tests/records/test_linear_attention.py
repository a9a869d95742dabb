"""Which blocks of a prompt keep a recurrent state, and how many that are."""

from __future__ import annotations

import pytest

from tests.builders import add, finish_prompt, make_kv_cache_manager, make_request
from trtkv.common import RECURRENT_STATES
from trtkv.errors import ConfigurationError
from trtkv.records.linear_attention import LinearAttentionMetadata, has_recurrent_states_cache

WIDTH = 4


def states(metadata: LinearAttentionMetadata, prompt_len: int) -> list[int]:
    """Ends of the context blocks that keep a state."""
    ends = range(WIDTH, prompt_len + WIDTH, WIDTH)
    return [end for end in ends if metadata.should_allocate_recurrent_states(end, prompt_len, WIDTH)]


@pytest.mark.parametrize(
    ("interval", "last", "prompt_len", "expected"),
    [
        (0, False, 9, [12]),
        (0, False, 8, [8]),
        (0, True, 9, [8, 12]),
        (0, True, 8, [8]),
        (0, True, 3, [4]),
        (8, False, 21, [8, 16, 24]),
        (8, True, 21, [8, 16, 20, 24]),
        (8, True, 20, [8, 16, 20]),
        (4, False, 13, [4, 8, 12, 16]),
    ],
)
def test_blocks_with_a_state(interval: int, last: bool, prompt_len: int, expected: list[int]) -> None:
    metadata = LinearAttentionMetadata(states_snapshot_interval=interval, save_last_snapshot=last)
    assert states(metadata, prompt_len) == expected


@pytest.mark.parametrize("beam_width", [1, 3])
@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("interval", [0, 4, 8])
def test_count_is_what_a_manager_takes(interval: int, last: bool, reuse: bool, beam_width: int) -> None:
    """Up to and including the first generated token, for every prompt length."""
    metadata = LinearAttentionMetadata(states_snapshot_interval=interval, save_last_snapshot=last)
    for prompt_len in range(1, 22):
        manager = make_kv_cache_manager(
            windows={64: (60, 0), RECURRENT_STATES: (30, 0)},
            linear_attention_metadata=metadata,
            enable_partial_reuse=False,
            enable_block_reuse=reuse,
        )
        request = finish_prompt(add(manager, make_request(1, prompt_len, beam_width=beam_width)))
        manager.store_context_blocks(request)
        for beam in range(beam_width):
            request.add_new_token(1, beam)
        manager.store_context_blocks(request)
        manager.add_token(1)
        taken = 30 - manager.num_free_blocks_per_window_size[RECURRENT_STATES]
        count = metadata.count_states(prompt_len, WIDTH, reuse, beam_width)
        assert taken == count, f"prompt of {prompt_len} tokens"


@pytest.mark.parametrize(
    ("interval", "last", "length", "reuse", "expected"),
    [
        (8, False, 21, False, 1),
        (8, False, 21, True, 2),
        (8, True, 21, True, 3),
        (8, True, 24, True, 4),
        (0, True, 9, True, 1),
        (0, False, 9, True, 0),
        (0, False, 8, True, 1),
    ],
)
def test_recorded_count_for_budgets(interval: int, last: bool, length: int, reuse: bool, expected: int) -> None:
    metadata = LinearAttentionMetadata(states_snapshot_interval=interval, save_last_snapshot=last)
    assert metadata.calc_num_blocks_needed_for_req(length, WIDTH, reuse) == expected


def test_recorded_count_rounds_towards_zero() -> None:
    metadata = LinearAttentionMetadata(states_snapshot_interval=4)
    assert metadata.calc_num_blocks_needed_for_req(-(2**31) + 1 + 24, WIDTH, True) == -536870905


@pytest.mark.parametrize(
    ("num_tokens", "prompt_len", "reuse", "expected"),
    [(8, 8, True, 1), (9, 8, True, 1), (10, 8, True, 0), (8, 8, False, 0), (9, 9, True, 0)],
)
def test_recorded_blocks_still_to_come(num_tokens: int, prompt_len: int, reuse: bool, expected: int) -> None:
    found = LinearAttentionMetadata().calc_num_additional_blocks_needed_for_req(num_tokens, prompt_len, WIDTH, reuse)
    assert found == expected


def test_states_that_fit_into_memory() -> None:
    metadata = LinearAttentionMetadata(all_recurrent_states_bytes=100)
    assert metadata.calc_max_memory_blocks(RECURRENT_STATES, WIDTH, 1000, 3) == 3
    with pytest.raises(ConfigurationError, match="window 64 holds no recurrent states"):
        metadata.calc_max_memory_blocks(64, WIDTH, 1000, 3)
    with pytest.raises(ConfigurationError, match="states_snapshot_interval 6 is not a multiple of tokens_per_block 4"):
        LinearAttentionMetadata(states_snapshot_interval=6).calc_max_memory_blocks(RECURRENT_STATES, WIDTH, 1000, 3)


def test_recurrent_window_has_its_own_number() -> None:
    assert has_recurrent_states_cache(-(2**31) + 1)
    assert not has_recurrent_states_cache(4096)
