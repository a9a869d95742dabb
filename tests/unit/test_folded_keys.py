"""Keys of consecutive tokens, folded to ranges: they mean what the bytes mean."""

from __future__ import annotations

import random
from array import array

import pytest

from tests.builders import TOKENS_PER_BLOCK, add, finish_prompt, make_kv_cache_manager, make_request
from trtkv import KVCacheManager, LlmRequest
from trtkv.block_key import (
    BlockKey,
    PackedKey,
    first_token_of,
    fold_tokens,
    hash_block_key,
    num_key_tokens,
    num_matching_tokens,
    supports_partial_matching,
    token_bytes,
)
from trtkv.common import MAX_INT32
from trtkv.errors import InvalidInputError, OutOfBlocksError
from trtkv.invariants import check_invariants
from trtkv.llm_request import LlmRequestState, MultimodalInput


def to_bytes(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def test_consecutive_tokens_of_a_block_become_a_range() -> None:
    rows = [(5, 6, 7), (5, 6, 8), (7, 6, 5), (-1, 0, 1), (0, 0, 0)]
    keys = fold_tokens(b"".join(to_bytes(*row) for row in rows), 3)
    assert keys == [range(5, 8), to_bytes(5, 6, 8), to_bytes(7, 6, 5), range(-1, 2), to_bytes(0, 0, 0)]
    assert fold_tokens(b"", 3) == []


def test_tokens_beyond_32_bits_are_no_run() -> None:
    data = to_bytes(MAX_INT32 - 1, MAX_INT32, -MAX_INT32 - 1)
    assert fold_tokens(data, 3) == [data]
    assert fold_tokens(to_bytes(MAX_INT32 - 3, MAX_INT32 - 2, MAX_INT32 - 1), 3) == [range(MAX_INT32 - 3, MAX_INT32)]


@pytest.mark.parametrize("other", [(5, 6, 7, 8), (5, 6, 7), (5, 9, 9, 9), (6, 7, 8, 9), (5, 6, 7, 8, 9)])
def test_a_folded_key_means_what_its_bytes_mean(other: tuple[int, ...]) -> None:
    folded: PackedKey = range(5, 9)
    plain: PackedKey = to_bytes(5, 6, 7, 8)
    assert token_bytes(folded) == plain
    assert num_key_tokens(folded) == 4
    assert first_token_of(folded) == first_token_of(plain)
    assert supports_partial_matching(folded)
    assert BlockKey.unpack(folded) == BlockKey.unpack(plain)
    assert hash_block_key(folded, 77) == hash_block_key(plain, 77)
    for another in (to_bytes(*other), range(other[0], other[0] + len(other))):
        assert num_matching_tokens(folded, another) == num_matching_tokens(plain, another)
        assert num_matching_tokens(another, folded) == num_matching_tokens(another, plain)
    constrained = (to_bytes(5, 6, 7, 8), None, 1, None, ())
    assert num_matching_tokens(folded, constrained) == num_matching_tokens(constrained, folded) == 0


class Server:
    """Serves prompts cut from a few runs of numbers, a few at a time."""

    def __init__(self, seed: int, folds: bool, hash_map_order: bool) -> None:
        self.rng = random.Random(seed)
        self.folds = folds
        self.manager: KVCacheManager = make_kv_cache_manager(24, 8, hash_map_order=hash_map_order)
        self.live: list[LlmRequest] = []
        self.found: list[int] = []

    def serve(self, request_id: int) -> None:
        rng = self.rng
        firsts = [rng.choice([0, 100, 200]) for _ in range(rng.randint(1, 3))]
        prompt = [first + index * 8 + offset for index, first in enumerate(firsts) for offset in range(8)]
        del prompt[rng.randint(2, len(prompt)) :]
        request = LlmRequest(request_id, prompt, 4, folds_consecutive_tokens=self.folds)
        try:
            self.manager.add_sequence_batch([(request_id, len(prompt), 1)], [request])
        except OutOfBlocksError:
            self.found.append(-1)
        else:
            self.found.append(request.prepopulated_prompt_len)
            request.set_context_current_position(len(prompt))
            request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
            self.manager.store_context_blocks(request)
            self.live.append(request)
        if len(self.live) > 2 or self.found[-1] < 0:
            request = self.live.pop(0)
            request.add_new_tokens([[prompt[-1] + 1, rng.randint(0, 9)]])
            self.manager.add_token_rounds([request.request_id], 2)
            self.manager.remove_sequence(request.request_id, request)
        check_invariants(self.manager)


@pytest.mark.parametrize("hash_map_order", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_folding_changes_nothing_that_is_found(seed: int, hash_map_order: bool) -> None:
    folded, plain = Server(seed, True, hash_map_order), Server(seed, False, hash_map_order)
    for request_id in range(120):
        folded.serve(request_id)
        plain.serve(request_id)
    assert folded.found == plain.found
    assert any(length % TOKENS_PER_BLOCK for length in plain.found if length > 0)
    blocks = folded.manager.block_manager.lookup_tree.root.ordered_children()
    assert any(isinstance(node.key, range) for node in blocks)


def describe(manager: KVCacheManager, request: LlmRequest, tokens: list[int]) -> list[object]:
    keys = [BlockKey(tuple(tokens[start : start + 4])) for start in range(0, 8, 4)]
    found = manager.find_blocks_in_reuse_tree_by_block_keys(keys, 64)
    long = manager.find_blocks_in_reuse_tree_by_block_key(BlockKey(tuple(tokens[:8])), 64)
    return [
        manager.probe_prefix_match_length(request),
        manager.analyze_prefix_reuse(request)[:2],
        manager.analyze_prefix_reuse(request, tokens)[:2],
        found and found.block_id,
        long and long.block_id,
    ]


@pytest.mark.parametrize("copy_on_partial_reuse", [False, True])
@pytest.mark.parametrize("enable_partial_reuse", [False, True])
@pytest.mark.parametrize("image_at", [None, 0, 8])
def test_what_is_asked_by_tokens_is_found_as_well(
    image_at: int | None, enable_partial_reuse: bool, copy_on_partial_reuse: bool
) -> None:
    tokens = list(range(1, 14))
    answers = []
    for folds in (False, True):
        manager = make_kv_cache_manager(
            16, enable_partial_reuse=enable_partial_reuse, copy_on_partial_reuse=copy_on_partial_reuse
        )
        image = None if image_at is None else MultimodalInput([[1] * 8], [image_at], [2])
        first = make_request(1, tokens, multimodal_input=image, folds_consecutive_tokens=folds)
        manager.store_context_blocks(finish_prompt(add(manager, first)))
        check_invariants(manager, {1: first})
        manager.remove_sequence(1, first)
        second = make_request(2, tokens, folds_consecutive_tokens=folds)
        answer = [describe(manager, second, tokens)]
        for num_tokens in (8, 4, 0):
            manager.truncate_blocks(tokens, num_tokens)
            answer.append(describe(manager, second, tokens))
        manager.reset_reuse_state()
        assert manager.probe_prefix_match_length(second) == 0
        answers.append(answer)
    assert answers[0] == answers[1]
    assert answers[0][0] != answers[0][-1] or image_at == 0


def test_requests_of_a_manager_agree() -> None:
    manager = make_kv_cache_manager()
    add(manager, make_request(1, 13, folds_consecutive_tokens=True))
    with pytest.raises(InvalidInputError, match="request 2 has folds_consecutive_tokens=False"):
        add(manager, make_request(2, 13))
    manager.remove_sequence(1)
    add(manager, make_request(2, 13))
