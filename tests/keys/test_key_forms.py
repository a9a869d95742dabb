"""Keys of full blocks as ranges of consecutive tokens or as digests: they find what the tokens find."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from tests.builders import TOKENS_PER_BLOCK, add, finish_prompt, make_kv_cache_manager, make_request
from trtkv import KVCacheManager, LlmRequest
from trtkv.common import MAX_INT32, CacheType, KeyForm
from trtkv.errors import ConfigurationError, InvalidInputError, OutOfBlocksError
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.inspection.invariants import check_invariants
from trtkv.inspection.picture import draw
from trtkv.keys.block_key import BlockKey
from trtkv.keys.key_builder import build_block_keys
from trtkv.keys.key_form import convert_keys, digest_tokens, fold_tokens
from trtkv.keys.key_hash import hash_block_key, hash_key_chain
from trtkv.keys.packed_key import (
    MmKey,
    PackedKey,
    describe_key,
    first_token_of,
    num_key_tokens,
    num_matching_tokens,
    supports_partial_matching,
    token_bytes,
)
from trtkv.records.llm_request import LlmRequestState, MultimodalInput


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


# -- digests ----------------------------------------------------------------------------------------


def make_key(tokens: tuple[int, ...], **constraints: Any) -> PackedKey:
    return BlockKey(tokens, **constraints).packed


def test_digest_is_that_of_the_tokens() -> None:
    data = to_bytes(1, 2, 3, 4, 5, 6)
    expected = [3 << 128 | int.from_bytes(sha256(part).digest()[:16], "big") for part in (data[:12], data[12:])]
    assert digest_tokens(data, 3) == expected
    assert convert_keys([data[:12], data[12:], data[:8]], 3, KeyForm.DIGESTS) == [*expected, data[:8]]
    assert digest_tokens(b"", 3) == []


def test_digests_differ_where_anything_differs() -> None:
    image = MmKey(bytes(32), 0, None)
    keys = [
        make_key((1, 2, 3)),
        make_key((1, 2, 4)),
        make_key((1, 2, 3), lora_task_id=0),
        make_key((1, 2, 3), lora_task_id=1),
        make_key((1, 2, 3), cache_salt=""),
        make_key((1, 2, 3), cache_salt="a"),
        make_key((1, 2, 3), extra_ids=(0, 0, 0)),
        make_key((1, 2, 3), extra_ids=(0, 0, 1)),
        make_key((1, 2, 3), extra_keys=(image,)),
        make_key((1, 2, 3), extra_keys=(image._replace(start_offset=1),)),
        make_key((1, 2, 3), extra_keys=(image._replace(uuid="None"),)),
        make_key((1, 2, 3), extra_keys=(image, image)),
    ]
    digests = convert_keys(keys, 3, KeyForm.DIGESTS)
    assert all(isinstance(digest, int) for digest in digests)
    assert len(set(digests)) == len(keys)
    assert convert_keys(keys, 3, KeyForm.DIGESTS) == digests


@pytest.mark.pure  # compiled code takes no other types than those declared
@pytest.mark.parametrize("number", [np.int64, bool])
def test_digests_of_equal_constraints_are_equal(number: Callable[[int], int]) -> None:
    class Name(str):
        __slots__ = ()

        def __repr__(self) -> str:
            return "a name"

    plain = make_key((1, 2, 3), lora_task_id=1, cache_salt="a", extra_keys=(MmKey(bytes(32), 1, "b"),))
    image = MmKey(bytes(32), number(1), Name("b"))
    other = make_key((1, 2, 3), lora_task_id=number(1), cache_salt=Name("a"), extra_keys=(image,))
    assert plain == other
    assert len(set(convert_keys([plain, other], 3, KeyForm.DIGESTS))) == 1


@pytest.mark.pure
def test_digest_of_a_fractional_adapter_is_refused() -> None:
    key = make_key((1, 2, 3), lora_task_id=1.5)
    with pytest.raises(InvalidInputError, match=r"LoRA id 1\.5 is not an integer"):
        convert_keys([key], 3, KeyForm.DIGESTS)


@pytest.mark.parametrize("tokens_per_block", [1, 2**20 - 1, 2**20, 2**20 + 5])
def test_digests_of_blocks_of_any_size(tokens_per_block: int) -> None:
    length = 2 * tokens_per_block + 1
    manager = make_kv_cache_manager(
        6,
        tokens_per_block=tokens_per_block,
        max_sequence_length=length,
        window=length,
        enable_partial_reuse=False,
        key_form=KeyForm.DIGESTS,
    )
    tokens = array("i", [7]) * length
    for request_id, found in ((1, 0), (2, length - 1)):
        request = LlmRequest(request_id, tokens)
        serve_one(manager, request)
        assert request.prepopulated_prompt_len == found
        check_invariants(manager)


def test_blocks_are_found_by_the_digests_they_have() -> None:
    manager = make_kv_cache_manager(enable_partial_reuse=False, key_form=KeyForm.DIGESTS)
    request = make_request(1, 13)
    serve_one(manager, request)
    keys = build_block_keys(request, TOKENS_PER_BLOCK, 12, False, KeyForm.DIGESTS)
    found = manager.find_blocks_in_reuse_tree_by_block_keys(keys, 64)
    assert found is not None
    assert found.block_key == keys[-1]
    first = manager.find_blocks_in_reuse_tree_by_block_key(keys[0], 64)
    assert first is not None
    assert first.block_key == keys[0]


def serve_one(manager: KVCacheManager, request: LlmRequest) -> None:
    manager.store_context_blocks(finish_prompt(add(manager, request)))
    manager.remove_sequence(request.request_id, request)


def test_digest_tells_its_length_and_nothing_else() -> None:
    digest, other = convert_keys([to_bytes(1, 2, 3), to_bytes(1, 2, 4)], 3, KeyForm.DIGESTS)
    assert num_key_tokens(digest) == 3
    assert not supports_partial_matching(digest)
    assert (num_matching_tokens(digest, digest), num_matching_tokens(digest, other)) == (3, 0)
    assert num_matching_tokens(digest, to_bytes(1, 2, 3)) == num_matching_tokens(to_bytes(1, 2, 3), digest) == 0
    assert first_token_of(digest) != first_token_of(other)
    assert describe_key(digest).startswith("digest ")
    calls: list[Callable[[PackedKey], object]] = [token_bytes, BlockKey.unpack, hash_block_key]
    for ask in calls:
        with pytest.raises(InvalidInputError, match="does not tell its tokens"):
            ask(digest)


def test_blocks_of_digests_have_no_hashes_and_can_be_drawn() -> None:
    manager = make_kv_cache_manager(16, enable_partial_reuse=False, key_form=KeyForm.DIGESTS)
    request = make_request(1, 13)
    add(manager, request)
    manager.store_context_blocks(finish_prompt(request))
    blocks = [b for b in manager.block_manager.window_block_managers[64].block_objects() if b.lookup_node is not None]
    for block in blocks:
        with pytest.raises(InvalidInputError, match=r"^a digest does not tell its tokens"):
            _ = block.hash
    assert len(blocks) == 3
    assert "digest " in draw(manager)


@pytest.mark.parametrize("key_form", KeyForm)
def test_hashes_of_a_request_are_those_of_its_tokens(key_form: KeyForm) -> None:
    """A request has its tokens, whatever the cache keeps."""
    manager = make_kv_cache_manager(16, enable_partial_reuse=False, key_form=key_form)
    request = make_request(1, [1, 2, 3, 4, 9, 9, 9, 9, 7, 7, 7, 7, 5])
    add(manager, request)
    keys = [BlockKey((1, 2, 3, 4)).packed, BlockKey((9,) * 4).packed, BlockKey((7,) * 4).packed]
    assert manager.commit_and_get_block_hashes_for_request(request, 64) == hash_key_chain(keys)
    check_invariants(manager, {1: request})
    manager.store_context_blocks(finish_prompt(request))
    check_invariants(manager, {1: request})
    assert manager.probe_prefix_match_length(make_request(2, request.get_tokens())) == 12


@pytest.mark.parametrize(
    ("key_form", "options", "reason"),
    [
        (KeyForm.DIGESTS, {"enable_partial_reuse": True}, "partial reuse"),
        (KeyForm.DIGESTS, {"event_manager": KVCacheEventManager(10)}, "an event manager"),
        (KeyForm.DIGESTS, {"hash_map_order": True}, "hash-map order"),
        (KeyForm.DIGESTS, {"compatibility": True}, "hash-map order"),
        (KeyForm.DIGESTS, {"cache_type": CacheType.CROSS}, "a cross cache"),
        (KeyForm.RUNS, {"cache_type": CacheType.CROSS}, "a cross cache"),
    ],
)
def test_form_is_refused_where_tokens_are_needed(key_form: KeyForm, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"key_form '{key_form.value}' is incompatible with .*{reason}"):
        make_kv_cache_manager(16, **{"enable_partial_reuse": False, "key_form": key_form, **options})


def test_form_may_be_given_by_name() -> None:
    assert make_kv_cache_manager(16, key_form="runs").key_form is KeyForm.RUNS
    with pytest.raises(ConfigurationError, match="key_form is 'nothing', no KeyForm"):
        make_kv_cache_manager(16, key_form="nothing")


# -- servers ----------------------------------------------------------------------------------------


class Server:
    """Serves prompts cut from a few runs of numbers, a few at a time."""

    def __init__(self, seed: int, key_form: KeyForm, **options: Any) -> None:
        self.rng = random.Random(seed)
        self.manager: KVCacheManager = make_kv_cache_manager(24, 8, key_form=key_form, **options)
        self.live: list[LlmRequest] = []
        self.found: list[int] = []

    def serve(self, request_id: int) -> None:
        rng = self.rng
        firsts = [rng.choice([0, 100, 200]) for _ in range(rng.randint(1, 3))]
        prompt = [first + index * 8 + offset for index, first in enumerate(firsts) for offset in range(8)]
        del prompt[rng.randint(2, len(prompt)) :]
        request = LlmRequest(request_id, prompt, 4)
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
    folded, plain = (Server(seed, form, hash_map_order=hash_map_order) for form in (KeyForm.RUNS, KeyForm.TOKENS))
    for request_id in range(120):
        folded.serve(request_id)
        plain.serve(request_id)
    assert folded.found == plain.found
    assert any(length % TOKENS_PER_BLOCK for length in plain.found if length > 0)
    blocks = folded.manager.block_manager.lookup_tree.root.ordered_children()
    assert any(isinstance(node.key, range) for node in blocks)


@pytest.mark.parametrize("seed", range(12))
def test_digests_change_nothing_that_is_found(seed: int) -> None:
    digests, plain = (Server(seed, form, enable_partial_reuse=False) for form in (KeyForm.DIGESTS, KeyForm.TOKENS))
    for request_id in range(120):
        digests.serve(request_id)
        plain.serve(request_id)
    assert digests.found == plain.found
    assert any(length > 0 for length in plain.found)
    assert any(isinstance(node.key, int) for node in digests.manager.block_manager.lookup_tree.root.ordered_children())


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
    for key_form in KeyForm:
        if enable_partial_reuse and key_form is KeyForm.DIGESTS:
            continue
        manager = make_kv_cache_manager(
            16,
            enable_partial_reuse=enable_partial_reuse,
            copy_on_partial_reuse=copy_on_partial_reuse,
            key_form=key_form,
        )
        image = None if image_at is None else MultimodalInput([[1] * 8], [image_at], [2])
        first = make_request(1, tokens, multimodal_input=image)
        manager.store_context_blocks(finish_prompt(add(manager, first)))
        check_invariants(manager, {1: first})
        manager.remove_sequence(1, first)
        second = make_request(2, tokens)
        answer = [describe(manager, second, tokens)]
        for num_tokens in (8, 4, 0):
            manager.truncate_blocks(tokens, num_tokens)
            answer.append(describe(manager, second, tokens))
        manager.reset_reuse_state()
        assert manager.probe_prefix_match_length(second) == 0
        answers.append(answer)
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][0] != answers[0][-1] or image_at == 0


def test_keys_kept_by_a_request_are_those_of_the_form_asked_for() -> None:
    request = make_request(1, 8)
    for key_form in (KeyForm.TOKENS, KeyForm.RUNS, KeyForm.DIGESTS, KeyForm.TOKENS):
        expected = build_block_keys(make_request(1, 8), 4, 8, False, key_form)
        assert build_block_keys(request, 4, 8, False, key_form) == expected
