"""Hot loops against their plain twins: the same random program through both leaves the same state after every step."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Sequence

import pytest

from tests.builders import TOKENS_PER_BLOCK, make_event_manager, make_kv_cache_manager, make_request
from tests.snapshot import find_changes, take_snapshot
from tests.stress.random_program import RandomProgram
from trtkv import KVCacheManager, LlmRequest
from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import MAX_INT32, PLACEHOLDER_BLOCK_ID
from trtkv.errors import OutOfBlocksError, TrtkvError
from trtkv.keys.key_builder import build_block_keys, build_block_keys_of
from trtkv.keys.key_hash import hash_block_key, hash_keys_alone, mix_tokens, mix_tokens_plainly
from trtkv.keys.packed_key import PackedKey
from trtkv.records.llm_request import LlmRequestState
from trtkv.window_block_manager import WindowBlockManager
from trtkv.window_block_manager.loading import BlockLoader
from trtkv.window_block_manager.storing import BlockStorer


def force_plain_paths(manager: KVCacheManager) -> None:
    """Replace every hot loop of a manager by the plain code that it stands for."""
    growth = manager._growth
    for window in manager.block_manager.window_block_managers.values():
        _force_plain_window(window)

    def add_token(request_id: int) -> None:
        growth.grow(manager.get_sequence(request_id))

    def add_tokens(request_ids: Iterable[int]) -> None:
        done = []
        for request_id in request_ids:
            growth._check_length(manager.get_sequence(request_id))
        for window in manager.block_manager.window_block_managers.values():
            sequences = [manager.get_sequence(request_id) for request_id in request_ids]
            width = manager.tokens_per_block
            needed = sum(sequence.beam_width for sequence in sequences if sequence.num_tokens % width == 0)
            if needed > window.num_free_blocks:  # before anything is evicted
                raise OutOfBlocksError("plain")
        try:
            for request_id in request_ids:
                add_token(request_id)
                done.append(manager.get_sequence(request_id))
        except TrtkvError:
            for sequence in reversed(done):
                growth._take_back_token(sequence)
            raise

    def add_token_rounds(request_ids: Sequence[int], num_rounds: int) -> None:
        for _ in range(num_rounds):
            add_tokens(request_ids)

    manager.add_token_rounds = add_token_rounds  # type: ignore[method-assign]
    manager.add_token = add_token  # type: ignore[method-assign]
    manager.add_tokens = add_tokens  # type: ignore[method-assign]


def _force_plain_window(window: WindowBlockManager) -> None:
    claimer, policy = window.claimer, window.eviction_policy
    window.loader = BlockLoader(window.context, claimer, window.sequences)
    window.storer = BlockStorer(window.context, window.matcher, claimer, window.sequences)

    def claim_blocks(blocks: Iterable[KVCacheBlock]) -> None:
        for block in blocks:
            policy.claim_block(block)

    def release_blocks(blocks: Iterable[KVCacheBlock]) -> None:
        for block in blocks:
            if block.block_id == PLACEHOLDER_BLOCK_ID:
                continue
            block.dec_ref_count()
            if not block.has_refs:
                policy.release_block(block, to_front=block.is_detached)

    claimer.get_free_blocks = lambda count: [claimer.get_free_block() for _ in range(count)]  # type: ignore[method-assign]
    policy.claim_blocks = claim_blocks  # type: ignore[method-assign]
    policy.release_blocks = release_blocks  # type: ignore[method-assign]


class Traffic:
    """Random admissions, chunks, decode steps, stores and removals over one full-attention window."""

    def __init__(self, seed: int, is_plain: bool, hash_map_order: bool, has_events: bool) -> None:
        self.rng = random.Random(seed)
        self.events = make_event_manager(10_000) if has_events else None
        self.manager = make_kv_cache_manager(
            self.rng.choice([12, 24, 200]),
            self.rng.choice([0, 0, 0, 6]),
            enable_partial_reuse=self.rng.random() < 0.8,
            copy_on_partial_reuse=self.rng.random() < 0.7,
            preallocate_blocks=not is_plain and self.rng.random() < 0.5,
            hash_map_order=hash_map_order,
            event_manager=self.events,
        )
        if is_plain:
            self.rng.random()
            force_plain_paths(self.manager)
        self.requests: dict[int, LlmRequest] = {}
        self.prompts: list[list[int]] = []
        self.next_id = 0

    def step(self) -> None:
        action = self.rng.choice([self.admit, self.admit, self.compute, self.decode, self.store, self.remove])
        try:
            action()
        except TrtkvError:
            self.rng.random()  # refused in both runs, or the draws that follow tell

    def admit(self) -> None:
        rng = self.rng
        batch = []
        for _ in range(rng.choice([1, 1, 2])):
            prompt = list(rng.choice(self.prompts)) if self.prompts and rng.random() < 0.8 else []
            del prompt[rng.randint(0, len(prompt)) :]
            prompt = (prompt + [rng.randint(0, 2) for _ in range(rng.randint(1, 12))])[:40]
            self.prompts.append(prompt)
            self.next_id += 1
            batch.append(make_request(self.next_id, prompt, lora_task_id=rng.choice([None] * 9 + [1])))
        self.manager.add_sequence_batch([(request.request_id, request.prompt_len, 1) for request in batch], batch)
        self.requests.update({request.request_id: request for request in batch})

    def pick(self, *, is_generating: bool) -> LlmRequest | None:
        state = LlmRequestState.GENERATION_IN_PROGRESS
        candidates = [request for request in self.requests.values() if (request.state is state) == is_generating]
        return self.rng.choice(candidates) if candidates else None

    def compute(self) -> None:
        request = self.pick(is_generating=False)
        if request is not None:
            request.set_context_chunk_size(self.rng.choice([TOKENS_PER_BLOCK, 40]))
            request.move_to_next_context_chunk()
            if not request.context_remaining_length:
                request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
            self.manager.store_context_blocks(request)

    def decode(self) -> None:
        ids = [r.request_id for r in self.requests.values() if r.state is LlmRequestState.GENERATION_IN_PROGRESS]
        for request_id in ids if self.rng.random() < 0.5 else ids[:1]:
            self.manager.add_token(request_id)
            self.requests[request_id].add_new_token(self.rng.randint(0, 2))
        if ids and self.rng.random() < 0.5:
            self.manager.add_tokens(ids[:1])
            self.requests[ids[0]].add_new_token(1)
        num_rounds = self.rng.randint(0, 6)
        self.manager.add_token_rounds(ids, num_rounds)
        for request_id in ids:
            self.requests[request_id].add_new_tokens([[1] * num_rounds])

    def store(self) -> None:
        request = self.pick(is_generating=True)
        if request is not None:
            self.manager.store_blocks_for_reuse(request.request_id, request)

    def remove(self) -> None:
        if self.requests:
            request = self.requests.pop(self.rng.choice(list(self.requests)))
            self.manager.remove_sequence(request.request_id, request if self.rng.random() < 0.9 else None)


@pytest.mark.pure
@pytest.mark.parametrize("has_events", [False, True])
@pytest.mark.parametrize("hash_map_order", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_hot_loops_leave_the_state_of_the_plain_code(seed: int, hash_map_order: bool, has_events: bool) -> None:
    fast, plain = (Traffic(seed, is_plain, hash_map_order, has_events) for is_plain in (False, True))
    for number in range(150):
        fast.step()
        plain.step()
        before = take_snapshot(plain.manager, plain.requests.values(), plain.events)
        changes = find_changes(before, take_snapshot(fast.manager, fast.requests.values(), fast.events))
        assert not changes, (number, changes[:3])
        assert fast.manager.get_iteration_stats() == plain.manager.get_iteration_stats()
    assert fast.manager.num_reused_blocks > 0


@pytest.mark.pure
@pytest.mark.parametrize("seed", range(40))
def test_any_program_with_plain_paths(seed: int) -> None:
    fast, plain = RandomProgram(seed, None), RandomProgram(seed, None)
    force_plain_paths(plain.manager)
    for number in range(120):
        assert fast.step() == plain.step()
        before = take_snapshot(plain.manager, plain.requests.values())
        changes = find_changes(before, take_snapshot(fast.manager, fast.requests.values()))
        assert not changes, (number, changes[:3])


@pytest.mark.parametrize("seed", range(20))
def test_keys_kept_by_a_request_are_those_built_anew(seed: int) -> None:
    rng = random.Random(seed)
    request = make_request(1, [rng.randint(0, 9) for _ in range(rng.randint(1, 30))])
    for _ in range(20):
        size = rng.randint(0, request.get_num_tokens())
        allow_partial = rng.random() < 0.5
        anew = build_block_keys_of(request, array("i", request.get_tokens()), 4, size, allow_partial)
        assert build_block_keys(request, 4, size, allow_partial) == anew
        request.add_new_token(rng.randint(0, 9))


@pytest.mark.parametrize("seed", range(5))
def test_compiled_token_mixer(seed: int) -> None:
    rng = random.Random(seed)
    tokens = array("i", [rng.randint(-(2**31), 2**31 - 1) for _ in range(rng.randint(0, 70))]).tobytes()
    parent = rng.getrandbits(64)
    assert mix_tokens(tokens, parent) == mix_tokens_plainly(tokens, parent)
    for key in (tokens, (tokens, None, 3, "salt", ())):
        assert hash_keys_alone([key]) == [hash_block_key(key)]


@pytest.mark.parametrize("num_keys", [0, 1, 15, 16, 40, 1100])
def test_hashes_of_many_keys(num_keys: int) -> None:
    rng = random.Random(num_keys)
    keys: list[PackedKey] = []
    for _ in range(num_keys):
        tokens = array("i", [rng.randint(-(2**31), 2**31 - 1) for _ in range(rng.choice([4, 4, 4, 0, 3]))]).tobytes()
        first = rng.randint(0, MAX_INT32 - 4)
        keys.append(rng.choice([tokens, tokens, range(first, first + 4), (tokens, None, 3, "salt", ())]))
    assert hash_keys_alone(keys) == [hash_block_key(key) for key in keys]
