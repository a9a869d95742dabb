"""Sequences: derived lengths, copies, and what travels to a worker."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from trtkv.errors import InvalidInputError
from trtkv.nano import SamplingParams, Sequence, SequenceStatus


@pytest.mark.parametrize(
    ("length", "num_blocks", "last"), [(1, 1, 1), (3, 1, 3), (4, 1, 4), (5, 2, 1), (8, 2, 4), (9, 3, 1)]
)
def test_block_counts(length: int, num_blocks: int, last: int) -> None:
    seq = Sequence(range(length), block_size=4)
    assert (seq.num_blocks, seq.last_block_num_tokens, len(seq)) == (num_blocks, last, length)


def test_tokens_are_copied_and_split_into_prompt_and_completion() -> None:
    prompt = [1, 2, 3, 4, 5]
    seq = Sequence(prompt, block_size=4)
    prompt[0] = 99
    seq.append_token(6)
    assert seq.prompt_token_ids == [1, 2, 3, 4, 5]
    assert seq.completion_token_ids == [6]
    assert (seq[0], seq[-1], seq[1:3], seq.last_token) == (1, 6, [2, 3], 6)
    assert (seq.block(0), seq.block(1)) == ([1, 2, 3, 4], [5, 6])
    assert seq.num_completion_tokens == 1


@pytest.mark.parametrize("i", [-1, 2])
def test_blocks_outside_the_sequence_are_refused(i: int) -> None:
    with pytest.raises(InvalidInputError, match=r"blocks 0\.\.1"):
        Sequence(range(5), block_size=4).block(i)


def test_new_sequences_wait_and_get_increasing_ids() -> None:
    first, second = Sequence([1]), Sequence([1])
    assert second.seq_id == first.seq_id + 1
    assert Sequence([1], seq_id=5).seq_id == 5
    assert first.status is SequenceStatus.WAITING
    assert not first.is_finished
    assert (first.is_prefill, first.block_size, first.block_table) == (True, 256, [])


def test_block_size_of_the_class_is_the_default() -> None:
    class Small(Sequence):
        block_size = 8

    assert Small(range(9)).num_blocks == 2
    assert Small(range(9), block_size=4).num_blocks == 3


def test_sampling_settings_are_kept() -> None:
    seq = Sequence([1], SamplingParams(temperature=0.5, max_tokens=3, ignore_eos=True))
    assert (seq.temperature, seq.max_tokens, seq.ignore_eos) == (0.5, 3, True)


@pytest.mark.parametrize(
    "settings", [{"temperature": 1e-11}, {"temperature": -1.0}, {"temperature": float("nan")}, {"max_tokens": 0}]
)
def test_senseless_sampling_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError):
        SamplingParams(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "tokens",
    [[], ["a"], [1.5], [2**63], np.array([1.0]), np.array([[1, 2]]), np.array([2**63], dtype=np.uint64), 5],
)
def test_what_is_no_token_string_is_refused(tokens: object) -> None:
    with pytest.raises(InvalidInputError):
        Sequence(tokens)  # type: ignore[arg-type]


def test_token_ids_from_an_array_equal_those_from_a_list() -> None:
    assert Sequence(np.array([1, 2, 2**31 - 1], dtype=np.int32)).token_ids == [1, 2, 2**31 - 1]


@pytest.mark.parametrize("token", ["a", 1.5, 2**63])
def test_bad_token_is_not_appended(token: object) -> None:
    seq = Sequence([1, 2])
    with pytest.raises(InvalidInputError):
        seq.append_token(token)  # type: ignore[arg-type]
    assert (seq.token_ids, seq.num_tokens, seq.last_token) == ([1, 2], 2, 2)


def test_prefill_pickle_carries_all_tokens() -> None:
    seq = Sequence(range(1000, 1010), block_size=4)
    seq.block_table = [3, 1, 2]
    seq.num_cached_tokens, seq.num_scheduled_tokens = 4, 6
    view = pickle.loads(pickle.dumps(seq))
    assert view.token_ids == seq.token_ids
    assert view.is_prefill
    for name in ("num_tokens", "num_prompt_tokens", "num_cached_tokens", "num_scheduled_tokens", "block_table"):
        assert getattr(view, name) == getattr(seq, name)
    assert (view.last_token, view.num_blocks, view.last_block_num_tokens) == (1009, 3, 2)


def test_decode_pickle_does_not_grow_with_the_prompt() -> None:
    sizes = []
    for length in (100, 100_000):
        seq = Sequence(range(length))
        seq.append_token(77)
        seq.is_prefill = False
        data = pickle.dumps(seq)
        view = pickle.loads(data)
        assert (view.last_token, view.num_tokens, view.token_ids, view.is_prefill) == (77, length + 1, [], False)
        assert view.last_block_num_tokens == seq.last_block_num_tokens
        sizes.append(len(data))
    assert sizes[1] - sizes[0] <= 8  # the counts are wider integers, nothing else
    assert sizes[0] < 150
